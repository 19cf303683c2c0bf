"""Download of a whole artifact: ranged, parallel, pinned to the manifest, hashed, flushed to the disk.

Each chunk is written by a thread which opens the file for itself: a cancelled download can then neither write into a
file that somebody else has opened since, nor keep a descriptor open.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import Buffer

from standby.artifacts.location import SourceInterrupted, checked_path
from standby.artifacts.sources import Source, open_source
from standby.domain.errors import ArtifactError, DiskFull, IncompleteDownload, UnsupportedArtifact
from standby.domain.model import Manifest, ObjectRef

Progress = Callable[[int, int], None]
"""``progress(done_bytes, total_bytes)``, called in the event loop; never goes backwards."""

CHUNK_BYTES: Final = 8 << 20
PARALLEL: Final = 4
DISK_MARGIN: Final = 16 << 20
_ATTEMPTS: Final = 4
_BACKOFF: Final = (0.1, 0.4, 1.5)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_PREALLOCATION: Final = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})


async def fetch(
    manifest: Manifest,
    into: Path,
    progress: Progress,
    *,
    environment: Mapping[str, str] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> Mapping[str, str]:
    """Download every object of ``manifest`` below ``into`` and return path → SHA-256 (hex) of what lies there.

    ``into`` is created, or must be empty; at most ``PARALLEL`` chunks are held in memory. On any failure
    nothing is left in ``into``. Raises ArtifactChanged, IncompleteDownload, SourceUnreachable, DiskFull,
    UnsupportedArtifact.
    """
    source = open_source(manifest.source_uri, manifest.source, environment=environment)
    await asyncio.to_thread(_prepare, manifest, into)
    download = _Download(source, manifest, into, progress, chunk_bytes)
    try:
        return await download.run()
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_empty, into))
        raise


@dataclass(frozen=True)
class _Chunk:
    ref: ObjectRef
    index: int
    start: int
    length: int


@dataclass
class _Download:
    """One run; all counting happens in the event loop, all reading and writing in its own few threads."""

    source: Source
    manifest: Manifest
    into: Path
    progress: Progress
    chunk_bytes: int
    done_bytes: int = 0
    begun: bool = False
    # One event per chunk, so that the hash can follow the download in file order while later chunks still arrive.
    arrived: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)

    async def run(self) -> Mapping[str, str]:
        """Fetch, hash and flush; the first failure ends the rest."""
        chunks = self._chunks()
        self.progress(0, self.manifest.total_bytes)
        pool = ThreadPoolExecutor(PARALLEL + 1, thread_name_prefix="standby-fetch")
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(PARALLEL):
                    group.create_task(self._work(chunks, pool))
                digests = group.create_task(self._hash_all(pool))
        except BaseExceptionGroup as failures:
            raise self._first(failures) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return digests.result()

    def _chunks(self) -> Iterator[_Chunk]:
        planned = [
            _Chunk(ref, index, start, min(self.chunk_bytes, ref.size - start))
            for ref in self.manifest.objects
            for index, start in enumerate(range(0, ref.size, self.chunk_bytes))
        ]
        self.arrived = {(chunk.ref.path, chunk.index): asyncio.Event() for chunk in planned}
        return iter(planned)

    async def _work(self, chunks: Iterator[_Chunk], pool: ThreadPoolExecutor) -> None:
        for chunk in chunks:
            await self._bring(chunk, pool)
            self.done_bytes += chunk.length
            self.arrived[chunk.ref.path, chunk.index].set()
            self.progress(self.done_bytes, self.manifest.total_bytes)

    async def _bring(self, chunk: _Chunk, pool: ThreadPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        for attempt in range(_ATTEMPTS):
            try:
                content = await self.source.read(chunk.ref, chunk.start, chunk.length)
                return await loop.run_in_executor(pool, partial(_write, self.into, chunk, content))
            except SourceInterrupted as error:
                self.begun = self.begun or error.begun
                if attempt == _ATTEMPTS - 1:
                    raise self._given_up(error) from None
                await asyncio.sleep(_BACKOFF[attempt])
            except OSError as error:
                raise self._disk_error(error) from error
        return None

    async def _hash_all(self, pool: ThreadPoolExecutor) -> dict[str, str]:
        loop = asyncio.get_running_loop()
        digests: dict[str, str] = {}
        for ref in self.manifest.objects:
            hasher = hashlib.sha256()
            for index, start in enumerate(range(0, ref.size, self.chunk_bytes)):
                await self.arrived[ref.path, index].wait()
                length = min(self.chunk_bytes, ref.size - start)
                await loop.run_in_executor(pool, partial(_hash_part, hasher, self.into / ref.path, start, length))
            digests[ref.path] = hasher.hexdigest()
            try:
                await loop.run_in_executor(pool, partial(_flush, self.into / ref.path))
            except OSError as error:
                raise self._disk_error(error) from error
        await loop.run_in_executor(pool, partial(_flush_folders, self.into))
        return digests

    def _given_up(self, error: SourceInterrupted) -> ArtifactError:
        if self.done_bytes == 0 and not self.begun:
            return error
        return IncompleteDownload(
            f"incomplete download, {self.done_bytes} of {self.manifest.total_bytes} bytes: {error.message}",
            remedy="check the connection to the store and retry; nothing partial was kept",
        )

    def _disk_error(self, error: OSError) -> Exception:
        return disk_full(self.into, self.manifest.total_bytes, error) if is_full(error) else error

    @staticmethod
    def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return the failure that says most: one of our own before a consequence of it."""
        flat = list(_flatten(failures))
        return next((error for error in flat if isinstance(error, ArtifactError)), flat[0])


def is_full(error: OSError) -> bool:
    """True when the disk, the quota or the largest file allowed is full."""
    return error.errno in _FULL


def disk_full(folder: Path, needed: int, error: OSError | None = None) -> DiskFull:
    """Return the error that names the folder, the bytes needed and the bytes there."""
    free = _free_bytes(folder)
    cause = f" ({error.strerror})" if error is not None and error.strerror else ""
    return DiskFull(
        f"disk full: {needed} bytes needed below {folder}, {free} free{cause}",
        remedy="free space on that disk or give the artifact cache a larger one",
    )


def _prepare(manifest: Manifest, into: Path) -> None:
    """Check paths and space, then create every file in its full size, so that a full disk shows before the download."""
    paths = [checked_path(ref.path) for ref in manifest.objects]
    folders = {str(parent) for path in paths for parent in Path(path).parents}
    if len(set(paths)) != len(paths) or folders & set(paths):
        raise UnsupportedArtifact("two objects would have the same path on disk", remedy="rename one and register again")
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise UnsupportedArtifact(f"{into} is not empty", remedy="fetch into a folder of its own")
    if _free_bytes(into) < manifest.total_bytes + DISK_MARGIN:
        raise disk_full(into, manifest.total_bytes + DISK_MARGIN)
    try:
        for ref in manifest.objects:
            _create(into / ref.path, ref.size)
    except OSError as error:
        _empty(into)
        raise (disk_full(into, manifest.total_bytes, error) if is_full(error) else error) from error


def _create(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        if size == 0:
            return
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            if error.errno not in _NO_PREALLOCATION:
                raise
            file.truncate(size)


def _write(into: Path, chunk: _Chunk, content: Buffer) -> None:
    view = memoryview(content)
    # r+b never creates: after a cancelled download its folder is gone, and it stays gone.
    with (into / chunk.ref.path).open("r+b", buffering=0) as file:
        written = 0
        while written < chunk.length:
            written += os.pwrite(file.fileno(), view[written:], chunk.start + written)


def _hash_part(hasher: hashlib._Hash, path: Path, start: int, length: int) -> None:
    """Hash what the kernel holds for the file, not what arrived: a write that went wrong is found too."""
    buffer = memoryview(bytearray(min(length, 1 << 20)))
    with path.open("rb", buffering=0) as file:
        done = 0
        while done < length:
            got = os.preadv(file.fileno(), [buffer[: length - done]], start + done)
            if got == 0:
                raise IncompleteDownload(f"{path} ends after {start + done} bytes", remedy="retry the download")
            hasher.update(buffer[:got])
            done += got


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flush_folders(into: Path) -> None:
    for folder, _, _ in os.walk(into, topdown=False):
        flush_folder(Path(folder))


def flush_folder(folder: Path) -> None:
    """Make the names inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _empty(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)


def _free_bytes(folder: Path) -> int:
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def _flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten(error)
        else:
            yield error
