"""A log read on from where it was read last, over the lives of an engine.

A mark names a life's file and a place in it. A file system gives an inode's number away again, so that the log of the life
after next may have that of the one before: what stands in front of the place belongs to the file's name.
"""

from __future__ import annotations

import os
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

from standby.runtime.log_words import plain_line

_LINE_BYTES: Final = 64 * 1024
_KNOWN_BYTES: Final = 256


class Bounds(NamedTuple):
    """How much is read at once: so many lines, and so many bytes of the file and of text."""

    lines: int
    size: int


class NextLines(NamedTuple):
    """What was written since; ``renewed``: it is of another life than the mark, from its beginning."""

    lines: tuple[str, ...]
    mark: str
    renewed: bool = False


def end_of(log: Path, *, ended: bool) -> tuple[str, int]:
    """Return the mark of the log's end and its size in bytes. Raises OSError.

    A last line that has no end yet lies behind the mark, unless its engine has ended.
    """
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        begin = max(0, size - _LINE_BYTES)
        stream.seek(begin)
        whole = size if ended else begin + stream.read(size - begin).rfind(b"\n") + 1
        return _mark(stream, whole), size


def lines_after(mark: str, log: Path, before: Path, bounds: Bounds, *, ended: bool) -> NextLines:
    """Return the lines after ``mark``, masked; "" is before all of them. Only whole lines, or a secret in two would be none.

    What is left of the life before, now at ``before``, comes first. Raises OSError, and ValueError where it is no mark.
    """
    name, offset = (int(number, 16) for number in mark.split("-")) if mark else (-1, 0)
    for path, over in ((log, ended), (before, True)):
        with suppress(FileNotFoundError), path.open("rb") as stream:
            if os.fstat(stream.fileno()).st_size < offset or _name(stream, offset) != name:
                continue
            lines, end = _read(stream, offset, bounds, over=over)
            if lines or path == log:
                return NextLines(lines, _mark(stream, end))
    with log.open("rb") as stream:
        lines, end = _read(stream, 0, bounds, over=ended)
        return NextLines(lines, _mark(stream, end), renewed=True)


def _mark(stream: BufferedReader, offset: int) -> str:
    return f"{_name(stream, offset):x}-{offset:x}"


def _name(stream: BufferedReader, offset: int) -> int:
    begin = max(0, offset - _KNOWN_BYTES)
    stream.seek(begin)
    return os.fstat(stream.fileno()).st_ino << 32 | crc32(stream.read(offset - begin))


def _read(stream: BufferedReader, offset: int, bounds: Bounds, *, over: bool) -> tuple[tuple[str, ...], int]:
    """Return whole lines and where they end; where it is ``over``, the last one needs no end."""
    # The byte before says whether a line begins here: the rest of one that was too long to be read at once is left out.
    begin = max(0, offset - 1)
    stream.seek(begin)
    data = stream.read(bounds.size + offset - begin)
    full = len(data) == bounds.size + offset - begin
    within = offset > 0 and data[:1] not in (b"\n", b"\r")
    lines: list[str] = []
    end, room = offset, bounds.size
    pieces = data[offset - begin :].splitlines(keepends=True)
    for number, piece in enumerate(pieces, start=1):
        is_whole = piece.endswith(b"\n") or (piece.endswith(b"\r") and number < len(pieces))
        waits = end > offset if full else not over
        if len(lines) == bounds.lines or (not is_whole and waits):
            break
        if not within:
            text = plain_line(piece.decode(errors="replace").rstrip("\r\n"))
            room -= len(text.encode())
            if lines and room < 0:
                break
            lines.append(text)
        within = False
        end += len(piece)
    return tuple(lines), end
