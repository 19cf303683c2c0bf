"""The files of an artifact and what can be read of them before it is fetched: small texts and the headers of weights.

One interface for two places: objects in a store, read by ranges, and an archive that was read through once.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from standby.artifacts.archive_rules import BrokenArchive
from standby.artifacts.gguf import MAGIC, parse_gguf
from standby.artifacts.gguf_header import GgufHeader
from standby.artifacts.lfs import POINTER_BYTES, refuse_pointer
from standby.artifacts.location import SourceInterrupted
from standby.artifacts.safetensors import ReadAt, SafetensorsHeader, parse_safetensors
from standby.artifacts.sources import Source
from standby.artifacts.streams import ForwardStream, PlainStream
from standby.domain.errors import UnsupportedArtifact
from standby.domain.model import Member, ObjectRef

MAX_TEXT_BYTES: Final = 32 << 20
_ATTEMPTS: Final = 3
_PARALLEL: Final = 8
_PAUSES: Final = (0.2, 1.0)

Found = bytes | SafetensorsHeader | GgufHeader


class Contents(Protocol):
    """What an artifact holds. Every method raises UnsupportedArtifact naming the file."""

    @property
    def where(self) -> str:
        """The place in words, for messages."""

    @property
    def files(self) -> Sequence[Member]:
        """Every file that could belong to the model."""

    async def look(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return for each path the header of weights, or the whole of a small text."""


class ObjectContents:
    """Objects in a store or files in a folder."""

    def __init__(self, source: Source, refs: Sequence[ObjectRef]) -> None:
        self._source = source
        self._refs = {ref.path: ref for ref in refs}

    @property
    def where(self) -> str:
        """The store and the prefix in words."""
        return self._source.where

    @property
    def files(self) -> Sequence[Member]:
        """Every object of the listing."""
        return [Member(path=ref.path, size=ref.size) for ref in self._refs.values()]

    def replace(self, refs: Mapping[str, ObjectRef]) -> None:
        """Read from these objects from now on: the same paths, pinned."""
        self._refs.update(refs)

    async def look(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Read the headers, a few at a time."""
        gate = asyncio.Semaphore(_PARALLEL)

        async def one(path: str) -> Found:
            async with gate:
                return await asyncio.to_thread(self._look, self._refs[path])

        found = await asyncio.gather(*(one(path) for path in paths))
        return dict(zip(paths, found, strict=True))

    def _look(self, ref: ObjectRef) -> Found:
        def read(offset: int, length: int) -> bytes:
            return patiently(self._source, ref, offset, length)

        try:
            return look_into(ref.path, PlainStream(read, ref.size), ref.size)
        except UnsupportedArtifact as error:
            raise located(self.where, error) from None


def located(where: str, error: UnsupportedArtifact) -> UnsupportedArtifact:
    """Return ``error`` with the place in front."""
    return UnsupportedArtifact(f"{where}: {error.message}", remedy=error.remedy)


def look_into(path: str, stream: ForwardStream, size: int) -> Found:
    """Return the header of the weights at the stream's position, or the whole text. Raises UnsupportedArtifact."""
    reader = _Forward(stream)
    refuse_pointer(path, reader.read(0, min(size, POINTER_BYTES)), size)
    try:
        if path.lower().endswith(".gguf"):
            return _gguf(reader.read, size)
        if path.endswith(".safetensors"):
            return parse_safetensors(reader.read, size)
    except BrokenArchive:
        raise
    except UnsupportedArtifact as error:
        raise UnsupportedArtifact(f"{path}: {error.message}", remedy=error.remedy) from None
    if size > MAX_TEXT_BYTES:
        raise UnsupportedArtifact(f"{path} has {size} bytes, more than {MAX_TEXT_BYTES}", remedy="upload the right file")
    return reader.read(0, size)


def patiently(source: Source, ref: ObjectRef, offset: int, length: int) -> bytes:
    """Read, and after an interruption try again a little later. Blocking: for threads."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return bytes(source.read_blocking(ref, offset, length))
        except SourceInterrupted:
            time.sleep(_PAUSES[attempt] * random.uniform(0.5, 1.5))  # noqa: S311 # spreads retries, no secret
    return bytes(source.read_blocking(ref, offset, length))


class _Forward:
    """``read(offset, length)`` over a forward stream; the parsers' offsets grow but for what they saw last."""

    def __init__(self, stream: ForwardStream) -> None:
        self._stream = stream
        self._kept = b""
        self._start = 0

    def read(self, offset: int, length: int) -> bytes:
        end = self._start + len(self._kept)
        if offset < end:
            self._kept = self._kept[offset - self._start :]
        else:
            self._stream.skip(offset - end)
            self._kept = b""
        self._start = offset
        missing = length - len(self._kept)
        if missing > 0:
            self._kept += self._stream.take(missing)
        return self._kept[:length]


def _gguf(read: ReadAt, size: int) -> GgufHeader:
    if size == 0:
        raise UnsupportedArtifact(f"not a GGUF file: 0 bytes instead of {MAGIC!r}", remedy="upload it again")
    return parse_gguf(read, size)
