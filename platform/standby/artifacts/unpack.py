"""Unpacks a registered tar on a node: only the members of the manifest, read and judged as registration did."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from standby.artifacts import volume
from standby.artifacts.archive_rules import ArchiveLimits, Rejected, Roster, is_left_out, unwrapped
from standby.artifacts.crew import uninterrupted
from standby.artifacts.streams import ForwardStream, GzipStream, PlainStream
from standby.artifacts.tar import Body, TarEntry, members
from standby.domain.errors import ArtifactChanged, UnsupportedArtifact
from standby.domain.model import Archive, Compression

OnUnpacked = Callable[[str, int], None]
"""``on_file(path, bytes)``, called in the event loop when that member lies whole in its place."""

LIMITS: Final = ArchiveLimits()
_BLOCK: Final = 1 << 20
_REMEDY: Final = "pack the model again without it and register it again"
_AGAIN: Final = "upload the archive again and register it again"


async def unpack(
    packed: Path,
    archive: Archive,
    into: Path,
    *,
    on_file: OnUnpacked | None = None,
    limits: ArchiveLimits = LIMITS,
) -> Mapping[str, str]:
    """Unpack the tar ``packed`` into the new folder ``into``; return path → SHA-256 (hex) of every member.

    Exactly the members of ``archive`` come out, each with its size; what registration did not choose is passed over. Links,
    devices, paths that lead outside and bombs are refused before anything of them is written. Durable when it returns; a
    failure or a cancellation leaves nothing in ``into``. Raises UnsupportedArtifact, ArtifactChanged, DiskFull.
    """
    loop = asyncio.get_running_loop()
    stop = threading.Event()

    def tell(path: str, size: int) -> None:
        if on_file is not None:
            loop.call_soon_threadsafe(on_file, path, size)

    run = _Unpacking(packed, archive, into, limits, stop, tell)
    try:
        return await uninterrupted(run.run, on_cancel=stop.set)
    except asyncio.CancelledError:
        # It may have ended well before it heard of it.
        await uninterrupted(partial(volume.empty, into))
        raise


class _Stopped(Exception):
    """The caller does not wait any more."""


@dataclass
class _Unpacking:
    """One run, in one thread."""

    packed: Path
    archive: Archive
    into: Path
    limits: ArchiveLimits
    stop: threading.Event
    tell: OnUnpacked
    sha256: dict[str, str] = field(default_factory=dict)

    def run(self) -> Mapping[str, str]:
        """Do it; on any failure the folder is empty afterwards."""
        volume.check_paths(member.path for member in self.archive.members)
        self.into.mkdir(mode=0o700)
        try:
            self._check_space()
            with self.packed.open("rb", buffering=0) as file:
                self._take_all(self._stream(file.fileno()))
            volume.flush_folders(self.into)
        except BaseException as error:
            volume.empty(self.into)
            if isinstance(error, OSError) and volume.is_full(error):
                raise volume.disk_full(self.into, self.archive.total_bytes, error) from error
            raise
        return self.sha256

    def _check_space(self) -> None:
        if volume.free_bytes(self.into) < self.archive.total_bytes + volume.DISK_MARGIN:
            raise volume.disk_full(self.into, self.archive.total_bytes + volume.DISK_MARGIN)

    def _stream(self, descriptor: int) -> ForwardStream:
        size = os.fstat(descriptor).st_size
        if self.archive.compression is Compression.NONE:
            return PlainStream(lambda offset, length: os.pread(descriptor, length, offset), size)

        def chunks() -> Iterator[bytes]:
            for offset in range(0, size, _BLOCK):
                self._go_on()
                yield os.pread(descriptor, _BLOCK, offset)

        return GzipStream(chunks(), self.limits)

    def _take_all(self, stream: ForwardStream) -> None:
        wanted = {member.path: member.size for member in self.archive.members}
        roster = Roster(self.limits)
        try:
            for entry, body in members(stream, self.limits):
                path = self._judged(roster, entry)
                # What registration did not choose is no part of the model.
                if path in wanted:
                    self._check_size(path, entry.size, wanted[path])
                    self._write(path, body)
        except UnsupportedArtifact as error:
            raise UnsupportedArtifact(f"archive {self.packed.name}: {error.message}", remedy=error.remedy) from None
        missing = sorted(wanted.keys() - self.sha256.keys())
        if missing:
            raise ArtifactChanged(
                f"archive {self.packed.name}: {missing[0]!r} was registered and is not in it any more", remedy=_AGAIN
            )

    def _judged(self, roster: Roster, entry: TarEntry) -> str | None:
        """Return the path of a member that may be unpacked, None for the others. Raises UnsupportedArtifact."""
        found = roster.admit(entry.name, entry.kind, entry.size)
        if isinstance(found, Rejected):
            raise _refused(entry, found.reason)
        if found is None:
            return None
        path = unwrapped(found, self.archive.wrapper)
        if is_left_out(path) is not None:
            return None
        try:
            # The standard library's opinion as well: it knows the real folder on the disk.
            tarfile.data_filter(_as_tarinfo(path, entry), str(self.into))
        except tarfile.FilterError as error:
            raise _refused(entry, f"is refused: {error}") from None
        return path

    def _check_size(self, path: str, size: int, wanted: int) -> None:
        if size != wanted:
            raise ArtifactChanged(f"archive {self.packed.name}: {path!r} has {size} bytes instead of {wanted}", remedy=_AGAIN)

    def _write(self, path: str, body: Body) -> None:
        target = self.into / path
        target.parent.mkdir(parents=True, exist_ok=True)
        size = body.left
        hasher = hashlib.sha256()
        with target.open("xb", buffering=0) as file:
            while body.left:
                self._go_on()
                block = body.take(_BLOCK)
                hasher.update(block)
                view = memoryview(block)
                while view:
                    view = view[file.write(view) :]
            os.fsync(file.fileno())
        self.sha256[path] = hasher.hexdigest()
        self.tell(path, size)

    def _go_on(self) -> None:
        if self.stop.is_set():
            raise _Stopped


def _as_tarinfo(path: str, entry: TarEntry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path)
    member.size = entry.size
    return member


def _refused(entry: TarEntry, reason: str) -> UnsupportedArtifact:
    return UnsupportedArtifact(f"member {entry.name[:200]!r} {reason}", remedy=_REMEDY)
