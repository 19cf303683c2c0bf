"""What ``config.json`` and the files beside it say about a model in the Hugging Face layout. Pure.

Every value is somebody else's: what is not of the expected type or size counts as not said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from standby.artifacts.safetensors import SafetensorsHeader
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import ModelFacts

TOKENIZERS: Final = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json"})
_TEMPLATES: Final = frozenset({"chat_template.jinja", "chat_template.json"})
_CONTEXT: Final = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "n_ctx", "seq_length")
_LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_WIDTH: Final = ("hidden_size", "n_embd", "d_model")
_MAX_LAYERS: Final = 4096
_MAX_NUMBER: Final = 1 << 40
_MAX_WORD: Final = 200
_PRESENT_BYTES: Final = 2
"""Bytes of one number in a key-value cache at 16 bits."""

Json = Mapping[str, Any]


@dataclass
class Totals:
    """What the headers of all shards add up to."""

    tensor_count: int = 0
    parameter_count: int = 0
    bytes_by_dtype: Counter[str] = field(default_factory=Counter)

    def add(self, header: SafetensorsHeader) -> None:
        """Count one more shard."""
        self.tensor_count += len(header.names)
        self.parameter_count += header.parameter_count
        self.bytes_by_dtype.update(header.bytes_by_dtype)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Their names, most bytes first."""
        return tuple(sorted(self.bytes_by_dtype, key=lambda name: (-self.bytes_by_dtype[name], name)))


def refuse_remote_code(name: str, content: Json, where: str) -> None:
    """Raise UnsupportedArtifact when the JSON file ``name`` asks an engine to import Python code of the model."""
    if content.get("auto_map"):
        raise UnsupportedArtifact(
            f"{where}: {name} asks for the model's own Python code (auto_map), and nothing from a model is executed",
            remedy="save the model without custom code, or have the operator allow remote code",
        )


def config_facts(config: Json, tokenizer: Json, paths: Collection[str], totals: Totals | None) -> ModelFacts:
    """Return the facts of the model with these files; ``totals`` is None when the weights have no readable header."""
    text = _text_part(config)
    architectures = config.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else config.get("model_type")
    return ModelFacts(
        architecture=_word(first),
        parameter_count=totals.parameter_count if totals else None,
        context_length=_number(text, _CONTEXT),
        quantisation=_quantisation(config, text),
        has_chat_template="chat_template" in tokenizer or bool(_TEMPLATES & set(paths)),
        has_tokenizer=bool(TOKENIZERS & set(paths)),
        tensor_count=totals.tensor_count if totals else None,
        dtypes=totals.dtypes if totals else (),
        kv_bytes_per_token=kv_bytes_per_token(text),
    )


def kv_bytes_per_token(config: Json) -> int | None:
    """Return the key-value cache of one token over all layers at 16 bits; None where the config does not say enough."""
    layers = _number(config, _LAYERS)
    if layers is None or layers > _MAX_LAYERS:
        return None
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and len(kinds) == layers:
        # Layers with linear attention keep a state of fixed size instead of one entry for each token.
        layers -= sum(1 for kind in kinds if kind == "linear_attention")
    latent, rope = _number(config, ("kv_lora_rank",)), _number(config, ("qk_rope_head_dim",))
    if latent is not None:
        return layers * (latent + (rope or 0)) * _PRESENT_BYTES
    heads, width = _number(config, _HEADS), _number(config, _WIDTH)
    if heads is None:
        return None
    head_dim = _number(config, ("head_dim",)) or (width // heads if width else 0)
    kv_heads = 1 if config.get("multi_query") is True else _number(config, _KV_HEADS) or heads
    return 2 * layers * kv_heads * head_dim * _PRESENT_BYTES or None


def _text_part(config: Json) -> Json:
    """Return the part about the language model, where the model also sees or hears."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and inner else config


def _quantisation(config: Json, text: Json) -> str:
    for part in (config, text):
        found = part.get("quantization_config")
        if isinstance(found, dict) and (method := _word(found.get("quant_method"))):
            return method
    for part in (config, text):
        for name in ("dtype", "torch_dtype"):
            if precision := _word(part.get(name)):
                return precision
    return ""


def _number(config: Json, names: Iterable[str]) -> int | None:
    values = (config.get(name) for name in names)
    return next((value for value in values if type(value) is int and 0 < value < _MAX_NUMBER), None)


def _word(value: object) -> str:
    return value[:_MAX_WORD] if isinstance(value, str) else ""
