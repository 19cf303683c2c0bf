"""One instance as the agent holds it: what is wanted, where it is in its life, what runs for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from standby.domain.assignment import Assignment
from standby.domain.endpoint import Failure
from standby.domain.errors import InvalidInput
from standby.domain.instance import HAS_PROCESS, RUNG_OF, Activation, Instance, InstanceState, Rung
from standby.runtime.engines.base import EngineAdapter, EngineHandle
from standby.runtime.lifecycle_values import Lifecycle
from standby.warm_pool.climb import Climb
from standby.warm_pool.door_load import DoorLoad
from standby.warm_pool.transitions import NOT_UNDER_WAY, Tracker


@dataclass
class Managed:
    """Owned by the agent's loop; nobody else changes it. Times are by the node's clock, seconds since the epoch.

    ``last_end`` is the door's last end of a request by the monotonic clock, ``idle_since`` the same by the node's.
    """

    assignment: Assignment
    life: Lifecycle
    adapter: EngineAdapter
    rung_since: float
    handle: EngineHandle | None = None
    climb: Climb | None = None
    activation: Activation | None = None
    progress: float | None = None
    resident_bytes: int = 0
    asleep_bytes: int = 0
    pinned: bool = False
    tracker: Tracker = NOT_UNDER_WAY
    sleep_depth: str = ""
    devices: tuple[str, ...] = ()
    cores: tuple[int, ...] = ()
    fingerprint: str = ""
    retry: asyncio.TimerHandle | None = None
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    last_end: float | None = None
    idle_since: float = 0.0
    last_said: Instance | None = None
    drain_until: float | None = None
    adapters: tuple[str, ...] = ()
    memory_pressure: float | None = None

    @property
    def id(self) -> str:
        """The instance's id."""
        return self.assignment.instance

    @property
    def digest(self) -> str:
        """The version of the model."""
        return self.assignment.model.manifest.digest

    @property
    def rung(self) -> Rung:
        """The rung that its state has reached."""
        return RUNG_OF[self.life.state]

    @property
    def prioritised(self) -> bool:
        """Whether its engine works by the priority that a request names; options that it refuses say nothing."""
        try:
            return self.adapter.prioritised(self.assignment.model.engine_options)
        except InvalidInput:
            return False

    @property
    def has_process(self) -> bool:
        """Whether an engine process may be alive."""
        return self.life.state in HAS_PROCESS

    def record(self, *, door: str, load: DoorLoad, idle_since: float | None, now: float) -> Instance:
        """Return what the node says of the instance."""
        assignment, life = self.assignment, self.life
        return Instance(
            node=assignment.node,
            id=assignment.instance,
            tenant=assignment.tenant,
            endpoint=assignment.endpoint,
            variant=assignment.variant,
            served_name=assignment.served_name,
            model_digest=self.digest,
            version=assignment.version,
            engine=assignment.model.engine,
            backend=assignment.backend,
            prioritised=self.prioritised,
            adapters=self.adapters,
            memory_pressure=self.memory_pressure,
            state=life.state,
            epoch=life.epoch,
            door=door,
            slots=assignment.door_slots,
            in_flight=load.in_flight,
            drain_until=self.drain_until,
            idle_since=idle_since,
            rung_since=self.rung_since,
            resident_bytes=self.resident_bytes if self.has_process else 0,
            progress=self.progress,
            activation=self.activation,
            failure=self._failure(),
            assignment_intent=assignment.intent,
            updated_at=now,
        )

    def moved(self, after: Lifecycle, now: float) -> bool:
        """Take up the next state of the life; return whether the rung has changed."""
        changed = RUNG_OF[after.state] is not RUNG_OF[self.life.state]
        if changed:
            self.rung_since = now
        if after.state is not InstanceState.READY:
            self.memory_pressure, self.adapters = None, ()
        if after.state is not InstanceState.DRAINING:
            self.drain_until = None
        self.life = after
        return changed

    def _failure(self) -> Failure | None:
        life = self.life
        # While it asks again it still lacks what it lacked: a record that forgets this for a moment would flicker.
        told = life.state is InstanceState.FAILED or life.retry_at or life.reserving
        if life.failure is None or not told:
            return None
        return life.failure.model_copy(update={"node": self.assignment.node, "instance": self.id})
