"""The node's artifact cache: verified model files by digest, each downloaded once, never changed, evicted when unused.

Everything here runs in one event loop; blocking work goes to threads. What lies on the disk: see ``cache_disk``.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from standby.artifacts.crew import uninterrupted
from standby.artifacts.fetch import Opener, Progress
from standby.artifacts.volume import DISK_MARGIN, disk_full, is_full
from standby.domain.errors import Conflict, DigestMismatch, DiskFull, NotFound
from standby.domain.model import Manifest
from standby.domain.node import CachedArtifact
from standby.warm_pool import cache_pages
from standby.warm_pool.cache_arrival import OnPath, arrive, bytes_to_write, work_bytes
from standby.warm_pool.cache_disk import CacheFolder, OperatorPin, StoredArtifact, StoredManifest
from standby.warm_pool.cache_flight import Flight, Listener
from standby.warm_pool.cache_options import CacheOptions, CacheStatistics
from standby.warm_pool.cache_temporary import TemporaryFolder
from standby.warm_pool.cache_users import Users
from standby.warm_pool.eviction import Candidate, EvictionPlan, Room, plan_eviction
from standby.warm_pool.warming import Warmed

_LOCK_RETRY: Final = 0.05


class ArtifactCache:
    """Complete artifacts below ``root``, at most ``capacity_bytes`` of them."""

    def __init__(self, root: Path, capacity_bytes: int, options: CacheOptions | None = None) -> None:
        self._disk = CacheFolder(root)
        self._capacity = capacity_bytes
        self._options = options or CacheOptions()
        self._artifacts: dict[str, StoredArtifact] = {}
        self._flights: dict[str, Flight] = {}
        self._reserved: dict[str, int] = {}
        self._users = Users(self._disk.lock_use)
        self._resident: Mapping[str, int] = {}
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
            elif await asyncio.to_thread(partial(self._disk.withdraw, digest, pinned_too=True)):
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
        return tuple(self.describe(digest) for digest in sorted(self._artifacts))

    def describe(self, digest: str) -> CachedArtifact:
        """Return what there is to say of one complete artifact. Raises NotFound."""
        artifact = self._complete(digest)
        users = self._users.of(digest)
        return CachedArtifact(
            digest=digest,
            bytes=artifact.bytes,
            pinned=bool(users) or artifact.pin is not None,
            used_by=users,
            pinned_by=artifact.pin.by if artifact.pin is not None else "",
            source_uri=artifact.stored.manifest.source_uri,
            files=len(artifact.stored.manifest.files),
            resident_bytes=self._resident.get(digest),
            last_used_at=artifact.last_used,
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

    def pin(self, digest: str, user: str = "") -> None:
        """Count one more use of ``digest``; what has a user is never evicted, by no process. May come before ensure."""
        self._users.add(digest, user)

    def unpin(self, digest: str, user: str = "") -> None:
        """Count one use less."""
        self._users.remove(digest, user)

    async def ensure(
        self, manifest: Manifest, progress: Progress, on_path: OnPath | None = None, *, opener: Opener | None = None
    ) -> Path:
        """Return the artifact's folder; download it first if need be, once however many ask.

        ``on_path`` hears of each file as it is whole, before all are; of none where the artifact is there already. A caller
        may be cancelled; the download goes on while another one waits for it. ``opener`` is how this caller reaches the bytes;
        who joins a download waits for that of the first. Raises what standby.artifacts.fetch and standby.artifacts.unpack
        raise, and DiskFull when there is no room under the cap.
        """
        digest = manifest.digest
        folder = self.locate(digest)
        if folder is not None:
            self._count(hits=1)
            await self._used(digest)
            progress(work_bytes(manifest), work_bytes(manifest))
            return folder
        flight = self._flights.get(digest)
        if flight is None:
            flight = self._launch(manifest, opener)
        else:
            self._count(joined=1)
        return await self._join(flight, Listener(progress, on_path))

    async def keep(self, digest: str, by: str) -> bool:
        """Pin for an operator: never evicted until ``let_go``, also after restarts. False when it was pinned before.

        Raises NotFound.
        """
        artifact = self._complete(digest)
        if artifact.pin is not None:
            return False
        pin = OperatorPin(by=by, at=self._options.now())
        if not await uninterrupted(partial(self._disk.keep, digest, pin)):
            self._artifacts.pop(digest, None)
            raise _not_here(digest)
        self._artifacts[digest] = replace(self._artifacts.get(digest, artifact), pin=pin)
        return True

    async def let_go(self, digest: str) -> bool:
        """Take an operator's pin off; False when there was none. Raises NotFound."""
        artifact = self._complete(digest)
        if artifact.pin is None:
            return False
        await uninterrupted(partial(self._disk.let_go, digest))
        self._artifacts[digest] = replace(self._artifacts.get(digest, artifact), pin=None)
        return True

    async def evict(self, digest: str) -> int:
        """Remove one artifact on order and return its bytes.

        Raises NotFound; Conflict when it is in use, which says by whom, or pinned by an operator.
        """
        artifact = self._complete(digest)
        self._refuse_held(digest, artifact)
        if not await self._evict(digest):
            self._refuse_held(digest, self._artifacts.get(digest, artifact))
            raise Conflict(
                f"artifact {digest[:12]} is in use by another process on the cache {self._disk.root}",
                remedy="stop what uses it there",
            )
        return artifact.bytes

    async def verify(self, digest: str) -> None:
        """Hash every file of a complete artifact again; one that differs is removed and DigestMismatch raised."""
        artifact = self._complete(digest)
        for item in artifact.stored.manifest.files:
            wanted = artifact.stored.sha256[item.path]
            found = await asyncio.to_thread(_sha256, artifact.files / item.path)
            if found != wanted:
                self._artifacts.pop(digest, None)
                await asyncio.to_thread(partial(self._disk.withdraw, digest, force=True, pinned_too=True))
                self._count(quarantined=1)
                raise DigestMismatch(
                    f"{item.path} of artifact {digest[:12]} has SHA-256 {found}, not {wanted}: removed from the cache",
                    remedy="check the disk; the next activation downloads it again",
                )

    async def warm(self, digest: str) -> Warmed:
        """Read the artifact into the page cache, or say why not. Raises NotFound."""
        return await cache_pages.warm(self._complete(digest), self._options)

    async def measure(self) -> None:
        """Measure how much of each artifact is in the page cache, for ``contents``."""
        self._resident = await cache_pages.resident_of_all(self._artifacts)

    async def resident(self, digest: str) -> int:
        """Return how many bytes of the artifact are in the page cache. Raises NotFound."""
        return await cache_pages.resident(self._complete(digest))

    async def chill(self, digest: str) -> None:
        """Give the artifact's pages back to the kernel, as far as no process maps them. Raises NotFound."""
        await cache_pages.give_back(self._complete(digest))

    async def close(self) -> None:
        """Cancel every download, wait for their ends, forget all users."""
        flights = [flight.task for flight in self._flights.values()]
        for task in flights:
            task.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        self._users.clear()

    def _complete(self, digest: str) -> StoredArtifact:
        artifact = self._artifacts.get(digest)
        if artifact is None:
            raise _not_here(digest)
        return artifact

    def _refuse_held(self, digest: str, artifact: StoredArtifact) -> None:
        users = self._users.of(digest)
        if users:
            raise Conflict(
                f"artifact {digest[:12]} is in use by {', '.join(user or 'this process' for user in users)}",
                remedy="stop or delete the endpoints that use it",
            )
        if artifact.pin is not None:
            raise Conflict(f"artifact {digest[:12]} is pinned by {artifact.pin.by}", remedy="unpin it first")

    # ---- downloads -------------------------------------------------------------------------------------------------

    def _launch(self, manifest: Manifest, opener: Opener | None) -> Flight:
        flight = Flight(manifest.digest)
        self._flights[flight.digest] = flight
        flight.start(self._bring(manifest, flight, opener), self._landed)
        return flight

    def _landed(self, flight: Flight) -> None:
        if self._flights.get(flight.digest) is flight:
            del self._flights[flight.digest]

    async def _join(self, flight: Flight, listener: Listener) -> Path:
        flight.join(listener)
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.listeners.remove(listener)
            if not flight.listeners and not flight.task.done():
                # Nobody waits any more. Forgotten at once, so that the next caller does not join an ending download.
                self._landed(flight)
                flight.task.cancel()

    async def _bring(self, manifest: Manifest, flight: Flight, opener: Opener | None) -> Path:
        digest = manifest.digest
        async with self._alone(digest):
            found = await asyncio.to_thread(self._disk.load, digest)
            if found is None:
                await self._clear_broken(digest)
                found = await self._download(manifest, flight, opener)
            self._artifacts[digest] = found
        await self._used(digest)
        return found.files

    async def _download(self, manifest: Manifest, flight: Flight, opener: Opener | None) -> StoredArtifact:
        options = self._options
        how = options.fetch if opener is None else replace(options.fetch, opener=opener)
        try:
            with self._disk.temporary_for(manifest.digest) as temporary:
                await self._make_room(manifest, temporary)
                sha256 = await arrive(options.fetcher, how, manifest, temporary, flight.report, flight.file_came)
                stored = StoredManifest(manifest=manifest, sha256=sha256)
                published = await uninterrupted(partial(self._disk.publish, temporary, stored))
        except OSError as error:
            if not is_full(error):
                raise
            raise disk_full(self._disk.root, manifest.total_bytes, error) from error
        finally:
            self._reserved.pop(manifest.digest, None)
        self._count(downloads=1)
        return published

    # ---- room ------------------------------------------------------------------------------------------------------

    async def _make_room(self, manifest: Manifest, temporary: TemporaryFolder) -> None:
        """Evict until the artifact fits, and reserve its bytes. Raises DiskFull."""
        incoming = sum(item.size for item in manifest.files)
        to_write = await asyncio.to_thread(bytes_to_write, manifest, temporary)
        in_use: set[str] = set()
        async with self._making_room:
            await asyncio.to_thread(self._take_up_others)
            left = await asyncio.to_thread(self._disk.left_bytes)
            while True:
                plan = plan_eviction(self._candidates(in_use), self._room(left), incoming, to_write)
                if left and (plan.victims or not plan.fits):
                    # Half a download is worth less than any whole artifact.
                    await asyncio.to_thread(partial(self._disk.sweep, resumable_too=True))
                    left = 0
                elif not plan.fits:
                    raise self._no_room(manifest, plan)
                elif not plan.victims:
                    self._reserved[manifest.digest] = incoming
                    return
                else:
                    in_use |= {digest for digest in plan.victims if not await self._evict(digest)}

    def _no_room(self, manifest: Manifest, plan: EvictionPlan) -> DiskFull:
        return DiskFull(
            f"artifact {manifest.source_uri} does not fit into the cache {self._disk.root}: {plan.reason}",
            remedy="raise the cache's capacity, unpin artifacts, or delete endpoints whose models it holds",
        )

    def _room(self, left: int) -> Room:
        return Room(self._capacity, sum(self._reserved.values()) + left, self._disk.disk_free() - DISK_MARGIN)

    def _candidates(self, in_use: set[str]) -> list[Candidate]:
        return [
            Candidate(
                digest,
                artifact.bytes,
                artifact.last_used,
                bool(self._users.of(digest)) or bool(artifact.pin) or digest in in_use,
            )
            for digest, artifact in self._artifacts.items()
        ]

    async def _evict(self, digest: str) -> bool:
        """Remove one artifact; False when it is in use or pinned, here or by another process."""
        if self._users.of(digest) or digest not in self._artifacts:  # since the plan was made
            return False
        self._artifacts.pop(digest)
        if not await asyncio.to_thread(self._disk.withdraw, digest):
            artifact = await asyncio.to_thread(self._disk.load, digest)
            if artifact is not None:
                self._artifacts[digest] = artifact
            return False
        self._count(evictions=1)
        return True

    async def _clear_broken(self, digest: str) -> None:
        """Remove what lies under the artifact's name and is not whole. Raises DigestMismatch while it is in use."""
        if not await asyncio.to_thread(self._disk.exists, digest):
            return
        if not await asyncio.to_thread(partial(self._disk.withdraw, digest, pinned_too=True)):
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
        at = self._options.now()
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


def _not_here(digest: str) -> NotFound:
    return NotFound(f"artifact {digest[:12]} is not in this node's cache", remedy="`standby cache ls` shows what is")
