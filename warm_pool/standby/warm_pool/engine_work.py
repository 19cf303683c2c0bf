"""What takes time around one engine process: to start it, prove it, put it to sleep, wake it, and end it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from standby.domain.endpoint import Failure
from standby.domain.errors import EngineError, StandbyError
from standby.domain.instance import Rung
from standby.domain.node import DeviceKind
from standby.runtime import lifecycle_values as life
from standby.runtime.activity import tree_of
from standby.runtime.engines.base import EngineHandle, EngineSpec, describe_exit, failure_of
from standby.runtime.exit_status import ExitStatus
from standby.runtime.log_words import mask
from standby.warm_pool.berths import SETTLE_LIMIT_S, Berths
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.health_watch import HealthWatch, Watched
from standby.warm_pool.keepsakes import Keepsakes
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_key import price_key
from standby.warm_pool.sleep_depth import Depth, SleepCase, sleep_depth
from standby.warm_pool.start_watch import wait_while_it_moves
from standby.warm_pool.tree_watch import HelperLoss, TreeWatch
from standby.warm_pool.zygotes import ZygotePool

_log = logging.getLogger(__name__)

STOP_AGAIN_S = 5.0
# A zygote hatches in a third of the time that a plain start takes; whoever climbs meanwhile waits for it, not for ever.
ZYGOTE_WAIT_S = 60.0
# Sent from outside, e.g. by the kernel that lacks memory: no fault of what the engine was started with.
_KILLED = frozenset({signal.SIGKILL, signal.SIGTERM})
# Of host memory, what sleepers that keep their weights there leave to others.
SLEEP_RESERVE = 0.1

Post = Callable[[str, life.Event], None]


@dataclass
class EngineWork:
    """Part of the agent's hands. Each coroutine runs as a task of the instance and answers by an event."""

    post: Post
    cache: ArtifactCache
    memory: MemoryDesk
    berths: Berths
    keepsakes: Keepsakes
    zygotes: ZygotePool
    health: HealthWatch
    run_dir: Path
    log_dir: Path
    wall: Callable[[], float]
    stop_grace_s: float
    probe_limit_s: float
    _forking: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.trees = TreeWatch(self._helper_ended)

    # ---- up ------------------------------------------------------------------------------------------------------

    async def spawn(self, managed: Managed, run: int, stopping: asyncio.Task[None] | None) -> None:
        """Start the engine as its run ``run``, once the one before is gone. ``stop`` cuts it short while it only waits."""
        await ended(stopping)
        try:
            spec = await self._prepared(managed, run)
            self._forking.add(managed.id)
            handle = await managed.adapter.start(spec)
        except BaseException:
            await self._not_started(managed)
            raise
        finally:
            self._forking.discard(managed.id)
        managed.handle = handle
        self.berths.spawned(managed, handle)
        self.trees.follow(managed.id, handle)
        handle.exited.add_done_callback(lambda done: self._exited(managed, run, done))
        self.post(managed.id, life.Spawned(run))

    async def _prepared(self, managed: Managed, run: int) -> EngineSpec:
        """Return the spec once all that a start waits for is there: a zygote, its place, its kernels, its turn."""
        if managed.adapter.capabilities.zygote:
            await self.zygotes.wait_ready(managed.assignment.model.engine, ZYGOTE_WAIT_S)
        # First the place: kernels are named by the processors that they are compiled for.
        environment = self.berths.prepare(managed, run)
        cache_dir = await self.keepsakes.prepare(managed)
        await self.berths.turns.begin(managed.id, managed.devices)
        return self._spec(managed, environment, cache_dir)

    async def wait_loaded(self, managed: Managed, run: int) -> None:
        """Wait as long as the start moves."""
        handle = _handle(managed)
        try:
            await wait_while_it_moves(managed.adapter, handle, managed.assignment.activation_limit)
        finally:
            await self.berths.turns.over(managed.id)
        self.trees.loaded(managed.id)
        self.post(managed.id, life.Loaded(run))

    async def probe(self, managed: Managed, run: int) -> None:
        """Let it generate what engines of its fingerprint always do."""
        woken = managed.life.waking
        await self.keepsakes.check(managed, _handle(managed), self.probe_limit_s, after_wake=woken)
        if not woken:
            self.keepsakes.proven(managed)
        self.post(managed.id, life.Probed(run))

    # ---- asleep --------------------------------------------------------------------------------------------------

    async def suspend(self, managed: Managed, run: int) -> None:
        """Put it to sleep as deep as memory asks for."""
        self.health.forget(managed.id)
        depth = self._depth(managed)
        async with self.berths.turns.turn(managed.devices):
            result = await managed.adapter.suspend(_handle(managed), depth=depth)
        managed.resident_bytes = managed.asleep_bytes = result.resident_after
        managed.sleep_depth = result.depth
        self.berths.asleep(managed)
        told = {"resident_before": result.resident_before, "resident_after": result.resident_after, "ms": round(result.ms, 1)}
        _log.info("instance %s sleeps", managed.id, extra={**told, "depth": result.depth, "kept": result.kept})
        self.post(managed.id, life.Suspended(run))

    async def resume(self, managed: Managed, run: int) -> None:
        """Wake it."""
        handle = _handle(managed)
        if managed.climb is not None:
            managed.climb.called_at = self.wall()
        async with self.berths.turns.turn(managed.devices):
            await managed.adapter.resume(handle)
        self.berths.awake(managed, handle)
        self.post(managed.id, life.Resumed(run))

    # ---- down ----------------------------------------------------------------------------------------------------

    async def stop(
        self,
        managed: Managed,
        run: int,
        stopping: asyncio.Task[None] | None,
        spawning: asyncio.Task[None] | None,
        *,
        broke: bool,
    ) -> None:
        """End the whole tree, and say so when its memory is back. ``broke``: the engine has failed, nobody cut it short."""
        # Both were looked up when this stop was ordered: a later look could find the spawn that waits for this very stop.
        if spawning is not None and managed.id not in self._forking:
            # Later it may not be: between the fork and the handle nobody else would know of the process.
            spawning.cancel()
        await ended(stopping)
        await ended(spawning)
        self.health.forget(managed.id)
        self.trees.forget(managed.id)
        await self.berths.turns.over(managed.id)
        handle, managed.handle = managed.handle, None
        broke = broke and not _killed(handle)
        gone = False
        while not gone:
            try:
                if handle is not None:
                    async with self.berths.turns.turn(managed.devices):
                        await self._end(managed, handle)
                    handle = None
                await self.berths.leave(managed)
                gone = True
            except Exception as error:  # noqa: BLE001 - whatever it is, an engine that nobody ends would be left for good
                # What cannot be ended keeps its memory: saying it were free would let the next start fail.
                _log.error("instance %s does not end, it is tried again: %s", managed.id, error)
                self.post(managed.id, life.StopFailed(run, failure_in_words(error, "stop")))
                await asyncio.sleep(STOP_AGAIN_S)
        self.keepsakes.ended(managed, broke=broke)
        if managed.adapter.capabilities.zygote:
            self.zygotes.fork_ended(managed.assignment.model.engine)
        self.post(managed.id, life.Stopped(run))

    async def _end(self, managed: Managed, handle: EngineHandle) -> None:
        devices = managed.devices
        if not devices:
            await managed.adapter.stop(handle, self.stop_grace_s)
            return
        pids = tree_of(handle.process.mark, handle.pid)
        # In a thread: a driver in trouble may take seconds to answer.
        before = await asyncio.to_thread(self.berths.devices.baseline, devices, pids)
        await managed.adapter.stop(handle, self.stop_grace_s)
        if words := await self.berths.devices.settled(devices, pids, before, SETTLE_LIMIT_S):
            # The device is cordoned by now: nothing new is placed on what may still be held.
            _log.error("instance %s: its GPU memory did not come back: %s", managed.id, words)

    async def _not_started(self, managed: Managed) -> None:
        await self.berths.turns.over(managed.id)
        self.keepsakes.ended(managed, broke=False)
        await self.berths.leave(managed)

    # ---- what engines do by themselves -----------------------------------------------------------------------------

    def _exited(self, managed: Managed, run: int, done: asyncio.Future[ExitStatus]) -> None:
        handle = managed.handle
        if done.cancelled() or handle is None:
            return
        status = self.berths.explained(managed, done.result())
        self.post(managed.id, life.Exited(run, describe_exit(handle, status, f"while it was {managed.life.state.value}")))

    def _helper_ended(self, instance: str, loss: HelperLoss) -> None:
        managed = self.memory.instances.get(instance)
        if managed is not None and managed.handle is not None:
            self.health.helper_ended(Watched(instance, managed.life.run, managed.adapter, managed.handle), loss)

    # ---- small things ----------------------------------------------------------------------------------------------

    def _depth(self, managed: Managed) -> int:
        """Return the sleep level: the ledger decides whether the weights may stay in host memory."""
        if managed.adapter.capabilities.device is DeviceKind.CPU:
            return Depth.WEIGHTS_KEPT
        ledger, size = self.memory.ledger, self.memory.sizes.footprint(price_key(managed.assignment).text)
        prices = self.memory.costs()
        case = SleepCase(
            holds=ledger.held(managed.id).host,
            residue=size.asleep or managed.resident_bytes,
            weights=managed.assignment.model.manifest.unpacked_bytes,
            host_free=ledger.free,
            wake_kept_s=prices.seconds(managed.digest, Rung.ASLEEP),
            start_s=prices.seconds(managed.digest, Rung.STAGED),
        )
        choice = sleep_depth(case, reserve=round(ledger.capacity * SLEEP_RESERVE))
        _log.info("instance %s: sleep %s: %s", managed.id, choice.depth.name.lower(), choice.reason)
        if choice.depth is Depth.STAGED:
            raise EngineError(f"it is not put to sleep: {choice.reason}", remedy="nothing: it is ended instead")
        return choice.depth

    def _spec(self, managed: Managed, environment: dict[str, str], cache_dir: Path | None) -> EngineSpec:
        assignment = managed.assignment
        folder = self.cache.locate(managed.digest)
        assert folder is not None, "a life spawns only what it has fetched and pinned"
        return EngineSpec(
            instance=assignment.instance,
            epoch=managed.life.run,
            kind=assignment.model.engine,
            model_dir=folder,
            model_files=tuple(item.path for item in assignment.model.manifest.files),
            served_name=assignment.served_name,
            slots=assignment.slots,
            options=dict(assignment.model.engine_options),
            run_dir=self.run_dir,
            log_dir=self.log_dir,
            tenant=assignment.tenant,
            devices=managed.devices,
            cores=managed.cores,
            environment=environment,
            cache_dir=cache_dir,
        )


def _handle(managed: Managed) -> EngineHandle:
    assert managed.handle is not None, "the life asks this of an engine that runs"
    return managed.handle


def _killed(handle: EngineHandle | None) -> bool:
    """Return whether somebody else ended the engine."""
    status = None if handle is None else handle.process.status
    return status is not None and status.signal_number in _KILLED


async def ended(task: asyncio.Task[None] | None) -> None:
    """Return when ``task`` has ended, however."""
    if task is not None:
        await asyncio.wait({task})


def failure_in_words(error: BaseException, doing: str) -> Failure:
    """Return the failure that ``error`` stands for, also of what nobody foresaw."""
    if isinstance(error, StandbyError):
        return failure_of(error)
    return Failure(reason=mask(f"{doing} failed in an unforeseen way: {type(error).__name__}: {error}"), code="unforeseen")
