"""An archive at registration: read through once, front to back, with nothing written and little kept.

A gzip has no index, so that its whole content passes; of a plain tar only the headers are asked for. What is kept are
names, sizes, small texts and the headers of weights.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from standby.artifacts.archive_rules import (
    ArchiveLimits,
    BrokenArchive,
    MemberKind,
    Rejected,
    Roster,
    is_left_out,
    unwrapped,
    wrapper_of,
)
from standby.artifacts.contents import Found, located, look_into, patiently
from standby.artifacts.layout import CONFIG, INDEX_SUFFIX, PROPERTIES, TOKENIZER_CONFIG
from standby.artifacts.lfs import refuse_pointer
from standby.artifacts.sources import Source
from standby.artifacts.streams import ForwardStream, GzipStream, PlainStream
from standby.artifacts.tar import BLOCK, Body, members
from standby.domain.errors import EmptySource, UnsupportedArtifact
from standby.domain.model import Archive, Compression, Member, ObjectRef

CHUNK: Final = 8 << 20
MAX_KEPT_BYTES: Final = 256 << 20
"""Headers and texts of all members together."""

_TEXTS: Final = frozenset({CONFIG, TOKENIZER_CONFIG, PROPERTIES})
_GZIP_MAGIC: Final = b"\x1f\x8b"
_USTAR: Final = slice(257, 262)
_Read = Callable[[int, int], bytes]


class ReadCancelled(Exception):
    """Nobody waits for the archive any more; never leaves this package."""


@dataclass
class ArchiveContents:
    """The files of an archive, wrapper taken off, and what was read of them on the way."""

    where: str
    compression: Compression
    wrapper: str
    files: Sequence[Member]
    notes: tuple[str, ...]
    seen: Mapping[str, Found | UnsupportedArtifact] = field(repr=False)

    async def look(self, paths: Sequence[str]) -> Mapping[str, Found]:
        """Return what was read when the archive passed."""
        found: dict[str, Found] = {}
        for path in paths:
            item = self.seen[path]
            if isinstance(item, UnsupportedArtifact):
                raise located(self.where, item)
            found[path] = item
        return found

    def describe(self, chosen: Sequence[Member]) -> Archive:
        """Return the archive as a manifest keeps it, with the members that belong to the model."""
        return Archive(compression=self.compression, members=tuple(chosen), wrapper=self.wrapper)


def read_archive(source: Source, ref: ObjectRef, where: str, limits: ArchiveLimits, stop: threading.Event) -> ArchiveContents:
    """Read the tar ``ref`` through once. Blocking: for a thread; setting ``stop`` ends it with ReadCancelled.

    Raises UnsupportedArtifact naming the member, EmptySource, ArtifactChanged, SourceUnreachable.
    """

    def read(offset: int, length: int) -> bytes:
        if stop.is_set():
            raise ReadCancelled
        return patiently(source, ref, offset, length)

    try:
        compression = _compression(read, ref)
        walk = _Walk(limits)
        if compression is Compression.GZIP:
            chunks = _ahead(read, ref.size)
            try:
                walk.through(GzipStream(chunks, limits))
            finally:
                chunks.close()
        else:
            walk.through(PlainStream(read, ref.size))
    except UnsupportedArtifact as error:
        raise located(where, error) from None
    return walk.result(where, compression)


def _compression(read: _Read, ref: ObjectRef) -> Compression:
    start = read(0, min(ref.size, BLOCK))
    refuse_pointer(ref.path, start, ref.size)
    if start.startswith(_GZIP_MAGIC):
        return Compression.GZIP
    if start[_USTAR] == b"ustar" or ref.path.lower().endswith(".tar"):
        return Compression.NONE
    raise BrokenArchive(
        f"neither gzip nor tar: it begins with {start[:8]!r}",
        remedy="pack the model as .tar.gz or .tar, or register its folder",
    )


def _ahead(read: _Read, size: int) -> Generator[bytes]:
    """Yield the object in chunks; the next one is on its way while the last one is unpacked."""
    with ThreadPoolExecutor(1, thread_name_prefix="standby-archive") as pool:
        coming = None
        for start in range(0, size, CHUNK):
            arrived, coming = coming, pool.submit(read, start, min(CHUNK, size - start))
            if arrived is not None:
                yield arrived.result()
        if coming is not None:
            yield coming.result()


class _Walk:
    """One pass: judges every member by the shared rules and looks into those that say something about the model."""

    def __init__(self, limits: ArchiveLimits) -> None:
        self._limits = limits
        self._roster = Roster(limits)
        self._seen: dict[str, Found | UnsupportedArtifact] = {}
        self._kept_bytes = 0

    def through(self, stream: ForwardStream) -> None:
        for entry, body in members(stream, self._limits):
            path = self._roster.admit(entry.name, entry.kind, entry.size)
            if isinstance(path, Rejected):
                raise BrokenArchive(
                    f"member {entry.name[:200]!r} {path.reason}", remedy="pack the model's files again, without that member"
                )
            if path is not None and entry.kind is MemberKind.FILE and _tells(path):
                self._look(path, body)

    def result(self, where: str, compression: Compression) -> ArchiveContents:
        everything = self._roster.files
        wrapper = wrapper_of(everything)
        shorter = {path: unwrapped(path, wrapper) for path in everything}
        reasons = {path: is_left_out(short) for path, short in shorter.items()}
        files = [Member(path=shorter[path], size=size) for path, size in everything.items() if reasons[path] is None]
        if not files or not any(file.size for file in files):
            raise EmptySource(
                f"{where}: {len(everything)} files, {len(files)} of them of a model, and all of those of 0 bytes",
                remedy="pack the model's own files and upload the archive again",
            )
        counted = Counter(reason for reason in reasons.values() if reason is not None)
        return ArchiveContents(
            where=where,
            compression=compression,
            wrapper=wrapper,
            files=sorted(files, key=lambda file: file.path),
            notes=(
                *([f"unwrapped folder {wrapper}"] if wrapper else []),
                *(f"left out {count} files: {reason}" for reason, count in counted.items()),
            ),
            seen={shorter[path]: found for path, found in self._seen.items() if reasons[path] is None},
        )

    def _look(self, path: str, body: Body) -> None:
        try:
            found = look_into(path.rpartition("/")[2], body, body.left)
        except BrokenArchive:
            raise
        except UnsupportedArtifact as error:
            # It may be a file that the model does not need, which only the whole listing can tell.
            self._seen[path] = error
            return
        self._seen[path] = found
        self._kept_bytes += len(found) if isinstance(found, bytes) else found.header_bytes
        if self._kept_bytes > MAX_KEPT_BYTES:
            raise BrokenArchive(
                f"headers and texts of more than {MAX_KEPT_BYTES} bytes up to {path!r}", remedy="pack one model alone"
            )


def _tells(path: str) -> bool:
    """True for what the facts come from; deeper than one folder only a GGUF is part of any model."""
    name = path.rpartition("/")[2]
    if is_left_out(path) is not None:
        return False
    if name.lower().endswith(".gguf"):
        return True
    return path.count("/") <= 1 and (name in _TEXTS or name.endswith((".safetensors", INDEX_SUFFIX)))
