"""The header of a GGUF file: a pure parser over a function that reads bytes. No clock, no store.

Layout (little-endian), as the GGUF specification of the ggml project has it: magic ``GGUF``, version u32, tensor
count u64, key count u64; keys: string, type u32, value; tensors: string, dimensions u32, sizes u64 each, type u32,
offset u64; then, aligned, the data. A string is a length u64 and that many bytes.

The file is hostile until proven otherwise: every length is checked against the file's size and a limit before
anything is read, and what is not needed is stepped over, not read.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Final

from standby.artifacts.gguf_header import MAX_LAYERS, GgufHeader, KeptValue, SplitPart, broken, integer_of
from standby.artifacts.gguf_types import SCALARS, TENSOR_TYPES
from standby.domain.errors import UnsupportedArtifact

ReadAt = Callable[[int, int], bytes]
"""``read(offset, length)`` returns exactly ``length`` bytes; asked only for bytes inside the file."""

MAGIC: Final = b"GGUF"
VERSIONS: Final = frozenset({2, 3})
MAX_HEADER_BYTES: Final = 64 << 20
MAX_KEYS: Final = 10_000
MAX_TENSORS: Final = 100_000
MAX_ARRAY_STRINGS: Final = 2_000_000
MAX_NAME_BYTES: Final = 65_535
MAX_KEPT_BYTES: Final = 4096
MAX_DIMENSIONS: Final = 4
_MAX_DEPTH: Final = 3
_STRING: Final = 8
_ARRAY: Final = 9
_DEFAULT_ALIGNMENT: Final = 32
_WINDOW: Final = 1 << 20
_KEPT_ARRAYS: Final = (".attention.head_count", ".attention.head_count_kv")
"""Arrays with one number for each layer, where the layers differ."""
_INTEGERS: Final = frozenset({0, 1, 2, 3, 4, 5, 10, 11})


def parse_gguf(read: ReadAt, size: int, *, keep: Container[str] = ()) -> GgufHeader:
    """Return the header of the file of ``size`` bytes that ``read`` reads, with the arrays of strings and integers ``keep``.

    Raises UnsupportedArtifact for anything that llama.cpp would not load: wrong magic or version, limits broken,
    no tensors (a part of a split model may hold none), tensors not one after the other, fewer bytes than they need.
    """
    cursor = _Cursor(read, size)
    version, tensor_count, key_count = _preamble(cursor)
    keys, values = _keys(cursor, key_count, keep)
    split = _split(values)
    if tensor_count == 0 and split is None:
        raise broken(f"0 tensors, allowed are 1 to {MAX_TENSORS}")
    alignment = integer_of(values, "general.alignment", _DEFAULT_ALIGNMENT)
    if alignment <= 0 or alignment % 8:
        raise broken(f"alignment {alignment} is not a multiple of 8")
    tensors = _tensors(cursor, tensor_count, alignment)
    # A part without tensors ends where its header ends, without padding.
    data_start = -(-cursor.offset // alignment) * alignment if tensor_count else cursor.offset
    required = data_start + tensors.data_bytes
    if required > size:
        raise UnsupportedArtifact(
            f"truncated GGUF: the tensors need {required} bytes, the file has {size}", remedy="upload the whole file again"
        )
    return GgufHeader(
        version=version,
        keys=keys,
        values=values,
        tensor_names=frozenset(tensors.names),
        parameters_by_type=dict(tensors.parameters),
        header_bytes=cursor.offset,
        required_bytes=required,
        split=split,
    )


def _split(values: dict[str, KeptValue]) -> SplitPart | None:
    count = integer_of(values, "split.count", 0)
    if count <= 1:
        return None
    return SplitPart(integer_of(values, "split.no", 0), count, integer_of(values, "split.tensors.count", 0))


class _Cursor:
    """A position in the file with a window of bytes around it; every step is checked before it is taken."""

    def __init__(self, read: ReadAt, size: int) -> None:
        self._read = read
        self._size = size
        self._limit = min(size, MAX_HEADER_BYTES)
        self._window = b""
        self._start = 0
        self.offset = 0

    def skip(self, length: int) -> None:
        """Step over ``length`` bytes without reading them."""
        self._check(length)
        self.offset += length

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes."""
        self._check(length)
        begin = self.offset - self._start
        if begin < 0 or begin + length > len(self._window):
            self._start, begin = self.offset, 0
            self._window = self._read(self.offset, min(max(length, _WINDOW), self._size - self.offset))
        self.offset += length
        return self._window[begin : begin + length]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        """Return the numbers that come next."""
        return form.unpack(self.take(form.size))

    def u64(self) -> int:
        """Return the next unsigned 64-bit number."""
        return int.from_bytes(self.take(8), "little")

    def u32(self) -> int:
        """Return the next unsigned 32-bit number."""
        return int.from_bytes(self.take(4), "little")

    def name(self) -> str:
        """Return the next string, which names a key or a tensor."""
        length = self.u64()
        if length > MAX_NAME_BYTES:
            raise broken(f"a name of {length} bytes at offset {self.offset}, more than {MAX_NAME_BYTES}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError:
            raise broken(f"a name before offset {self.offset} is not UTF-8") from None

    def _check(self, length: int) -> None:
        if self.offset + length <= self._limit:
            return
        if self.offset + length > self._size:
            raise UnsupportedArtifact(
                f"truncated GGUF: its header needs {length} bytes at offset {self.offset}, the file has {self._size}",
                remedy="upload the whole file again",
            )
        raise broken(f"{length} bytes at offset {self.offset} pass the header's limit of {MAX_HEADER_BYTES} bytes")


@dataclass
class _Tensors:
    names: set[str] = field(default_factory=set)
    parameters: Counter[int] = field(default_factory=Counter)
    data_bytes: int = 0
    # None after a tensor of a type whose length is not known.
    next_offset: int | None = 0


def _preamble(cursor: _Cursor) -> tuple[int, int, int]:
    magic = cursor.take(4)
    if magic != MAGIC:
        raise UnsupportedArtifact(f"not a GGUF file: it begins with {magic!r}, not {MAGIC!r}", remedy="register a GGUF file")
    version = cursor.u32()
    if version not in VERSIONS:
        big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        raise UnsupportedArtifact(
            f"GGUF {'is big-endian' if big_endian else f'version {version} is not supported'}: "
            f"versions {sorted(VERSIONS)}, little-endian",
            remedy="convert the model again with a current converter",
        )
    tensor_count, key_count = cursor.u64(), cursor.u64()
    if tensor_count > MAX_TENSORS:
        raise broken(f"{tensor_count} tensors, allowed are 1 to {MAX_TENSORS}")
    if key_count > MAX_KEYS:
        raise broken(f"{key_count} keys, more than {MAX_KEYS}")
    return version, tensor_count, key_count


def _keys(cursor: _Cursor, count: int, keep: Container[str]) -> tuple[frozenset[str], dict[str, KeptValue]]:
    names: set[str] = set()
    values: dict[str, KeptValue] = {}
    budget = _Budget(MAX_ARRAY_STRINGS)
    for _ in range(count):
        name = cursor.name()
        if name in names:
            raise broken(f"key {name[:80]!r} is there twice")
        names.add(name)
        kind = cursor.u32()
        if kind == _STRING:
            values.update(_string(cursor, name))
        elif kind == _ARRAY:
            values.update(_array(cursor, name, budget, keep))
        elif kind in SCALARS:
            values[name] = cursor.unpack(SCALARS[kind])[0]
        else:
            raise broken(f"key {name[:80]!r} has the unknown type {kind}")
    return frozenset(names), values


def _string(cursor: _Cursor, name: str) -> dict[str, KeptValue]:
    length = cursor.u64()
    if length > MAX_KEPT_BYTES:
        cursor.skip(length)
        return {}
    return {name: cursor.take(length).decode(errors="replace")}


@dataclass
class _Budget:
    left: int

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise broken(f"arrays with more than {MAX_ARRAY_STRINGS} strings")


def _array(cursor: _Cursor, name: str, budget: _Budget, keep: Container[str]) -> dict[str, KeptValue]:
    kind, count = cursor.u32(), cursor.u64()
    if name in keep and kind == _STRING:
        budget.spend(count)
        return {name: tuple(cursor.take(cursor.u64()).decode(errors="replace") for _ in range(count))}
    if name in keep and kind in _INTEGERS:
        budget.spend(count)
        return {name: tuple(cursor.unpack(SCALARS[kind])[0] for _ in range(count))}
    if kind in _INTEGERS and count <= MAX_LAYERS and name.endswith(_KEPT_ARRAYS):
        return {name: tuple(cursor.unpack(SCALARS[kind])[0] for _ in range(count))}
    _skip_items(cursor, kind, count, budget, depth=1)
    return {}


def _skip_items(cursor: _Cursor, kind: int, count: int, budget: _Budget, *, depth: int) -> None:
    if kind in SCALARS:
        cursor.skip(count * SCALARS[kind].size)
    elif kind == _STRING:
        budget.spend(count)
        for _ in range(count):
            cursor.skip(cursor.u64())
    elif kind == _ARRAY and depth < _MAX_DEPTH:
        budget.spend(count)
        for _ in range(count):
            _skip_items(cursor, cursor.u32(), cursor.u64(), budget, depth=depth + 1)
    else:
        raise broken(f"an array at offset {cursor.offset} has the unknown type {kind} or lies deeper than {_MAX_DEPTH}")


def _tensors(cursor: _Cursor, count: int, alignment: int) -> _Tensors:
    found = _Tensors()
    for _ in range(count):
        name = cursor.name()
        if name in found.names:
            raise broken(f"tensor {name[:80]!r} is there twice")
        found.names.add(name)
        dimensions = cursor.u32()
        if dimensions > MAX_DIMENSIONS:
            raise broken(f"tensor {name[:80]!r} has {dimensions} dimensions, more than {MAX_DIMENSIONS}")
        sizes = [cursor.u64() for _ in range(dimensions)]
        kind, offset = cursor.u32(), cursor.u64()
        _place(found, name, sizes, kind, offset, alignment)
    return found


def _place(found: _Tensors, name: str, sizes: list[int], kind: int, offset: int, alignment: int) -> None:
    """Check that the tensor begins where the one before it ended, as llama.cpp demands, and count it."""
    elements = math.prod(sizes)
    found.parameters[kind] += elements
    if found.next_offset is not None and offset != found.next_offset:
        raise broken(f"tensor {name[:80]!r} lies at offset {offset}, the one before it ends at {found.next_offset}")
    stored = TENSOR_TYPES.get(kind)
    if stored is None:
        # Of a type that is not in the table only the beginning is known to have to lie inside the file.
        found.next_offset, found.data_bytes = None, max(found.data_bytes, offset + 1)
        return
    if sizes and sizes[0] % stored.block:
        raise broken(f"tensor {name[:80]!r}: rows of {sizes[0]} are no multiple of {stored.name}'s block {stored.block}")
    end = offset + stored.bytes_of(elements)
    found.data_bytes = max(found.data_bytes, end)
    found.next_offset = -(-end // alignment) * alignment if found.next_offset is not None else None
