"""The node agent: one loop that owns every instance of this node.

Assignments, answers of effects, exits of processes and beats all come through one inbox and are handled one after
another, so that nothing here needs a lock. The decisions are ``lifecycle.step`` and ``ledger``; the hands are
``Effects``; what the node says of itself goes out through ``Announcer``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from standby.bus.events import EventLog
from standby.bus.tables import Entry
from standby.domain.assignment import Assignment
from standby.domain.endpoint import Failure
from standby.domain.errors import StandbyError
from standby.domain.events import ActivationEnded, AnyEvent, ComponentNotice, FetchProgress, StateChanged
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineAdapter, failure_of
from standby.runtime.lifecycle import step
from standby.runtime.lifecycle_values import (
    Event,
    Evicted,
    Exited,
    FetchFailed,
    HatchFailed,
    Lifecycle,
    Sick,
    StopFailed,
    Targeted,
    ZygoteLost,
)
from standby.warm_pool import counted
from standby.warm_pool.absent_engine import AbsentEngine
from standby.warm_pool.activation_spans import Climbed
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.byte_seconds import ByteSeconds
from standby.warm_pool.climb import Climb
from standby.warm_pool.effects import Effects
from standby.warm_pool.health_watch import Fullness
from standby.warm_pool.managed import Managed
from standby.warm_pool.meter import Meter
from standby.warm_pool.price_keeper import PriceKeeper
from standby.warm_pool.transitions import note

_log = logging.getLogger(__name__)

_InstanceEvent = StateChanged | ActivationEnded | FetchProgress | ComponentNotice

PROGRESS_STEP: Final = 0.02
PRESSURE_STEP: Final = 0.02
# Long enough that a busy instance costs four records a second at most, short enough for the idle clock.
SAY_SOON_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class _Assigned:
    """An assignment was written (or removed: None)."""

    instance: str
    assignment: Assignment | None


@dataclass(frozen=True, slots=True)
class _Happened:
    """Something happened to an instance."""

    instance: str
    event: Event
    rescues: bool = False


@dataclass
class Agent:
    """``monotonic`` and ``wall`` are clocks in seconds; ``door`` is the address that gateways are told.

    ``on_climbed`` gets each climb that has ended. ``effects`` and ``meter`` are set right after construction: their
    callbacks are this agent's.
    """

    node: str
    door: str
    first_epoch: int
    announcer: Announcer
    events: EventLog
    keeper: PriceKeeper
    adapter_for: Callable[[Assignment], EngineAdapter]
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    effects: Effects = field(init=False)
    meter: Meter = field(init=False)
    instances: dict[str, Managed] = field(default_factory=dict)
    held: ByteSeconds = field(default_factory=ByteSeconds)
    climbs: counted.Climbs = field(default_factory=counted.Climbs)
    stopping: bool = False
    on_climbed: Callable[[Climbed], None] = lambda _climbed: None
    _inbox: asyncio.Queue[_Assigned | _Happened] = field(default_factory=asyncio.Queue)
    _outbox: asyncio.Queue[AnyEvent] = field(default_factory=asyncio.Queue)
    _soon: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    _leader_epoch: int = 0
    _empty: asyncio.Event = field(default_factory=asyncio.Event)

    # ---- what others call --------------------------------------------------------------------------------------

    def assignment_changed(self, key: str, _before: Entry[Assignment] | None, after: Entry[Assignment] | None) -> None:
        """Take up a change of the assignments' table (the callback of its mirror)."""
        self._inbox.put_nowait(_Assigned(key.rpartition(".")[2], None if after is None else after.value))

    def post(self, instance: str, event: Event) -> None:
        """Put an event of an instance into the inbox."""
        self._inbox.put_nowait(_Happened(instance, event))

    def door_changed(self, instance: str) -> None:
        """An instance's last request has ended, or its engine broke a request: says so soon, once for a burst."""
        if instance in self.instances and instance not in self._soon:
            self._soon[instance] = asyncio.get_running_loop().call_later(SAY_SOON_S, self._say_now, instance)

    def forgotten(self, managed: Managed) -> None:
        """An instance has ended for good."""
        self.instances.pop(managed.id, None)
        self.held.gone(managed.id, self.monotonic())
        self.announcer.gone(self.node, managed.id)
        if not self.instances:
            self._empty.set()

    def zygote_changed(self, kind: EngineKind) -> None:
        """The node's zygote of this kind has come or gone."""
        if self.effects.zygotes.ready(kind) is None:
            for managed in self.instances.values():
                if managed.life.state is InstanceState.ZYGOTE and managed.assignment.model.engine is kind:
                    self.post(managed.id, ZygoteLost(f"the zygote of {kind.value} is gone"))

    def sick(self, instance: str, run: int, failure: Failure) -> None:
        """The health watch says that an engine serves nobody any more."""
        self.post(instance, Sick(run, failure))

    def told(self, instance: str, fullness: Fullness) -> None:
        """An engine that serves says how full its cache is, and which adapters it has; said on when that has moved."""
        managed = self.instances.get(instance)
        if managed is None or managed.life.state is not InstanceState.READY:
            return
        before = managed.memory_pressure
        if fullness.adapters is not None:
            managed.adapters = fullness.adapters
        if fullness.share is not None and (before is None or abs(fullness.share - before) >= PRESSURE_STEP - 1e-9):
            managed.memory_pressure = round(round(fullness.share / PRESSURE_STEP) * PRESSURE_STEP, 2)
        self.say(managed)

    def notice(self, managed: Managed, message: str, *, level: str = "warning") -> None:
        """Tell operators something about an instance."""
        self._event(ComponentNotice, managed, level=level, message=message)

    def progressed(self, managed: Managed, done: int, total: int) -> None:
        """Bytes have arrived; says so in steps of two percent."""
        share = done / total if total else 1.0
        if managed.progress is not None and share - managed.progress < PROGRESS_STEP and share < 1.0:
            return
        managed.progress = min(1.0, share)
        self._event(FetchProgress, managed, digest=managed.digest, done_bytes=done, total_bytes=total)
        self.say(managed)

    async def run(self) -> None:
        """Handle the inbox until cancelled."""
        while True:
            message = await self._inbox.get()
            try:
                self._handle(message)
            except Exception as error:  # noqa: BLE001 - one instance's fault must not end the loop that owns all of them
                _log.exception("instance %s: %s", message.instance, type(message).__name__)
                self._rescue(message, error)

    async def run_outbox(self) -> None:
        """Publish the agent's events, in order, until cancelled."""
        while True:
            await self.events.publish(await self._outbox.get())

    async def wind_down(self) -> None:
        """Drain and stop every instance, and return when all are gone."""
        self.stopping = True
        self._empty.clear()
        if not self.instances:
            return
        for managed in list(self.instances.values()):
            self.post(managed.id, Targeted(Rung.COLD, managed.life.generation))
        await self._empty.wait()

    def take_again(self, assignments: Mapping[str, Entry[Assignment]]) -> None:
        """Call off ``wind_down``: what still lives and is still assigned goes back to where it should be."""
        self.stopping = False
        for name, entry in assignments.items():
            managed = self.instances.get(name.rpartition(".")[2])
            if managed is not None and managed.assignment.intent == entry.value.intent:
                self.post(managed.id, Targeted(entry.value.rung, entry.value.endpoint_generation))
            else:
                self.assignment_changed(name, None, entry)

    def note_held(self, managed: Managed) -> None:
        """Take down what an instance holds from now on; called wherever that may have changed."""
        now = self.monotonic()
        busy_s = self.effects.door.load(managed.id).busy_until(now)
        self.held.holds(managed.id, counted.holding(managed, busy_s), now)

    def say(self, managed: Managed) -> None:
        """Announce an instance if anything about it has changed."""
        now = self.wall()
        load = self.effects.door.load(managed.id)
        record = managed.record(door=self.door, load=load, idle_since=self._idle_since(managed), now=now)
        last = managed.last_said
        if last is None or record != last.model_copy(update={"updated_at": now}):
            managed.last_said = record
            self.announcer.instance(record)

    # ---- the loop ----------------------------------------------------------------------------------------------

    def _handle(self, message: _Assigned | _Happened) -> None:
        if isinstance(message, _Happened):
            managed = self.instances.get(message.instance)
            if managed is not None:
                self._step(managed, message.event)
        elif not self.stopping:
            self._take_up(message.instance, message.assignment)

    def _rescue(self, message: _Assigned | _Happened, error: Exception) -> None:
        """Fail the instance whose step broke off: half of it was carried out, so that no answer would ever come."""
        managed = self.instances.get(message.instance)
        if managed is None or (isinstance(message, _Happened) and message.rescues):
            return
        failure = failure_of(error) if isinstance(error, StandbyError) else Failure(reason=f"unforeseen: {error!r}")
        event: Event = Exited(managed.life.run, failure)
        if managed.life.state is InstanceState.FETCHING:
            event = FetchFailed(failure)
        elif managed.life.state is InstanceState.STAGED:
            event = HatchFailed(failure)
        self._inbox.put_nowait(_Happened(managed.id, event, rescues=True))

    def _take_up(self, instance: str, assignment: Assignment | None) -> None:
        managed = self.instances.get(instance)
        if assignment is None:
            if managed is not None:
                self._step(managed, Targeted(Rung.COLD, managed.life.generation))
            return
        if assignment.leader_epoch < self._leader_epoch:
            _log.warning("instance %s: ignored an order of leader epoch %d", instance, assignment.leader_epoch)
            return
        self._leader_epoch = assignment.leader_epoch
        if managed is not None and managed.assignment.intent == assignment.intent:
            return
        if managed is None:
            managed = self._adopt(assignment)
        managed.assignment = assignment
        # Before the record says so: whoever reads there that a door lets in fewer may let others let in more.
        self.effects.door.resize(assignment.instance, assignment.door_slots)
        self._step(managed, Targeted(assignment.rung, assignment.endpoint_generation))

    def _adopt(self, assignment: Assignment) -> Managed:
        adapter = self._adapter(assignment)
        can = adapter.capabilities
        life = Lifecycle(epoch=self.first_epoch, run=0, can_sleep=can.sleep, can_zygote=can.zygote)
        managed = Managed(assignment, life, adapter, rung_since=self.wall())
        self.instances[assignment.instance] = managed
        return managed

    def _adapter(self, assignment: Assignment) -> EngineAdapter:
        try:
            return self.adapter_for(assignment)
        except StandbyError as error:
            return AbsentEngine(assignment.model.engine, error)

    def _step(self, managed: Managed, event: Event) -> None:
        before = managed.life
        now = self.wall()
        if managed.climb is not None:
            managed.climb.note(event, self.monotonic())
        after, effects, reason = step(before, event, now)
        if isinstance(event, Targeted):
            self._begin_climb(managed, before, after)
        self._note_price(managed, before, after)
        managed.moved(after, now)
        # Before the door forgets what it counted.
        self.note_held(managed)
        counted.stepped(managed, event, before, after)
        if after.state is not before.state:
            self._state_changed(managed, before, reason)
        self._end_climb(managed, before, after, now)
        for effect in effects:
            self.effects.carry_out(managed, effect)
        if after.state is InstanceState.STAGED and before.state is not InstanceState.STAGED:
            self.effects.stage(managed)
        if managed.id in self.instances:
            self.say(managed)
        if isinstance(event, Evicted | StopFailed) and after.state is not InstanceState.STOPPING:
            self.effects.memory.stays(managed.id)
        if isinstance(event, Exited | Sick):
            _log.warning("instance %s: %s", managed.id, event.failure.reason, extra={"first_error": event.failure.first_error})

    def _state_changed(self, managed: Managed, before: Lifecycle, reason: str) -> None:
        managed.progress = None
        if managed.life.state in {InstanceState.READY, InstanceState.ASLEEP}:
            self.meter.changed(managed)
        _log.info("instance %s: %s → %s", managed.id, before.state.value, managed.life.state.value, extra={"reason": reason})
        self._event(
            StateChanged, managed, before=before.state, after=managed.life.state, epoch=managed.life.epoch, reason=reason
        )

    # ---- measuring ---------------------------------------------------------------------------------------------

    def _note_price(self, managed: Managed, before: Lifecycle, after: Lifecycle) -> None:
        managed.tracker, seen = note(
            managed.tracker,
            before,
            after,
            self.monotonic(),
            on_disk=self.effects.cache.locate(managed.digest) is not None,
            zygote_ready=self.effects.zygotes.ready(managed.assignment.model.engine) is not None,
            forked=None if managed.handle is None else managed.handle.forked,
        )
        if seen is not None:
            self.keeper.observed(managed.assignment, seen)

    def _begin_climb(self, managed: Managed, before: Lifecycle, after: Lifecycle) -> None:
        if after.wanted is not Rung.READY or after.state is InstanceState.READY:
            managed.climb = None
        elif managed.climb is None:
            rung = Rung.ASLEEP if before.state is InstanceState.ASLEEP else self._rung_below(managed)
            managed.climb = Climb(rung, self.monotonic(), self.wall(), managed.assignment.demand_at)

    def _rung_below(self, managed: Managed) -> Rung:
        if self.effects.cache.locate(managed.digest) is None:
            return Rung.COLD
        return Rung.STAGED if self.effects.zygotes.ready(managed.assignment.model.engine) is None else Rung.ZYGOTE

    def _end_climb(self, managed: Managed, before: Lifecycle, after: Lifecycle, now: float) -> None:
        climb = managed.climb
        if climb is None or after.state is before.state or after.state not in {InstanceState.READY, InstanceState.FAILED}:
            return
        ready = after.state is InstanceState.READY
        activation = climb.activation(now if ready else None)
        managed.climb = None
        if ready:
            managed.activation = activation
            self.door_changed(managed.id)
        self.climbs.ended(self.node, climb, managed.assignment.model, self.monotonic(), ready=ready)
        self._tell_climbed(managed, climb, "" if ready else (after.failure and after.failure.code) or "failed")
        error = "" if after.failure is None else after.failure.reason
        self._event(ActivationEnded, managed, activation=activation, ok=ready, error="" if ready else error)

    def _tell_climbed(self, managed: Managed, climb: Climb, error: str) -> None:
        lasted_s, steps = climb.seconds(self.monotonic()), tuple(climb.steps)
        self.on_climbed(Climbed(climb.id, managed.assignment, climb.from_rung, climb.called_at, lasted_s, steps, error))

    def _say_now(self, instance: str) -> None:
        self._soon.pop(instance, None)
        managed = self.instances.get(instance)
        if managed is not None:
            self.say(managed)

    # ---- small things ------------------------------------------------------------------------------------------

    def _idle_since(self, managed: Managed) -> float | None:
        """When the instance became ready or its last request ended, whichever is later; None while it is busy."""
        load = self.effects.door.load(managed.id)
        if managed.life.state is not InstanceState.READY or load.in_flight:
            return None
        if load.last_end is None:
            return managed.rung_since
        if managed.last_end != load.last_end:
            # Worked out once: two clocks read one after the other differ each time, and each time would be a new record.
            managed.last_end, managed.idle_since = load.last_end, self.wall() - (self.monotonic() - load.last_end)
        return max(managed.rung_since, managed.idle_since)

    def _event(self, kind: type[_InstanceEvent], managed: Managed, **values: object) -> None:
        event = kind.model_validate(
            {
                "id": secrets.token_hex(8),
                "at": self.wall(),
                "source": f"node/{self.node}",
                "tenant": managed.assignment.tenant,
                "endpoint": managed.assignment.endpoint,
                "instance": managed.id,
                **values,
            }
        )
        self._outbox.put_nowait(event)
