"""Download of a whole artifact: ranged, parallel, pinned to the manifest, hashed, flushed to the disk.

Bytes come and are written in the threads of a crew, piece by piece of a chunk; all counting happens in the event loop.
Each write opens the file for itself: a cancelled download can then neither write into a file that somebody else has opened
since, nor keep a descriptor open.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from standby.artifacts import volume
from standby.artifacts.checksums import check_etag, md5_of
from standby.artifacts.crew import Crew, uninterrupted
from standby.artifacts.files import FileSource
from standby.artifacts.journal import Arrived, Heading, Journal, read_journal
from standby.artifacts.location import SourceInterrupted
from standby.artifacts.pace import Pacer
from standby.artifacts.sources import Source, open_source
from standby.domain.errors import ArtifactError, IncompleteDownload, SourceUnreachable, UnsupportedArtifact
from standby.domain.model import Manifest, ObjectRef

Progress = Callable[[int, int], None]
"""``progress(done_bytes, total_bytes)``, called in the event loop; never goes backwards."""

OnFile = Callable[[str], None]
"""``on_file(path)``, called in the event loop when that file of the manifest is whole and verified."""

Opener = Callable[[Manifest], Source]
"""Where a manifest's bytes are read; another node that has them can be one."""

CHUNK_BYTES: Final = 16 << 20
PARALLEL: Final = 4
BACKOFF: Final = (0.1, 0.4, 1.5)
_JITTER: Final = 0.5
_WEIGHTS: Final = (".safetensors", ".gguf", ".tar", ".gz", ".tgz", ".bin", ".pt", ".pth")


@dataclass(frozen=True)
class FetchOptions:
    """How a download behaves.

    ``journal`` is a file beside ``into``: with it, what arrived before a failure that may pass is kept there, and the next
    call goes on from it. ``environment`` holds the credentials of the default ``opener``. ``chunk_bytes`` is the most that
    one request asks for, ``PARALLEL`` of them at once; in memory are a few pieces of each. ``backoff`` is how many seconds
    to wait, more or less, before each further attempt at a chunk.
    """

    opener: Opener | None = None
    pacer: Pacer = field(default_factory=Pacer)
    journal: Path | None = None
    environment: Mapping[str, str] | None = None
    chunk_bytes: int = CHUNK_BYTES
    backoff: tuple[float, ...] = BACKOFF


async def fetch(
    manifest: Manifest,
    into: Path,
    progress: Progress,
    *,
    on_file: OnFile | None = None,
    options: FetchOptions = FetchOptions(),
) -> Mapping[str, str]:
    """Download every object of ``manifest`` below ``into`` and return path → SHA-256 (hex) of what lies there.

    Small files come first, so that an engine can start on them while weights arrive. ``into`` is created, or must be empty
    unless a journal tells of it. Without a journal a failure leaves nothing in ``into``. Raises ArtifactChanged,
    DigestMismatch, IncompleteDownload, SourceUnreachable, DiskFull, UnsupportedArtifact.
    """
    source = (options.opener or partial(_open, options.environment))(manifest)
    # Before anything that would be undone: a folder that is somebody else's stays as it is.
    earlier = await asyncio.to_thread(_claim, manifest, into, options.journal)
    download = _Download(source, manifest, into, progress, on_file or (lambda _path: None), options, earlier)
    try:
        return await download.run()
    except BaseException as error:
        if options.journal is None or not may_pass(error):
            await asyncio.shield(asyncio.to_thread(_discard, into, options.journal))
        raise


def may_pass(error: BaseException) -> bool:
    """True for failures of a download after which what arrived is still worth having."""
    return isinstance(error, (IncompleteDownload, SourceUnreachable, asyncio.CancelledError))


def in_order(objects: Sequence[ObjectRef]) -> tuple[ObjectRef, ...]:
    """Return the objects as they should arrive: config.json, other small ones by size, then weights as they stand."""
    small = [ref for ref in objects if not ref.path.endswith(_WEIGHTS)]
    weights = [ref for ref in objects if ref.path.endswith(_WEIGHTS)]
    return (*sorted(small, key=lambda ref: (ref.path != "config.json", ref.size)), *weights)


@dataclass(frozen=True)
class _Chunk:
    ref: ObjectRef
    index: int
    start: int
    length: int

    @property
    def key(self) -> tuple[str, int]:
        return self.ref.path, self.index


@dataclass(frozen=True)
class _Prepared:
    """What lay in the folder before: chunks of an earlier attempt, whole files that were cloned."""

    chunk_bytes: int
    earlier: Mapping[tuple[str, int], str]
    cloned: frozenset[str]


@dataclass
class _Download:
    """One run."""

    source: Source
    manifest: Manifest
    into: Path
    progress: Progress
    on_file: OnFile
    options: FetchOptions
    earlier: Arrived | None
    done_bytes: int = 0
    begun: bool = False
    # One event per chunk, so that the hash can follow the download in file order while later chunks still arrive.
    arrived: dict[tuple[str, int], asyncio.Event] = field(default_factory=dict)

    async def run(self) -> Mapping[str, str]:
        """Prepare, fetch, hash and flush; the first failure ends the rest."""
        prepared = await uninterrupted(self._prepare)
        journal = self._journal(prepared)
        chunks = self._chunks(prepared)
        self.progress(0, self.manifest.total_bytes)
        # Two hashers: SHA-256 and MD5 of one chunk go side by side.
        readers, hashers = Crew(PARALLEL, "standby-fetch"), Crew(2, "standby-hash")
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(PARALLEL):
                    group.create_task(self._work(chunks, readers, prepared, journal))
                digests = group.create_task(self._hash_all(hashers, prepared))
        except BaseExceptionGroup as failures:
            raise self._first(failures) from None
        finally:
            readers.dismiss()
            hashers.dismiss()
            if journal is not None:
                journal.close()
        return digests.result()

    # ---- before ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> _Prepared:
        """Check the space and create every file in its full size, so that a full disk shows before the download."""
        earlier = self.earlier
        cloned = frozenset() if earlier is not None else frozenset(self._clone())
        missing = sum(volume.missing_bytes(self.into / ref.path, ref.size) for ref in self.manifest.objects)
        # A later attempt whose files are all there needs no margin: what is reserved stays reserved.
        if missing and volume.free_bytes(self.into) < missing + volume.DISK_MARGIN:
            raise volume.disk_full(self.into, missing + volume.DISK_MARGIN)
        try:
            for ref in self.manifest.objects:
                volume.create(self.into / ref.path, ref.size)
        except OSError as error:
            raise self._disk_error(error) from error
        if earlier is not None:
            return _Prepared(earlier.heading.chunk_bytes, earlier.chunks, cloned)
        return _Prepared(self.options.pacer.portion(self.options.chunk_bytes, PARALLEL), {}, cloned)

    def _clone(self) -> Iterator[str]:
        """Share the bytes of files on the same disk instead of copying them, where the file system can."""
        if not isinstance(self.source, FileSource):
            return
        for ref in self.manifest.objects:
            try:
                state = volume.clone(Path(ref.key), self.into / ref.path)
            except OSError:
                return  # the ordinary way says in words what is wrong
            if state is None:
                return
            # Still the registered file, and the one that was cloned: then nobody wrote into it meanwhile.
            self.source.read_blocking(ref, 0, 0)
            now = Path(ref.key).stat()
            if (state.st_ino, state.st_mtime_ns, state.st_size) == (now.st_ino, now.st_mtime_ns, now.st_size):
                yield ref.path
            else:
                (self.into / ref.path).unlink()

    def _journal(self, prepared: _Prepared) -> Journal | None:
        if self.options.journal is None:
            return None
        return Journal(self.options.journal, Heading(manifest=self.manifest, chunk_bytes=prepared.chunk_bytes))

    def _chunks(self, prepared: _Prepared) -> Iterator[_Chunk]:
        planned = [
            _Chunk(ref, index, start, min(prepared.chunk_bytes, ref.size - start))
            for ref in in_order(self.manifest.objects)
            for index, start in enumerate(range(0, ref.size, prepared.chunk_bytes))
        ]
        self.arrived = {chunk.key: asyncio.Event() for chunk in planned}
        return iter(planned)

    # ---- during ----------------------------------------------------------------------------------------------------

    async def _work(self, chunks: Iterator[_Chunk], crew: Crew, prepared: _Prepared, journal: Journal | None) -> None:
        for chunk in chunks:
            if chunk.ref.path not in prepared.cloned and not await self._lies_there(chunk, crew, prepared):
                checksum = await self._bring(chunk, crew)
                if journal is not None:
                    journal.note(chunk.key, checksum)
            self.done_bytes += chunk.length
            self.arrived[chunk.key].set()
            self.progress(self.done_bytes, self.manifest.total_bytes)

    async def _lies_there(self, chunk: _Chunk, crew: Crew, prepared: _Prepared) -> bool:
        """True when an earlier attempt brought the chunk and the disk still has it."""
        wanted = prepared.earlier.get(chunk.key)
        if wanted is None:
            return False
        found = volume.Crc()
        try:
            await crew.run(partial(volume.feed, found, self.into / chunk.ref.path, chunk.start, chunk.length))
        except IncompleteDownload:
            return False  # the file has lost its end
        return found.hexdigest() == wanted

    async def _bring(self, chunk: _Chunk, crew: Crew) -> str:
        """Read a chunk and write it, patiently; return its checksum."""
        attempt = 0
        while True:
            await self.options.pacer.wait(chunk.length)
            try:
                return await crew.run(partial(_read_and_write, self.source, chunk, self.into))
            except SourceInterrupted as error:
                self.begun = self.begun or error.begun
                if attempt == len(self.options.backoff):
                    raise self._given_up(error) from None
                # Jittered, so that the chunks that one failure hit do not come back in lockstep.
                await asyncio.sleep(self.options.backoff[attempt] * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311 (no secret)
                attempt += 1
            except OSError as error:
                raise self._disk_error(error) from error

    async def _hash_all(self, crew: Crew, prepared: _Prepared) -> dict[str, str]:
        digests: dict[str, str] = {}
        async with asyncio.TaskGroup() as flushing:
            for ref in in_order(self.manifest.objects):
                digests[ref.path] = await self._hash(ref, crew, prepared.chunk_bytes)
                # Told before it is durable: a reader needs the bytes, not the disk's promise.
                self.on_file(ref.path)
                flushing.create_task(self._flush(ref))
        await asyncio.to_thread(volume.flush_folders, self.into)
        return digests

    async def _hash(self, ref: ObjectRef, crew: Crew, chunk_bytes: int) -> str:
        """Return a file's SHA-256, after its MD5 was compared with an ETag that is one."""
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        wanted: tuple[volume.Hasher, ...] = (sha256, md5) if md5_of(ref.etag) else (sha256,)
        path = self.into / ref.path
        for index, start in enumerate(range(0, ref.size, chunk_bytes)):
            await self.arrived[ref.path, index].wait()
            length = min(chunk_bytes, ref.size - start)
            await asyncio.gather(*(crew.run(partial(volume.feed, each, path, start, length)) for each in wanted))
        if md5 in wanted:
            await check_etag(self.source, ref, md5.hexdigest())
        return sha256.hexdigest()

    async def _flush(self, ref: ObjectRef) -> None:
        try:
            await asyncio.to_thread(volume.flush, self.into / ref.path)
        except OSError as error:
            raise self._disk_error(error) from error

    # ---- failures --------------------------------------------------------------------------------------------------

    def _given_up(self, error: SourceInterrupted) -> ArtifactError:
        if self.done_bytes == 0 and not self.begun:
            return error
        kept = "what arrived is kept and a retry goes on from there" if self.options.journal else "nothing partial was kept"
        return IncompleteDownload(
            f"incomplete download, {self.done_bytes} of {self.manifest.total_bytes} bytes: {error.message}",
            remedy=f"check the connection to the store and retry; {kept}",
        )

    def _disk_error(self, error: OSError) -> Exception:
        return volume.disk_full(self.into, self.manifest.total_bytes, error) if volume.is_full(error) else error

    @staticmethod
    def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
        """Return the failure that says most: one of our own before a consequence of it."""
        flat = list(_flatten(failures))
        return next((error for error in flat if isinstance(error, ArtifactError)), flat[0])


def _claim(manifest: Manifest, into: Path, journal: Path | None) -> Arrived | None:
    """Make ``into`` ready for this manifest; return what an earlier attempt at it left there.

    What was left by an attempt at something else is removed. Raises UnsupportedArtifact for illegal paths and for a folder
    that holds what no journal tells of.
    """
    volume.check_paths(ref.path for ref in manifest.objects)
    into.mkdir(parents=True, exist_ok=True)
    told = read_journal(journal) if journal is not None else None
    if told is not None and told.heading.manifest.digest == manifest.digest:
        return told
    if journal is not None and journal.exists():
        _discard(into, journal)
    if any(into.iterdir()):
        raise UnsupportedArtifact(f"{into} is not empty", remedy="fetch into a folder of its own")
    return None


def _open(environment: Mapping[str, str] | None, manifest: Manifest) -> Source:
    return open_source(manifest.source_uri, manifest.source, environment=environment)


def _read_and_write(source: Source, chunk: _Chunk, into: Path) -> str:
    checksum, at = volume.Crc(), chunk.start
    for piece in source.pieces(chunk.ref, chunk.start, chunk.length):
        at += volume.write_at(into / chunk.ref.path, piece, at)
        checksum.update(piece)
    return checksum.hexdigest()


def _discard(into: Path, journal: Path | None) -> None:
    # First the journal: an interruption between the two then leaves bytes that nothing vouches for.
    if journal is not None:
        journal.unlink(missing_ok=True)
    volume.empty(into)


def _flatten(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flatten(error)
        else:
            yield error
