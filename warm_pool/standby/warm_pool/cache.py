"""The node's artifact cache: verified model files by digest, each downloaded once, never changed, evicted when unused.

Everything here runs in one event loop; blocking work goes to threads. What lies on the disk: see ``cache_disk``.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from standby.artifacts.fetch import DISK_MARGIN, Progress, disk_full, fetch, is_full
from standby.domain.errors import DigestMismatch, DiskFull
from standby.domain.model import Manifest
from standby.domain.node import CachedArtifact
from standby.warm_pool import page_cache
from standby.warm_pool.cache_disk import CacheFolder, FileLock, StoredArtifact, StoredManifest
from standby.warm_pool.eviction import Candidate, Room, plan_eviction

_LOCK_RETRY: Final = 0.05
_WARM_SHARE: Final = 0.8

Fetch = Callable[[Manifest, Path, Progress], Coroutine[None, None, Mapping[str, str]]]


@dataclass(frozen=True)
class CacheStatistics:
    """Counts since the cache was opened."""

    hits: int = 0
    joined: int = 0
    downloads: int = 0
    evictions: int = 0
    quarantined: int = 0
    swept: int = 0


class _Flight:
    """One download that any number of callers wait for."""

    def __init__(self, digest: str) -> None:
        self.digest = digest
        self.listeners: list[Progress] = []
        self.task: asyncio.Task[Path]

    def start(self, work: Coroutine[None, None, Path], landed: Callable[[_Flight], None]) -> None:
        """Begin; ``landed`` is called at the end, whatever it is."""
        self.task = asyncio.create_task(work, name=f"fetch {self.digest[:12]}")
        self.task.add_done_callback(lambda _: self._ended(landed))

    def _ended(self, landed: Callable[[_Flight], None]) -> None:
        landed(self)
        if not self.task.cancelled():
            self.task.exception()  # seen, also when every caller was cancelled before

    def report(self, done: int, total: int) -> None:
        """Tell every waiting caller."""
        for listener in self.listeners:
            listener(done, total)


class ArtifactCache:
    """Complete artifacts below ``root``, at most ``capacity_bytes`` of them.

    ``fetcher`` is how bytes arrive (default: standby.artifacts.fetch); ``now`` orders the use of artifacts.
    """

    def __init__(
        self, root: Path, capacity_bytes: int, *, fetcher: Fetch = fetch, now: Callable[[], float] = time.time
    ) -> None:
        self._disk = CacheFolder(root)
        self._capacity = capacity_bytes
        self._fetch = fetcher
        self._now = now
        self._artifacts: dict[str, StoredArtifact] = {}
        self._flights: dict[str, _Flight] = {}
        self._reserved: dict[str, int] = {}
        self._pins: Counter[str] = Counter()
        self._use_locks: dict[str, FileLock] = {}
        self._making_room = asyncio.Lock()
        self._statistics = CacheStatistics()

    async def open(self) -> None:
        """Remove what dead processes left, take up every complete artifact, remove the others.

        Must be called before anything else. Sizes are checked here; ``verify`` checks every byte.
        """
        await asyncio.to_thread(self._disk.prepare)
        self._count(swept=await asyncio.to_thread(self._disk.sweep))
        for digest in await asyncio.to_thread(self._disk.digests):
            artifact = await asyncio.to_thread(self._disk.load, digest)
            if artifact is not None:
                self._artifacts[digest] = artifact
            elif await asyncio.to_thread(self._disk.withdraw, digest):
                self._count(quarantined=1)

    @property
    def used_bytes(self) -> int:
        """Bytes of all complete artifacts."""
        return sum(artifact.bytes for artifact in self._artifacts.values())

    @property
    def capacity_bytes(self) -> int:
        """The cap."""
        return self._capacity

    def statistics(self) -> CacheStatistics:
        """Return the counts."""
        return self._statistics

    def contents(self) -> tuple[CachedArtifact, ...]:
        """Return every complete artifact, ordered by digest."""
        return tuple(
            CachedArtifact(digest=digest, bytes=artifact.bytes, pinned=self._pins[digest] > 0)
            for digest, artifact in sorted(self._artifacts.items())
        )

    def locate(self, digest: str) -> Path | None:
        """Return the folder that the manifest's paths are relative to, if the artifact is complete; else None."""
        artifact = self._artifacts.get(digest)
        if artifact is None:
            return None
        if not artifact.files.is_dir():  # another process on this root evicted it
            del self._artifacts[digest]
            return None
        return artifact.files

    def sha256(self, digest: str) -> Mapping[str, str]:
        """Return path → SHA-256 (hex) of a complete artifact's files; empty when it is not there."""
        artifact = self._artifacts.get(digest)
        return artifact.stored.sha256 if artifact is not None else {}

    def pin(self, digest: str) -> None:
        """Count one more user of ``digest``; what has a user is never evicted, by no process. May come before ensure."""
        if self._pins[digest] == 0:
            self._use_locks[digest] = self._disk.lock_use(digest)
        self._pins[digest] += 1

    def unpin(self, digest: str) -> None:
        """Count one user less."""
        assert self._pins[digest] > 0, f"artifact {digest} was not pinned"
        self._pins[digest] -= 1
        if self._pins[digest] == 0:
            del self._pins[digest]
            self._use_locks.pop(digest).release()

    async def ensure(self, manifest: Manifest, progress: Progress) -> Path:
        """Return the artifact's folder; download it first if need be, once however many ask.

        A caller may be cancelled; the download goes on while another one waits for it. Raises what
        standby.artifacts.fetch raises, and DiskFull when there is no room under the cap.
        """
        digest = manifest.digest
        folder = self.locate(digest)
        if folder is not None:
            self._count(hits=1)
            await self._used(digest)
            progress(manifest.total_bytes, manifest.total_bytes)
            return folder
        flight = self._flights.get(digest)
        if flight is None:
            flight = self._launch(manifest)
        else:
            self._count(joined=1)
        return await self._join(flight, progress)

    async def verify(self, digest: str) -> None:
        """Hash every file of a complete artifact again; one that differs is removed and DigestMismatch raised."""
        artifact = self._artifacts[digest]
        for ref in artifact.stored.manifest.objects:
            wanted = artifact.stored.sha256[ref.path]
            found = await asyncio.to_thread(_sha256, artifact.files / ref.path)
            if found != wanted:
                del self._artifacts[digest]
                await asyncio.to_thread(partial(self._disk.withdraw, digest, force=True))
                self._count(quarantined=1)
                raise DigestMismatch(
                    f"{ref.path} of artifact {digest[:12]} has SHA-256 {found}, not {wanted}: removed from the cache",
                    remedy="check the disk; the next activation downloads it again",
                )

    async def warm(self, digest: str) -> None:
        """Read the artifact into the page cache, in file order, at most four fifths of the memory available."""
        artifact = self._artifacts[digest]
        stop = threading.Event()
        limit = int(psutil.virtual_memory().available * _WARM_SHARE)
        try:
            await asyncio.to_thread(page_cache.read_in, artifact.paths(), stop, limit)
        finally:
            stop.set()  # a cancelled caller must not leave a thread reading gigabytes

    async def resident(self, digest: str) -> int:
        """Return how many bytes of the artifact are in the page cache."""
        return await asyncio.to_thread(page_cache.resident_bytes, self._artifacts[digest].paths())

    async def chill(self, digest: str) -> None:
        """Give the artifact's pages back to the kernel, as far as no process maps them."""
        await asyncio.to_thread(page_cache.give_back, self._artifacts[digest].paths())

    async def close(self) -> None:
        """Cancel every download, wait for their ends, give all pins back."""
        flights = [flight.task for flight in self._flights.values()]
        for task in flights:
            task.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        for lock in self._use_locks.values():
            lock.release()
        self._use_locks.clear()
        self._pins.clear()

    def _launch(self, manifest: Manifest) -> _Flight:
        flight = _Flight(manifest.digest)
        self._flights[flight.digest] = flight
        flight.start(self._bring(manifest, flight.report), self._landed)
        return flight

    def _landed(self, flight: _Flight) -> None:
        if self._flights.get(flight.digest) is flight:
            del self._flights[flight.digest]

    async def _join(self, flight: _Flight, progress: Progress) -> Path:
        flight.listeners.append(progress)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.listeners.remove(progress)
            if not flight.listeners and not flight.task.done():
                # Nobody waits any more. Forgotten at once, so that the next caller does not join an ending download.
                self._landed(flight)
                flight.task.cancel()

    async def _bring(self, manifest: Manifest, report: Progress) -> Path:
        digest = manifest.digest
        async with self._alone(digest):
            found = await asyncio.to_thread(self._disk.load, digest)
            if found is None:
                await self._clear_broken(digest)
                found = await self._download(manifest, report)
            self._artifacts[digest] = found
        await self._used(digest)
        return found.files

    async def _download(self, manifest: Manifest, report: Progress) -> StoredArtifact:
        await self._make_room(manifest)
        try:
            with self._disk.new_temporary() as temporary:
                sha256 = await self._fetch(manifest, temporary.path / "files", report)
                stored = StoredManifest(manifest=manifest, sha256=sha256)
                published = await asyncio.to_thread(self._disk.publish, temporary, stored)
        except OSError as error:
            if not is_full(error):
                raise
            raise disk_full(self._disk.root, manifest.total_bytes, error) from error
        finally:
            del self._reserved[manifest.digest]
        self._count(downloads=1)
        return published

    async def _make_room(self, manifest: Manifest) -> None:
        """Evict until the artifact fits, and reserve its bytes. Raises DiskFull."""
        in_use: set[str] = set()
        async with self._making_room:
            await asyncio.to_thread(self._take_up_others)
            while True:
                plan = plan_eviction(self._candidates(in_use), self._room(), manifest.total_bytes)
                if not plan.fits:
                    raise DiskFull(
                        f"artifact {manifest.source_uri} does not fit into the cache {self._disk.root}: {plan.reason}",
                        remedy="raise the cache's capacity, or delete endpoints whose models it holds",
                    )
                if not plan.victims:
                    self._reserved[manifest.digest] = manifest.total_bytes
                    return
                for digest in plan.victims:
                    if not await self._evict(digest):
                        in_use.add(digest)

    def _room(self) -> Room:
        return Room(self._capacity, sum(self._reserved.values()), self._disk.disk_free() - DISK_MARGIN)

    def _candidates(self, in_use: set[str]) -> list[Candidate]:
        return [
            Candidate(digest, artifact.bytes, artifact.last_used, self._pins[digest] > 0 or digest in in_use)
            for digest, artifact in self._artifacts.items()
        ]

    async def _evict(self, digest: str) -> bool:
        """Remove one artifact; False when another process uses it."""
        if self._pins[digest] > 0:  # pinned since the plan was made
            return False
        artifact = self._artifacts.pop(digest)
        if not await asyncio.to_thread(self._disk.withdraw, digest):
            self._artifacts[digest] = artifact
            return False
        self._count(evictions=1)
        return True

    async def _clear_broken(self, digest: str) -> None:
        """Remove what lies under the artifact's name and is not whole. Raises DigestMismatch while it is in use."""
        if not await asyncio.to_thread(self._disk.exists, digest):
            return
        if not await asyncio.to_thread(self._disk.withdraw, digest):
            raise DigestMismatch(
                f"artifact {digest[:12]} in {self._disk.root} is broken and still in use", remedy="stop the engines that use it"
            )
        self._count(quarantined=1)

    def _take_up_others(self) -> None:
        """Bring the index up to date with what other processes on this root have added or evicted; in a thread."""
        there = set(self._disk.digests())
        for digest in [digest for digest in self._artifacts if digest not in there]:
            self._artifacts.pop(digest, None)
        for digest in there - self._artifacts.keys():
            artifact = self._disk.load(digest)
            if artifact is not None:
                self._artifacts[digest] = artifact

    async def _used(self, digest: str) -> None:
        at = self._now()
        artifact = self._artifacts.get(digest)
        if artifact is not None:
            self._artifacts[digest] = replace(artifact, last_used=at)
        await asyncio.to_thread(self._disk.touch, digest, at)

    @asynccontextmanager
    async def _alone(self, digest: str) -> AsyncIterator[None]:
        """Hold the right to download ``digest``, against every process on this root."""
        # The other holder is another process: there is no event to wait for.
        while (lock := self._disk.try_lock(digest, "fetch")) is None:  # noqa: ASYNC110
            await asyncio.sleep(_LOCK_RETRY)
        try:
            yield
        finally:
            lock.release()

    def _count(self, **more: int) -> None:
        now = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = replace(self._statistics, **now)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
