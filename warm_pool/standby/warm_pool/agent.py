"""The node agent: one loop that owns every instance of this node.

Assignments, answers of effects, exits of processes and beats all come through one inbox and are handled one after
another, so that nothing here needs a lock. The decisions are ``lifecycle.step`` and ``ledger``; the hands are
``Effects``; what the node says of itself goes out through ``Announcer``.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from standby.bus.events import EventLog
from standby.bus.tables import Entry
from standby.domain.assignment import Assignment
from standby.domain.endpoint import Failure
from standby.domain.errors import StandbyError
from standby.domain.events import ActivationEnded, AnyEvent, FetchProgress, StateChanged
from standby.domain.instance import InstanceState, Rung
from standby.runtime.engines.base import EngineAdapter, failure_of
from standby.runtime.lifecycle import step
from standby.runtime.lifecycle_values import Event, Evicted, Exited, FetchFailed, Lifecycle, StopFailed, Targeted
from standby.telemetry import metrics
from standby.warm_pool.absent_engine import AbsentEngine
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.climb import Climb
from standby.warm_pool.costs import Costs
from standby.warm_pool.effects import Effects
from standby.warm_pool.managed import Managed, measure

_log = logging.getLogger(__name__)

PROGRESS_STEP: Final = 0.02
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

    ``effects`` is set right after construction: its callbacks are this agent's.
    """

    node: str
    door: str
    first_epoch: int
    announcer: Announcer
    events: EventLog
    adapter_for: Callable[[Assignment], EngineAdapter]
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    effects: Effects = field(init=False)
    costs: Costs = field(default_factory=Costs)
    instances: dict[str, Managed] = field(default_factory=dict)
    stopping: bool = False
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
        self.announcer.gone(self.node, managed.id)
        if not self.instances:
            self._empty.set()

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
        event = FetchFailed(failure) if managed.life.state is InstanceState.FETCHING else Exited(managed.life.run, failure)
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
        self._step(managed, Targeted(assignment.rung, assignment.endpoint_generation))

    def _adopt(self, assignment: Assignment) -> Managed:
        adapter = self._adapter(assignment)
        life = Lifecycle(epoch=self.first_epoch, run=0, can_sleep=adapter.capabilities.sleep)
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
        managed.moved(after, now)
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
        if isinstance(event, Exited):
            _log.warning("instance %s: %s", managed.id, event.failure.reason, extra={"first_error": event.failure.first_error})

    def _state_changed(self, managed: Managed, before: Lifecycle, reason: str) -> None:
        managed.progress = None
        _log.info("instance %s: %s → %s", managed.id, before.state.value, managed.life.state.value, extra={"reason": reason})
        self._event(
            StateChanged, managed, before=before.state, after=managed.life.state, epoch=managed.life.epoch, reason=reason
        )

    # ---- measuring climbs --------------------------------------------------------------------------------------

    def _begin_climb(self, managed: Managed, before: Lifecycle, after: Lifecycle) -> None:
        if after.wanted is not Rung.READY or after.state is InstanceState.READY:
            managed.climb = None
        elif managed.climb is None:
            rung = Rung.ASLEEP if before.state is InstanceState.ASLEEP else self._rung_on_disk(managed)
            managed.climb = Climb(rung, self.monotonic(), self.wall(), managed.assignment.demand_at)

    def _rung_on_disk(self, managed: Managed) -> Rung:
        return Rung.COLD if self.effects.cache.locate(managed.digest) is None else Rung.STAGED

    def _end_climb(self, managed: Managed, before: Lifecycle, after: Lifecycle, now: float) -> None:
        climb = managed.climb
        if climb is None or after.state is before.state or after.state not in {InstanceState.READY, InstanceState.FAILED}:
            return
        ready = after.state is InstanceState.READY
        seconds = climb.seconds(self.monotonic())
        activation = climb.activation(now if ready else None)
        managed.climb = None
        if ready:
            managed.activation = activation
            self.door_changed(managed.id)
            self.costs = self.costs.observe(managed.digest, climb.from_rung, seconds)
            metrics.ACTIVATION_SECONDS.labels(self.node, climb.from_rung.label).observe(seconds)
        metrics.ACTIVATIONS.labels(self.node, climb.from_rung.label, "ready" if ready else "failed").inc()
        error = "" if after.failure is None else after.failure.reason
        self._event(ActivationEnded, managed, activation=activation, ok=ready, error="" if ready else error)

    def _say_now(self, instance: str) -> None:
        self._soon.pop(instance, None)
        managed = self.instances.get(instance)
        if managed is not None:
            measure(managed)
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

    def _event(self, kind: type[StateChanged | ActivationEnded | FetchProgress], managed: Managed, **values: object) -> None:
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
