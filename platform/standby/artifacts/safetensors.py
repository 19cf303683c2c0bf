"""The header of a safetensors file: a pure parser over a function that reads bytes. No clock, no store.

Layout, as the format's specification has it: the header's length (u64, little-endian), that many bytes of JSON, the
data. The JSON object maps each tensor's name to ``dtype``, ``shape`` and ``data_offsets`` (begin and end, counted from
the end of the header); ``__metadata__`` maps strings to strings. Tensors fill the data without gap or overlap.

The file is hostile until proven otherwise: what the header claims must add up to exactly the file's size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NoReturn

from standby.domain.errors import UnsupportedArtifact

ReadAt = Callable[[int, int], bytes]
"""``read(offset, length)`` returns exactly ``length`` bytes; asked only for bytes inside the file."""

MAX_HEADER_BYTES: Final = 100_000_000
MAX_TENSORS: Final = 200_000
# Bounds the memory that the parsed JSON takes: a tensor needs five commas and one more for each further dimension.
MAX_COMMAS: Final = 16 * MAX_TENSORS
_PREFIX: Final = 8
_MAX_ELEMENTS: Final = 2**64 - 1
_FIELDS: Final = frozenset({"dtype", "shape", "data_offsets"})
_METADATA: Final = "__metadata__"
_AGAIN: Final = "upload the whole file again"

DTYPE_BITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        "BOOL": 8,
        "F4": 4,
        "F6_E2M3": 6,
        "F6_E3M2": 6,
        "U8": 8,
        "I8": 8,
        "F8_E5M2": 8,
        "F8_E4M3": 8,
        "F8_E8M0": 8,
        "F8_E4M3FNUZ": 8,
        "F8_E5M2FNUZ": 8,
        "I16": 16,
        "U16": 16,
        "F16": 16,
        "BF16": 16,
        "I32": 32,
        "U32": 32,
        "F32": 32,
        "C64": 64,
        "F64": 64,
        "I64": 64,
        "U64": 64,
    }
)


@dataclass(frozen=True)
class SafetensorsHeader:
    """What the header says, tensor by tensor reduced to names and totals."""

    names: frozenset[str]
    parameter_count: int
    bytes_by_dtype: Mapping[str, int]
    header_bytes: int


def parse_safetensors(read: ReadAt, size: int) -> SafetensorsHeader:
    """Return the header of the file of ``size`` bytes that ``read`` reads.

    Raises UnsupportedArtifact for everything that breaks the format: a length that lies, broken JSON, names that are
    there twice, unknown dtypes, shapes that do not fit their bytes, gaps, overlaps, missing and trailing bytes.
    """
    length = _header_length(read, size)
    tensors = _object(read(_PREFIX, length))
    metadata = tensors.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _broken(f"{_METADATA} holds more than strings")
    if not 0 < len(tensors) <= MAX_TENSORS:
        raise _broken(f"{len(tensors)} tensors, allowed are 1 to {MAX_TENSORS}")
    spans = [_span(name, entry) for name, entry in tensors.items()]
    _check_spans(spans, size - _PREFIX - length)
    by_dtype: Counter[str] = Counter()
    for span in spans:
        by_dtype[span.dtype] += span.end - span.begin
    return SafetensorsHeader(
        names=frozenset(tensors),
        parameter_count=sum(span.elements for span in spans),
        bytes_by_dtype=dict(by_dtype),
        header_bytes=_PREFIX + length,
    )


@dataclass(frozen=True)
class _Span:
    name: str
    dtype: str
    elements: int
    begin: int
    end: int


def _header_length(read: ReadAt, size: int) -> int:
    if size < _PREFIX:
        raise UnsupportedArtifact(f"no safetensors file: it has {size} bytes", remedy=_AGAIN)
    length = int.from_bytes(read(0, _PREFIX), "little")
    if length > MAX_HEADER_BYTES:
        raise UnsupportedArtifact(
            f"no safetensors file: its first 8 bytes claim a header of {length} bytes, more than {MAX_HEADER_BYTES}",
            remedy="upload the file again; other formats do not become safetensors by their name",
        )
    if _PREFIX + length > size:
        raise UnsupportedArtifact(
            f"truncated safetensors: the header needs {_PREFIX + length} bytes, the file has {size}", remedy=_AGAIN
        )
    return length


def _object(content: bytes) -> dict[str, Any]:
    if not content.startswith(b"{"):
        raise _broken("it does not begin with '{'")
    if content.count(b",") > MAX_COMMAS:
        raise _broken(f"more than {MAX_COMMAS} values")
    try:
        parsed = json.loads(
            content.decode(), object_pairs_hook=_unique, parse_int=_natural, parse_float=_no_number, parse_constant=_no_number
        )
        _require_encodable(parsed)
    except (ValueError, RecursionError) as error:
        raise _broken(f"it is not JSON: {str(error)[:120]}") from None
    # It begins with a brace, so that it can only be an object.
    assert isinstance(parsed, dict)
    return parsed


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counted = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counted.items() if count > 1)
        raise _broken(f"{_shown(twice)} is there twice")
    return found


def _natural(digits: str) -> int:
    if digits.startswith("-"):
        raise _broken(f"the number {digits[:40]} is negative")
    return int(digits)


def _no_number(text: str) -> NoReturn:
    raise _broken(f"{text[:40]} is not a whole number")


def _require_encodable(parsed: dict[str, Any]) -> None:
    """Escapes of half a character are legal JSON for Python alone; other readers of the format refuse them."""
    for name, entry in parsed.items():
        name.encode()
        if name == _METADATA and isinstance(entry, dict):
            for key, value in entry.items():
                f"{key}{value}".encode()


def _span(name: str, entry: object) -> _Span:
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        raise _broken(f"tensor {_shown(name)} has other fields than {', '.join(sorted(_FIELDS))}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _broken(f"tensor {_shown(name)} has the unknown dtype {str(dtype)[:40]!r}")
    if not _naturals(shape):
        raise _broken(f"tensor {_shown(name)} has no shape of whole numbers")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(f"tensor {_shown(name)} has no begin and end")
    elements = 1
    for length in shape:
        elements *= length
        if elements > _MAX_ELEMENTS:
            raise _broken(f"tensor {_shown(name)} has more numbers than a file can hold")
    begin, end = offsets
    if elements * DTYPE_BITS[dtype] != (end - begin) * 8:
        raise _broken(
            f"tensor {_shown(name)}: {elements} numbers of {dtype} need {elements * DTYPE_BITS[dtype] / 8:g} bytes, "
            f"its offsets span {end - begin}"
        )
    return _Span(name, dtype, elements, begin, end)


def _naturals(value: object) -> bool:
    return isinstance(value, list) and all(type(number) is int for number in value)


def _check_spans(spans: Sequence[_Span], data_bytes: int) -> None:
    at = 0
    for span in sorted(spans, key=lambda span: (span.begin, span.end)):
        if span.begin != at:
            what = "overlaps the tensor before it" if span.begin < at else "leaves a gap before it"
            raise _broken(f"tensor {_shown(span.name)} begins at {span.begin} and {what}, which ends at {at}")
        at = span.end
    if at > data_bytes:
        raise UnsupportedArtifact(f"truncated safetensors: the tensors need {at} bytes, {data_bytes} are there", remedy=_AGAIN)
    if at < data_bytes:
        raise UnsupportedArtifact(
            f"safetensors with {data_bytes - at} trailing bytes: the tensors end at {at}, the data at {data_bytes}",
            remedy=_AGAIN,
        )


def _shown(name: str) -> str:
    return repr(name[:80])


def _broken(what: str) -> UnsupportedArtifact:
    return UnsupportedArtifact(f"safetensors header is broken: {what}", remedy="upload the file again or save the model again")
