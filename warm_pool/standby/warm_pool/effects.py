"""Carries out what a life orders: each effect starts something and its answer comes back as an event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from standby.domain.endpoint import Failure
from standby.domain.errors import StandbyError
from standby.domain.instance import InstanceState, Rung
from standby.runtime import lifecycle_values as life
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.door import Door
from standby.warm_pool.engine_work import EngineWork, failure_in_words
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.stored_keys import OpenerFor, as_found
from standby.warm_pool.zygotes import ZygotePool

_log = logging.getLogger(__name__)

Post = Callable[[str, life.Event], None]
Failed = Callable[[Failure], life.Event]


@dataclass
class Effects:
    """The agent's hands. ``post`` puts an event into the agent's inbox; ``forgotten`` is told of an instance's end."""

    post: Post
    forgotten: Callable[[Managed], None]
    progressed: Callable[[Managed, int, int], None]
    cache: ArtifactCache
    door: Door
    memory: MemoryDesk
    engines: EngineWork
    wall: Callable[[], float]
    opener_for: OpenerFor = as_found

    @property
    def zygotes(self) -> ZygotePool:
        """The node's zygotes."""
        return self.engines.zygotes

    def carry_out(self, managed: Managed, effect: life.Effect) -> None:  # noqa: C901, PLR0912 - one line for each effect
        """Start ``effect``; never waits."""
        match effect:
            case life.Fetch():
                self._start(managed, "fetch", self._fetch(managed), life.FetchFailed)
            case life.CancelFetch():
                self._cancel(managed, "fetch")
            case life.Reserve(rung=_):
                self._after_stop(managed, lambda: self._reserve(managed))
            case life.Release(keep=keep):
                self._release(managed, keep)
            case life.Spawn(run=run):
                work = self.engines.spawn(managed, run, managed.tasks.get("stop"))
                self._start(managed, "spawn", work, partial(life.StartFailed, run))
            case life.WaitLoaded(run=run):
                self._start(managed, "engine", self.engines.wait_loaded(managed, run), partial(life.StartFailed, run))
            case life.Probe(run=run):
                self._start(managed, "engine", self.engines.probe(managed, run), partial(life.ProbeFailed, run))
            case life.OpenDoor(epoch=epoch):
                self._open_door(managed, epoch)
            case life.FenceDoor():
                self.door.fence(managed.id)
            case life.CloseDoor():
                self.door.remove(managed.id)
            case life.Drain(epoch=epoch):
                managed.drain_until = self.wall() + managed.assignment.drain_limit
                self._start(managed, "drain", self._drain(managed, epoch), lambda _failure: life.Drained(epoch))
            case life.CancelDrain():
                self._cancel(managed, "drain")
            case life.Suspend(run=run):
                self._start(managed, "engine", self.engines.suspend(managed, run), partial(life.SuspendFailed, run))
            case life.Resume(run=run):
                self._start(managed, "engine", self.engines.resume(managed, run), partial(life.ResumeFailed, run))
            case life.Stop(run=run):
                self._cancel(managed, "engine")
                # Never cancelled: the one before may still be ending an engine that nobody else knows of.
                stopping, spawning = managed.tasks.pop("stop", None), managed.tasks.get("spawn")
                broke = managed.life.state is InstanceState.FAILED
                self._start(managed, "stop", self.engines.stop(managed, run, stopping, spawning, broke=broke))
            case life.Hatch():
                self._start(managed, "hatch", self._hatch(managed), life.HatchFailed)
            case life.LeaveZygote():
                self._cancel(managed, "hatch")
                self.zygotes.leave(managed.id)
            case life.ScheduleRetry(at=at):
                self._schedule_retry(managed, at)
            case life.Forget():
                self._forget(managed)
            case _:
                assert_never(effect)

    def stage(self, managed: Managed) -> None:
        """It rests without a process: bring its artifact's pages back into memory, in the background; no climb waits for it."""
        # A climb that was refused has chosen its GPUs already: kept, they would bar other tenants, and itself from free ones.
        self.engines.berths.free(managed)
        if self.cache.locate(managed.digest) is not None:
            self._start(managed, "stage", self._warm(managed))

    # ---- what takes time ---------------------------------------------------------------------------------------

    async def _fetch(self, managed: Managed) -> None:
        tenant, manifest = managed.assignment.tenant, managed.assignment.model.manifest
        # Pinned first: between the end of a fetch and a later pin another artifact's fetch might evict this one.
        if not managed.pinned:
            self.cache.pin(managed.digest, managed.id)
            managed.pinned = True
        # What is here already needs no keys: it wakes also while the bus that holds them is away.
        opener = None if self.cache.locate(managed.digest) is not None else await self.opener_for(tenant, manifest)
        await self.cache.ensure(manifest, lambda done, total: self.progressed(managed, done, total), opener=opener)
        self.post(managed.id, life.Fetched())

    async def _warm(self, managed: Managed) -> None:
        try:
            warmed = await self.cache.warm(managed.digest)
            if warmed.skipped:
                _log.warning("the pages of %s were not read ahead: %s", managed.digest[:12], warmed.skipped)
        except (StandbyError, OSError) as error:
            _log.warning("the pages of %s were not read ahead: %s", managed.digest[:12], error)

    async def _chill(self, digest: str) -> None:
        try:
            await self.cache.chill(digest)
        except (StandbyError, OSError) as error:
            _log.warning("the pages of %s were not given back: %s", digest[:12], error)

    async def _hatch(self, managed: Managed) -> None:
        kind = managed.assignment.model.engine
        self.engines.zygotes.want(kind, managed.id)
        await self.engines.zygotes.hatched(kind)
        self.post(managed.id, life.Hatched())

    async def _drain(self, managed: Managed, epoch: int) -> None:
        limit = managed.assignment.drain_limit
        if not await self.door.drained(managed.id, limit):
            cut = self.door.abort(managed.id, f"the drain limit of {limit:g} s is over")
            _log.warning("instance %s: %d requests were cut off at the drain limit of %g s", managed.id, cut, limit)
            await self.door.drained(managed.id, limit)
        self.post(managed.id, life.Drained(epoch))

    # ---- what is done at once ----------------------------------------------------------------------------------

    def _reserve(self, managed: Managed) -> None:
        try:
            self.memory.reserve(managed)
        except Exception as error:  # noqa: BLE001 - an estimate that fails, however, is a failure of this instance alone
            failure, run = failure_in_words(error, "reserve"), managed.life.run
            self.post(managed.id, life.ResumeFailed(run, failure) if managed.life.waking else life.StartFailed(run, failure))

    def _open_door(self, managed: Managed, epoch: int) -> None:
        assert managed.handle is not None
        self.door.open(managed.id, epoch=epoch, slots=managed.assignment.door_slots, address=managed.handle.address)

    def _release(self, managed: Managed, keep: Rung) -> None:
        if keep is Rung.ASLEEP:
            self.memory.hold(managed, managed.asleep_bytes)
        elif keep is not Rung.READY:
            self._after_stop(managed, lambda: self._released(managed))

    def _released(self, managed: Managed) -> None:
        self.memory.release(managed)
        self.engines.berths.free(managed)

    def _schedule_retry(self, managed: Managed, at: float) -> None:
        if managed.retry is not None:
            managed.retry.cancel()
        delay = max(0.0, at - self.wall())
        managed.retry = asyncio.get_running_loop().call_later(delay, self.post, managed.id, life.RetryDue())

    def _forget(self, managed: Managed) -> None:
        self._after_stop(managed, lambda: self._forget_now(managed))

    def _after_stop(self, managed: Managed, call: Callable[[], None]) -> None:
        """Call now, or when the engine that is being stopped is gone: its memory is not free before."""
        stopping = managed.tasks.get("stop")
        if stopping is None:
            call()
        else:
            stopping.add_done_callback(lambda _task: call())

    def _forget_now(self, managed: Managed) -> None:
        if managed.retry is not None:
            managed.retry.cancel()
        for name in ("fetch", "stage", "drain", "engine", "hatch"):
            self._cancel(managed, name)
        self.door.remove(managed.id)
        self.zygotes.leave(managed.id)
        self._released(managed)
        if managed.pinned:
            self.cache.unpin(managed.digest, managed.id)
            managed.pinned = False
        self.forgotten(managed)
        if not any(other.digest == managed.digest for other in self.memory.instances.values()):
            # Cold holds no memory: what nobody here serves any more leaves the page cache, too.
            self._start(managed, "chill", self._chill(managed.digest))

    def _start(self, managed: Managed, name: str, work: Coroutine[Any, Any, None], failed: Failed | None = None) -> None:
        """Run ``work`` as the instance's only task of that name; ``failed`` makes the event that tells of its failure."""
        self._cancel(managed, name)
        task = asyncio.get_running_loop().create_task(work, name=f"{name} {managed.id}")
        managed.tasks[name] = task
        task.add_done_callback(lambda done: self._finished(managed, name, done, failed))

    @staticmethod
    def _cancel(managed: Managed, name: str) -> None:
        task = managed.tasks.pop(name, None)
        if task is not None:
            task.cancel()

    def _finished(self, managed: Managed, name: str, task: asyncio.Task[None], failed: Failed | None) -> None:
        if managed.tasks.get(name) is task:
            del managed.tasks[name]
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if not isinstance(error, StandbyError):
            _log.error("instance %s: %s failed in an unforeseen way", managed.id, name, exc_info=error)
        if failed is not None:  # also of what nobody foresaw: without an answer the instance would wait for ever
            self.post(managed.id, failed(failure_in_words(error, name)))
