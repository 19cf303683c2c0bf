"""Watches the engines that serve: looks every second, asks and probes where ``health`` says so, and tells who is sick.

One for a node, in the agent's loop. An engine is asked by one task at a time. ``forget`` ends it: called before the engine
is put to sleep or stopped, since calls to one engine must not overlap.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from standby.domain.endpoint import Failure
from standby.domain.errors import EngineError
from standby.domain.instance import InstanceState
from standby.host import tasks
from standby.runtime.activity import Use, tree_of, use_of
from standby.runtime.engines.base import EngineAdapter, EngineHandle, describe
from standby.warm_pool.door_load import DoorLoad
from standby.warm_pool.health import (
    Crunched,
    DoorSeen,
    Health,
    HealthLimits,
    HelperEnded,
    History,
    Probed,
    Seen,
    Silent,
    Told,
    ask_due,
    judge,
    note,
)
from standby.warm_pool.managed import Managed
from standby.warm_pool.tree_watch import HelperLoss

_log = logging.getLogger(__name__)

PERIOD_S: Final = 1.0
TellSick = Callable[[str, int, Failure], None]
# A look that is short enough never to hold up a probe, which begins a period later at most.
SAMPLE_S: Final = 0.5
ADAPTERS_EVERY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Watched:
    """An engine that is ready: whose, which run of it, and how to ask it."""

    instance: str
    run: int
    adapter: EngineAdapter
    handle: EngineHandle


@dataclass(frozen=True, slots=True)
class Fullness:
    """How full an engine's own cache is (see ``EngineLoad.kv_used``), and which adapters it has; None: it did not say."""

    share: float | None = None
    adapters: tuple[str, ...] | None = None


TellFullness = Callable[[str, Fullness], None]


def ready_engines(instances: Mapping[str, Managed]) -> tuple[Watched, ...]:
    """Return the engines of a node that serve now."""
    return tuple(
        Watched(managed.id, managed.life.run, managed.adapter, managed.handle)
        for managed in instances.values()
        if managed.life.state is InstanceState.READY and managed.handle is not None
    )


@dataclass(slots=True)
class _Case:
    """What is known of one engine since it became ready; ``told``: its sickness was said.

    ``filled``: requests held some of its cache when it was last looked at; ``adapters_at``: when it was asked for adapters.
    """

    watched: Watched
    history: History
    task: asyncio.Task[None] | None = None
    suspected: bool = False
    told: bool = False
    filled: bool = False
    adapters_at: float = -math.inf


class HealthWatch:
    """``engines`` returns those that are ready now, ``load`` what the door says of one.

    ``sick(instance, run, failure)`` is called once for a run. ``told(instance, fullness)``, where it is given, hears about
    once a second how full an engine is that has requests; one that has none is empty, and is not asked. The engine is asked
    by the same task as for its health, shortly, and what it does not answer in time is left out.
    """

    def __init__(
        self,
        *,
        engines: Callable[[], Iterable[Watched]],
        load: Callable[[str], DoorLoad],
        sick: TellSick,
        told: TellFullness | None = None,
        limits: HealthLimits | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``clock``: the loop's, unless a test turns its own."""
        self._engines = engines
        self._load = load
        self._sick = sick
        self._told = told
        self._limits = limits or HealthLimits()
        self._clock = clock or asyncio.get_running_loop().time
        self._cases: dict[str, _Case] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        try:
            while True:
                self.look()
                await asyncio.sleep(PERIOD_S)
        finally:
            await tasks.end([case.task for case in self._cases.values() if case.task is not None])

    def look(self) -> None:
        """Look at every engine once; never waits."""
        ready = {watched.instance: watched for watched in self._engines()}
        for instance in self._cases.keys() - ready.keys():
            self.forget(instance)
        for instance, watched in ready.items():
            case = self._cases.get(instance)
            if case is None or case.watched.handle is not watched.handle:
                self.forget(instance)
                case = self._cases[instance] = _Case(watched, History(since=self._clock()))
            if not case.told and watched.handle.process.status is None:
                self._examine(case)

    def forget(self, instance: str) -> None:
        """Ask this engine nothing any more; what is being asked is broken off."""
        case = self._cases.pop(instance, None)
        if case is not None and case.task is not None:
            case.task.cancel()

    def helper_ended(self, watched: Watched, loss: HelperLoss) -> None:
        """A process of an engine has ended, in whatever state the engine is; the callback of ``TreeWatch``."""
        case = self._cases.get(watched.instance)
        if case is not None and case.watched.handle is watched.handle:
            self._note(case, HelperEnded(self._clock(), loss.words, loss.certain))
            if not case.told:
                self._examine(case)
        elif loss.certain:
            self._tell(watched, loss.words, "engine_helper_ended")

    # ---- one engine --------------------------------------------------------------------------------------------

    def _examine(self, case: _Case) -> None:
        now = self._clock()
        self._note(case, DoorSeen(now, self._load(case.watched.instance)))
        verdict = judge(case.history, self._limits, now)
        if verdict.health is Health.SICK:
            case.told = True
            if case.task is not None:
                case.task.cancel()
            self._tell(case.watched, verdict.reason, verdict.code)
        elif verdict.health is Health.SUSPICIOUS:
            if not case.suspected:
                case.suspected = True
                _log.warning("instance %s is probed: %s", case.watched.instance, verdict.reason)
            self._start(case, self._probe(case))
        else:
            case.suspected = False
            if ask_due(case.history, self._limits, now):
                self._start(case, self._ask(case))
            elif self._told is not None:
                self._look_inside(case, self._told, now)

    def _look_inside(self, case: _Case, told: TellFullness, now: float) -> None:
        """Ask an engine that works how full it is; now and then any engine for its adapters."""
        busy = self._load(case.watched.instance).in_flight > 0
        if case.filled and not busy:
            case.filled = False
            told(case.watched.instance, Fullness(share=0.0))
        due = now - case.adapters_at >= ADAPTERS_EVERY_S
        if busy or due:
            self._start(case, self._sample(case, told, for_adapters=due))

    async def _sample(self, case: _Case, told: TellFullness, *, for_adapters: bool) -> None:
        watched = case.watched
        share: float | None = None
        adapters: tuple[str, ...] | None = None
        try:
            if for_adapters:
                case.adapters_at = self._clock()
                adapters = await watched.adapter.adapters(watched.handle, SAMPLE_S)
            else:
                share = (await watched.adapter.load(watched.handle, SAMPLE_S)).kv_used
        except (EngineError, OSError, ValueError):
            return  # it is busy with better things; whether it is well is asked elsewhere
        case.filled = case.filled or bool(share)
        told(watched.instance, Fullness(share, adapters))

    def _tell(self, watched: Watched, reason: str, code: str) -> None:
        self._sick(watched.instance, watched.run, describe(watched.handle, f"engine is sick: {reason}", code=code))

    def _note(self, case: _Case, seen: Seen) -> None:
        case.history = note(case.history, seen)

    def _start(self, case: _Case, work: Coroutine[Any, Any, None]) -> None:
        if case.task is not None and not case.task.done():
            work.close()
            return
        case.task = asyncio.get_running_loop().create_task(work, name=f"health {case.watched.instance}")

    async def _ask(self, case: _Case) -> None:
        """Ask the engine for its load; one that cannot tell its progress is looked at by what it uses."""
        watched = case.watched
        try:
            load = await watched.adapter.load(watched.handle, self._limits.ask_s)
        except (EngineError, OSError, ValueError) as error:
            self._note(case, Silent(self._clock(), str(error), refused=_refused(error)))
        else:
            self._note(case, Told(self._clock(), busy=load.running + load.waiting, progress=load.progress))
        if case.history.busy and case.history.counter is None:
            used = await asyncio.to_thread(_use, watched.handle)
            self._note(case, Crunched(self._clock(), used.processor_s))

    async def _probe(self, case: _Case) -> None:
        watched, began = case.watched, self._clock()
        failure = ""
        try:
            await watched.adapter.probe(watched.handle, self._limits.probe_s)
        except (EngineError, OSError, ValueError) as error:
            failure = str(error)
        self._note(case, Probed(began, self._clock(), failure))


def _use(handle: EngineHandle) -> Use:
    """Blocks for milliseconds: not for the event loop."""
    return use_of(tree_of(handle.process.mark, handle.pid))


def _refused(error: BaseException) -> bool:
    """Return whether nobody listened, which a timeout does not prove: the cause of an error tells."""
    return any(isinstance(cause, ConnectionRefusedError | FileNotFoundError) for cause in (error, error.__cause__))
