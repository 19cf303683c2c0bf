"""CBOR (RFC 8949) as far as AWS's RPC v2 protocol uses it: what CloudWatch's SDKs speak first."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from standby.sagemaker.shapes.coercion import moment, serialization

_DEEPEST: Final = 64
_ENDLESS: Final = 31
_BREAK: Final = 0xFF
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {25: (">e", 2), 26: (">f", 4), 27: (">d", 8)}
_EPOCH: Final = 1


def encode(value: Any) -> bytes:
    """Return a value of JSON's types, bytes and datetimes as CBOR. Raises TypeError for any other."""
    out = bytearray()
    _write(out, value)
    return bytes(out)


def decode(body: bytes) -> dict[str, Any]:
    """Return the map of a body, datetimes included; an empty body is an empty map.

    Raises AwsError SerializationException for anything else: cut, nested beyond 64, with bytes left over.
    """
    if not body:
        return {}
    reader = _Reader(body)
    try:
        value = reader.item(0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError):
        raise serialization("The body is not valid CBOR") from None
    if not isinstance(value, dict) or reader.at != len(body) or not all(isinstance(key, str) for key in value):
        raise serialization("The body is not one CBOR map")
    return value


def _write(out: bytearray, value: Any) -> None:
    match value:
        case None:
            out.append(0xF6)
        case bool():
            out.append(0xF5 if value else 0xF4)
        case int():
            _head(out, 0 if value >= 0 else 1, value if value >= 0 else -1 - value)
        case float():
            out += b"\xfb" + struct.pack(">d", value)
        case bytes():
            _head(out, 2, len(value))
            out += value
        case str():
            text = value.encode("utf-8", "replace")
            _head(out, 3, len(text))
            out += text
        case datetime():
            _head(out, 6, _EPOCH)
            _write(out, value.astimezone(UTC).timestamp())
        case Mapping():
            _head(out, 5, len(value))
            for key, item in value.items():
                _write(out, key)
                _write(out, item)
        case list() | tuple():
            _head(out, 4, len(value))
            for item in value:
                _write(out, item)
        case _:
            raise TypeError(f"{type(value).__name__} has no form in CBOR here")


def _head(out: bytearray, major: int, size: int) -> None:
    for width, info in ((0, size), (1, 24), (2, 25), (4, 26), (8, 27)):
        if (width == 0 and size < 24) or (width and size < 1 << (8 * width)):
            out.append(major << 5 | info)
            out += size.to_bytes(width, "big") if width else b""
            return
    raise TypeError(f"{size} is too large for CBOR")


@dataclass(slots=True)
class _Reader:
    """Reads items one after another; IndexError where the bytes end."""

    body: bytes
    at: int = 0

    def item(self, depth: int) -> Any:  # noqa: PLR0911 # one return for each of CBOR's eight major types
        """Return the next item."""
        if depth > _DEEPEST:
            raise serialization("The body is nested too deeply")
        major, info = divmod(self._take(1)[0], 32)
        match major:
            case 0:
                return self._size(info)
            case 1:
                return -1 - self._size(info)
            case 2:
                return self._bytes(major, info)
            case 3:
                return self._bytes(major, info).decode("utf-8")
            case 4:
                return [self.item(depth + 1) for _ in self._count(info)]
            case 5:
                return {self.item(depth + 1): self.item(depth + 1) for _ in self._count(info)}
            case 6:
                return self._tagged(self._size(info), depth)
            case _:
                return self._simple(info)

    def _tagged(self, tag: int, depth: int) -> Any:
        if tag != _EPOCH:
            raise serialization(f"The body holds the CBOR tag {tag}, only {_EPOCH} is known")
        return moment(self.item(depth + 1))

    def _simple(self, info: int) -> Any:
        if info in _FLOATS:
            form, width = _FLOATS[info]
            return struct.unpack(form, self._take(width))[0]
        if info not in _SIMPLE:
            raise serialization("The body holds a CBOR value of no known kind")
        return _SIMPLE[info]

    def _bytes(self, major: int, info: int) -> bytes:
        if info != _ENDLESS:
            return self._take(self._size(info))
        parts = []
        for _ in self._count(info):
            inner, size = divmod(self._take(1)[0], 32)
            if inner != major or size == _ENDLESS:
                raise serialization("The body is not valid CBOR")
            parts.append(self._take(self._size(size)))
        return b"".join(parts)

    def _count(self, info: int) -> _Count:
        return _Count(self, None if info == _ENDLESS else self._size(info))

    def _size(self, info: int) -> int:
        if info < 24:
            return info
        if info > 27:
            raise serialization("The body is not valid CBOR")
        return int.from_bytes(self._take(1 << (info - 24)), "big")

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.body):
            raise IndexError
        taken = self.body[self.at : end]
        self.at = end
        return taken

    def ended(self) -> bool:
        """Whether the break of an endless item comes next; it is taken then."""
        if self.body[self.at] != _BREAK:
            return False
        self.at += 1
        return True


@dataclass(slots=True)
class _Count:
    """Yields once for each member of a list or map: a known number, or up to the break."""

    reader: _Reader
    left: int | None

    def __iter__(self) -> _Count:
        return self

    def __next__(self) -> None:
        if self.left is None:
            if self.reader.ended():
                raise StopIteration
        elif self.left == 0:
            raise StopIteration
        else:
            self.left -= 1
