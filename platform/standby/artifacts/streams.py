"""Bytes that are read once from front to back: a plain file by ranges, and the inside of a gzip.

Neither keeps more than one window; what is skipped in a plain file is never asked for.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from standby.artifacts.archive_rules import ArchiveLimits, BrokenArchive, too_dense

WINDOW: Final = 256 << 10
_PIECE: Final = 1 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS
_GZIP_MAGIC: Final = b"\x1f\x8b"
_AGAIN: Final = "pack and upload the archive again"


class ForwardStream(Protocol):
    """A position that only grows."""

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes; fewer only where the stream ends."""

    def skip(self, length: int) -> int:
        """Step over ``length`` bytes and return how many there were; fewer only where the stream ends."""


class PlainStream:
    """A file of ``size`` bytes behind ``read(offset, length)``; skipping costs nothing."""

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read = read
        self._size = size
        self._offset = 0
        self._window = b""
        self._start = 0

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes; fewer only where the file ends."""
        length = min(length, self._size - self._offset)
        begin = self._offset - self._start
        if begin + length > len(self._window):
            self._start, begin = self._offset, 0
            self._window = self._read(self._offset, min(max(length, WINDOW), self._size - self._offset)) if length else b""
        self._offset += length
        return self._window[begin : begin + length]

    def skip(self, length: int) -> int:
        """Step over ``length`` bytes and return how many there were."""
        length = min(length, self._size - self._offset)
        self._offset += length
        return length


class GzipStream:
    """What the gzip in ``chunks`` unpacks to, one piece at a time; several gzips one after the other count as one.

    Raises BrokenArchive while it reads: damage, a wrong checksum, a missing end, a compression bomb.
    """

    def __init__(self, chunks: Iterator[bytes], limits: ArchiveLimits) -> None:
        self._chunks = chunks
        self._limits = limits
        self._inflater = zlib.decompressobj(_GZIP)
        self._packed = b""
        self._piece = b""
        self._at = 0
        self._ended = False
        self.packed_bytes = 0
        self.unpacked_bytes = 0

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes; fewer only where the stream ends."""
        parts: list[bytes] = []
        missing = length
        while missing and self._fill():
            part = self._piece[self._at : self._at + missing]
            parts.append(part)
            self._at += len(part)
            missing -= len(part)
        return b"".join(parts)

    def skip(self, length: int) -> int:
        """Step over ``length`` bytes and return how many there were."""
        missing = length
        while missing and self._fill():
            step = min(missing, len(self._piece) - self._at)
            self._at += step
            missing -= step
        return length - missing

    def _fill(self) -> bool:
        """Make at least one byte available; False at the end."""
        while self._at == len(self._piece):
            if self._ended:
                return False
            self._piece, self._at = self._inflate(), 0
            self.unpacked_bytes += len(self._piece)
            reason = too_dense(self.packed_bytes, self.unpacked_bytes, self._limits)
            if reason is not None:
                raise BrokenArchive(reason, remedy="pack the model without such content, or register its folder")
        return True

    def _inflate(self) -> bytes:
        if not self._packed and not self._inflater.unconsumed_tail and not self._feed():
            if not self._inflater.eof:
                raise BrokenArchive(f"truncated gzip: it ends after {self.packed_bytes} bytes in the middle", remedy=_AGAIN)
            self._ended = True
            return b""
        if self._inflater.eof:
            return self._next_member()
        packed, self._packed = self._inflater.unconsumed_tail + self._packed, b""
        try:
            piece = self._inflater.decompress(packed, _PIECE)
        except zlib.error as error:
            raise BrokenArchive(f"damaged gzip: {error}", remedy=_AGAIN) from None
        if self._inflater.eof:
            self._packed = self._inflater.unused_data
        return piece

    def _next_member(self) -> bytes:
        """Begin the next gzip; zeros behind the last one are padding, of which tapes and some tools leave plenty."""
        self._packed = self._packed.lstrip(b"\0")
        while 0 < len(self._packed) < len(_GZIP_MAGIC) and self._feed():
            pass
        if self._packed:
            if not self._packed.startswith(_GZIP_MAGIC[: len(self._packed)]):
                raise BrokenArchive("bytes that are no gzip follow the end of the gzip", remedy=_AGAIN)
            self._inflater = zlib.decompressobj(_GZIP)
        return b""

    def _feed(self) -> bool:
        chunk = next(self._chunks, b"")
        self.packed_bytes += len(chunk)
        self._packed += chunk
        return bool(chunk)
