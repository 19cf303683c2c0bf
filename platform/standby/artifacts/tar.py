"""A tar from front to back: member by member over a forward stream. Pure: no clock, no store, nothing is written.

Formats: ustar, pax and GNU long names, as POSIX.1-2001 (pax) and the GNU tar manual describe them. What only tapes need
(sparse files, several volumes) is an entry of an unknown kind, which no caller takes.

Own code because the standard library's reader keeps every member and takes extended headers of any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from standby.artifacts.archive_rules import ArchiveLimits, BrokenArchive, MemberKind
from standby.artifacts.streams import ForwardStream

BLOCK: Final = 512
_ZERO: Final = bytes(BLOCK)
_PIECE: Final = 1 << 20
_CHECKSUM: Final = slice(148, 156)
# Mode, owner, group, time, device: not used, but a header in which they are no numbers is refused by other readers.
_OTHER_NUMBERS: Final = (slice(100, 108), slice(108, 116), slice(116, 124), slice(136, 148), slice(329, 337), slice(337, 345))
_MAX_PADDING: Final = 64 << 20
"""Zeros behind the end mark; the largest record that tar writes is half of it."""
_MAX_EXTENSIONS: Final = 4
"""Extended headers in front of one member: a long name, a long link, its own and a global one."""
_KINDS: Final = {
    b"0": MemberKind.FILE,
    b"\0": MemberKind.FILE,
    b"7": MemberKind.FILE,
    b"1": MemberKind.HARDLINK,
    b"2": MemberKind.SYMLINK,
    b"3": MemberKind.DEVICE,
    b"4": MemberKind.DEVICE,
    b"5": MemberKind.FOLDER,
    b"6": MemberKind.FIFO,
}
_REMEDY: Final = "pack the model again with tar and upload it"


@dataclass(frozen=True)
class TarEntry:
    """A member as the archive names it; ``size`` in bytes, 0 for everything but files."""

    name: str
    kind: MemberKind
    size: int


class Body:
    """The content of the member that was read last; what the caller leaves of it is skipped."""

    def __init__(self, stream: ForwardStream, name: str, size: int) -> None:
        self._stream = stream
        self._name = name
        self.left = size

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes; fewer only where the member ends. Raises BrokenArchive: truncated."""
        length = min(length, self.left)
        content = self._stream.take(length)
        self.left -= length
        if len(content) < length:
            raise _truncated(f"member {self._name[:200]!r} lacks its last {self.left + length - len(content)} bytes")
        return content

    def skip(self, length: int) -> int:
        """Step over ``length`` bytes and return how many there were. Raises BrokenArchive: truncated."""
        length = min(length, self.left)
        done = self._stream.skip(length)
        self.left -= length
        if done < length:
            raise _truncated(f"member {self._name[:200]!r} lacks its last {self.left + length - done} bytes")
        return done


@dataclass(frozen=True)
class _Extension:
    """What extended headers say about the member that follows them."""

    name: str | None = None
    size: int | None = None


@dataclass(frozen=True)
class _Header:
    name: str
    type: bytes
    size: int


def members(stream: ForwardStream, limits: ArchiveLimits) -> Iterator[tuple[TarEntry, Body]]:
    """Yield each member with its content, which must be used before the next one is asked for.

    Raises BrokenArchive: no tar, damaged or truncated, extended headers past their limit, data after its end.
    """
    while (found := _next(stream, limits)) is not None:
        entry, padded = found
        body = Body(stream, entry.name, entry.size)
        yield entry, body
        body.skip(body.left)
        stream.skip(padded - entry.size)
    _require_end(stream)


def _next(stream: ForwardStream, limits: ArchiveLimits) -> tuple[TarEntry, int] | None:
    """Return the next member and its size on the tar, or None at the end mark."""
    known = _Extension()
    for place in range(_MAX_EXTENSIONS + 1):
        block = stream.take(BLOCK)
        if block == _ZERO and place == 0:
            return None
        if block == _ZERO:
            raise _broken("an extended header with no member behind it")
        if len(block) < BLOCK:
            raise _truncated("it ends without the end mark")
        header = _header(block)
        if header.type in b"xgLK":
            known = _joined(known, _extended(header, stream, limits))
            continue
        name = header.name if known.name is None else known.name
        kind = _KINDS.get(header.type, MemberKind.OTHER)
        if kind is MemberKind.FILE and name.endswith("/"):
            kind = MemberKind.FOLDER
        size = header.size if known.size is None else known.size
        size = size if kind is MemberKind.FILE else 0
        return TarEntry(name, kind, size), _padded(size)
    raise _broken(f"more than {_MAX_EXTENSIONS} extended headers in a row")


def _header(block: bytes) -> _Header:
    stored = _number(block[_CHECKSUM], "checksum")
    blanked = block[: _CHECKSUM.start] + b" " * 8 + block[_CHECKSUM.stop :]
    if stored != sum(blanked):
        raise _broken("a header's checksum is wrong: no tar, or a damaged one")
    for field in _OTHER_NUMBERS:
        if block[field][0] != 0xFF:
            _number(block[field], "number")
    name = _text(block[:100])
    # GNU keeps other things where POSIX keeps the front part of a long name.
    if block[257:263] == b"ustar\0" and (prefix := _text(block[345:500])):
        name = f"{prefix}/{name}"
    return _Header(name, block[156:157], _number(block[124:136], "size"))


def _joined(known: _Extension, more: _Extension) -> _Extension:
    """Where two headers name one member, readers differ in which one they believe."""
    if (known.name is not None and more.name is not None) or (known.size is not None and more.size is not None):
        raise _broken("two extended headers name or size the same member")
    return _Extension(more.name if known.name is None else known.name, more.size if known.size is None else known.size)


def _extended(header: _Header, stream: ForwardStream, limits: ArchiveLimits) -> _Extension:
    if header.size > limits.header_bytes:
        raise _broken(f"an extended header of {header.size} bytes, more than {limits.header_bytes}")
    content = stream.take(_padded(header.size))
    if len(content) < _padded(header.size):
        raise _truncated("it ends inside an extended header")
    content = content[: header.size]
    if header.type == b"L":
        return _Extension(name=_text(content))
    if header.type == b"K":
        return _Extension()
    records = _records(content)
    name, size = records.get(b"path"), records.get(b"size")
    if any(key.startswith(b"GNU.sparse") for key in records):
        raise _broken("it holds a sparse file")
    if header.type == b"g":
        if name is not None or size is not None:
            raise _broken("a global header names or sizes all members at once")
        return _Extension()
    if size is not None and not (size.isdigit() and len(size) < 20):
        raise _broken(f"an extended header gives the size {size[:40]!r}")
    return _Extension(None if name is None else name.decode(errors="surrogateescape"), None if size is None else int(size))


def _records(content: bytes) -> dict[bytes, bytes]:
    """Return the records of a pax header, each ``length key=value newline`` with its own length in front."""
    found: dict[bytes, bytes] = {}
    at = 0
    while at < len(content):
        digits, _, _ = content[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = content[at + len(digits) + 1 : at + length]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if length <= len(digits) + 1 or at + length > len(content) or not record.endswith(b"\n") or not equals or not key:
            raise _broken("an extended header is not made of records")
        # A name that a C program would end earlier than we do is a name that two readers take for two files.
        if key == b"path" and b"\0" in value:
            raise _broken("a name with a zero byte")
        found[key] = value
        at += length
    return found


def _require_end(stream: ForwardStream) -> None:
    padding = 0
    while content := stream.take(_PIECE):
        padding += len(content)
        if content.count(0) != len(content) or padding > _MAX_PADDING:
            raise BrokenArchive("the tar holds more data after its end mark", remedy=_REMEDY)


def _number(field: bytes, what: str) -> int:
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0")[0].strip(b" ")
    if not all(digit in b"01234567" for digit in digits):
        raise _broken(f"a header's {what} is no number: no tar, or a damaged one")
    return int(digits or b"0", 8)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")


def _padded(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _broken(what: str) -> BrokenArchive:
    return BrokenArchive(f"broken tar: {what}", remedy=_REMEDY)


def _truncated(what: str) -> BrokenArchive:
    return BrokenArchive(f"truncated tar: {what}", remedy="upload the whole archive again")
