"""What the header of a GGUF file says, and the facts that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from standby.artifacts.gguf_types import FILE_TYPES, TENSOR_TYPES
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import ModelFacts

KeptValue = str | int | float | bool | tuple[int, ...] | tuple[str, ...]
MAX_LAYERS: Final = 4096
MAX_WORD: Final = 200
"""Characters of a name that are kept in the facts."""

_PRESENT_BYTES: Final = 2
"""Bytes of one number in a key-value cache at 16 bits."""


@dataclass(frozen=True)
class SplitPart:
    """Which part of a model in several files this is; ``number`` begins at 0."""

    number: int
    count: int
    tensor_count: int
    """Of all parts together."""


@dataclass(frozen=True)
class GgufHeader:
    """What the header says. ``values`` holds scalars and short strings; ``keys`` every name, arrays included."""

    version: int
    keys: frozenset[str]
    values: dict[str, KeptValue]
    tensor_names: frozenset[str]
    parameters_by_type: dict[int, int]
    header_bytes: int
    required_bytes: int
    split: SplitPart | None = None

    @property
    def tensor_count(self) -> int:
        """How many tensors this file holds."""
        return len(self.tensor_names)

    @property
    def parameter_count(self) -> int:
        """How many numbers these tensors hold."""
        return sum(self.parameters_by_type.values())

    def facts(self) -> ModelFacts:
        """Return the header as the facts that a manifest keeps."""
        architecture = str(self.values.get("general.architecture", ""))[:MAX_WORD]
        return ModelFacts(
            architecture=architecture,
            name=str(self.values.get("general.name", ""))[:MAX_WORD],
            parameter_count=self.parameter_count,
            context_length=self._positive(f"{architecture}.context_length"),
            quantisation=self._quantisation(),
            has_chat_template="tokenizer.chat_template" in self.keys,
            has_tokenizer="tokenizer.ggml.tokens" in self.keys,
            tensor_count=self.tensor_count,
            dtypes=self._types(),
            kv_bytes_per_token=self._kv_bytes_per_token(architecture),
        )

    def _quantisation(self) -> str:
        file_type = self.values.get("general.file_type")
        named = FILE_TYPES.get(file_type) if type(file_type) is int else None
        if named is not None or not self.parameters_by_type:
            return named or ""
        most = max(self.parameters_by_type, key=lambda kind: self.parameters_by_type[kind])
        return TENSOR_TYPES[most].name if most in TENSOR_TYPES else ""

    def _types(self) -> tuple[str, ...]:
        known = {TENSOR_TYPES[kind]: count for kind, count in self.parameters_by_type.items() if kind in TENSOR_TYPES}
        return tuple(kind.name for kind in sorted(known, key=lambda kind: (-kind.bytes_of(known[kind]), kind.name)))

    def _kv_bytes_per_token(self, architecture: str) -> int | None:
        """Bytes over all layers; None where the header does not say enough or the model keeps something smaller."""
        if f"{architecture}.attention.kv_lora_rank" in self.keys:
            return None
        layers = self._positive(f"{architecture}.block_count")
        heads = self.values.get(f"{architecture}.attention.head_count")
        kv_heads = self.values.get(f"{architecture}.attention.head_count_kv", heads)
        width = self._positive(f"{architecture}.embedding_length")
        most_heads = max(heads, default=0) if isinstance(heads, tuple) else heads
        if layers is None or layers > MAX_LAYERS or width is None or not isinstance(most_heads, int) or most_heads <= 0:
            return None
        key = self._positive(f"{architecture}.attention.key_length") or width // most_heads
        value = self._positive(f"{architecture}.attention.value_length") or width // most_heads
        each_layer = kv_heads[:layers] if isinstance(kv_heads, tuple) else (kv_heads,) * layers
        total = sum(count for count in each_layer if isinstance(count, int) and count > 0)
        return total * (key + value) * _PRESENT_BYTES if total > 0 else None

    def _positive(self, key: str) -> int | None:
        value = self.values.get(key)
        return value if type(value) is int and value > 0 else None


def joined(parts: Sequence[GgufHeader]) -> GgufHeader:
    """Return the header of the model that lies in ``parts``: the words of the first, the tensors of all."""
    numbers: Counter[int] = Counter()
    for part in parts:
        numbers.update(part.parameters_by_type)
    return replace(
        parts[0], tensor_names=frozenset[str]().union(*(part.tensor_names for part in parts)), parameters_by_type=dict(numbers)
    )


def integer_of(values: Mapping[str, KeptValue], key: str, default: int) -> int:
    """Return the whole number at ``key``. Raises UnsupportedArtifact when something else is there."""
    value = values.get(key, default)
    if not isinstance(value, int):
        raise broken(f"key {key!r} is {str(value)[:40]!r}, not a whole number")
    return value


def broken(what: str) -> UnsupportedArtifact:
    """Return the error for a header that breaks the format."""
    return UnsupportedArtifact(f"GGUF header is broken: {what}", remedy="upload the file again or convert the model again")
