"""What the controller sees, as frozen values; every instant is on the controller's own monotonic clock.

Two machines' clocks are never compared: the shell writes down when it saw something change (``observe_instance``,
``observe_node``) and decisions are made from those instants alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from standby.controller.asked import NO_DEMAND, EndpointDemand
from standby.controller.economy import Economy
from standby.domain.assignment import Assignment
from standby.domain.endpoint import NO_MEMORY, Backend, Endpoint, EndpointConfig, EndpointStatus, Failure, Variant
from standby.domain.instance import HAS_PROCESS, Instance, InstanceState, Rung
from standby.domain.model import EngineKind, Model
from standby.domain.node import Device, DeviceKind, Node, NodeMode
from standby.domain.serving import model_of_part, parts_of

NODE_LOST_AFTER_S: Final = 15.0
LOST_NODE_KEPT_S: Final = 300.0
# The node asks itself again after 1, 2 and 4 seconds: the fourth refusal means that sleepers and others do not give way.
REFUSALS: Final = 4
NEVER: Final = math.inf
ZYGOTE_READY: Final = "ready"
_GPU_STEP: Final = 64 * 1024**2


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    """An instance's record, and when the controller saw its clocks start."""

    record: Instance
    rung_at: float
    idle_at: float | None
    state_at: float

    @property
    def ready(self) -> bool:
        """It answers requests."""
        return self.record.state is InstanceState.READY

    @property
    def failed(self) -> bool:
        """The node could not bring it up and waits before it tries again."""
        return self.record.state is InstanceState.FAILED

    @property
    def refused(self) -> bool:
        """Its node has had no memory for its climb for several tries."""
        failure = self.record.failure
        return not self.ready and failure is not None and failure.code == NO_MEMORY and failure.attempts >= REFUSALS

    @property
    def busy(self) -> bool:
        """It works on a request, whatever the gateways say."""
        return self.record.in_flight > 0 or (self.ready and self.record.idle_since is None)


def observe_instance(before: ObservedInstance | None, record: Instance, now: float) -> ObservedInstance:
    """Return ``record`` with its clocks moved to the controller's.

    A clock that the node did not restart keeps its anchor. At first sight the age that the node itself could
    measure (``updated_at`` minus the start, both by its clock) is a lower bound of the true age: never too old.
    """
    same_life = before is not None and before.record.epoch == record.epoch
    if before is not None and same_life and before.record.rung_since == record.rung_since:
        rung_at = before.rung_at
    else:
        rung_at = now - max(0.0, record.updated_at - record.rung_since)
    idle_at: float | None = None
    if record.idle_since is not None:
        if before is not None and before.idle_at is not None and before.record.idle_since == record.idle_since:
            idle_at = before.idle_at
        else:
            idle_at = now - max(0.0, record.updated_at - record.idle_since)
    state_at = before.state_at if before is not None and same_life and before.record.state is record.state else now
    return ObservedInstance(record=record, rung_at=rung_at, idle_at=idle_at, state_at=state_at)


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node's record and when its heartbeat was last seen to move.

    ``confirmed`` is False until it has moved once before the controller's eyes: the record may be a dead node's.
    """

    record: Node
    seen_at: float
    confirmed: bool = False

    def alive(self, now: float) -> bool:
        """Its heartbeat moved within the last 15 seconds."""
        return now - self.seen_at < NODE_LOST_AFTER_S

    @property
    def open(self) -> bool:
        """Whether anything new may be placed there."""
        return self.record.mode is NodeMode.OPEN

    def has_zygote(self, engine: EngineKind) -> bool:
        """Whether instances of this engine can rest on a zygote here, also while it is being hatched."""
        return engine in self.record.zygotes

    def zygote_ready(self, engine: EngineKind) -> bool:
        """Whether a start here would be forked now."""
        zygote = self.record.zygotes.get(engine)
        return zygote is not None and zygote.state == ZYGOTE_READY

    def needs_gpu(self, engine: EngineKind) -> bool:
        """Whether this engine computes on a GPU, or a part of one, here."""
        return self.record.engine_devices.get(engine, DeviceKind.CPU) is not DeviceKind.CPU

    @property
    def fit_gpus(self) -> tuple[Device, ...]:
        """GPUs and MIG instances on which something new may be placed, memory left aside.

        A GPU that is cut into MIG instances is no device by itself, and its faults are theirs.
        """
        devices = [device for device in self.record.devices if device.kind is not DeviceKind.CPU]
        cordoned = {device.id for device in devices if device.cordoned}
        cut = {device.parent for device in devices if device.parent}
        return tuple(d for d in devices if d.id not in cut and not {d.id, d.parent} & cordoned)


def observe_node(before: ObservedNode | None, record: Node, now: float) -> ObservedNode:
    """Return ``record`` with the moment its heartbeat was last seen to move."""
    if before is None:
        return ObservedNode(record=record, seen_at=now)
    moved = (before.record.heartbeat, before.record.boot_id) != (record.heartbeat, record.boot_id)
    if moved:
        return ObservedNode(record=record, seen_at=now, confirmed=True)
    return replace(before, record=record)


def offer(node: Node) -> tuple[object, ...]:
    """Return what of a node's record can change a placement from impossible to possible.

    A GPU's free memory counts in steps, because what is measured there moves with every beat.
    """
    gpus = tuple(
        (device.id, device.cordoned, device.memory_free // _GPU_STEP)
        for device in node.devices
        if device.kind is not DeviceKind.CPU
    )
    return node.boot_id, node.mode, node.engines, node.memory.free, gpus


@dataclass(frozen=True, slots=True)
class ObservedStatus:
    """What an endpoint's record says of it, and when each was last seen to change."""

    status: EndpointStatus | None = None
    failure: Failure | None = None
    pending: str | None = None
    status_at: float = -math.inf
    failure_at: float = -math.inf
    pending_at: float = -math.inf


def observe_status(before: ObservedStatus | None, record: Endpoint, now: float) -> ObservedStatus:
    """Return what ``record`` says, with the moments at which that was last seen to change."""
    said = (record.status, record.failure, record.pending_config)
    if before is None:
        return ObservedStatus(*said, now, now, now)
    return ObservedStatus(
        *said,
        before.status_at if before.status is record.status else now,
        before.failure_at if before.failure == record.failure else now,
        before.pending_at if before.pending == record.pending_config else now,
    )


@dataclass(frozen=True, slots=True)
class Placed:
    """One assignment with its revision, and what its node says of the instance."""

    key: str
    assignment: Assignment
    revision: int
    since: float
    instance: ObservedInstance | None = None

    @property
    def wants_ready(self) -> bool:
        """The controller wants it to answer requests."""
        return self.assignment.rung is Rung.READY

    @property
    def ready(self) -> bool:
        """It does answer requests."""
        return self.instance is not None and self.instance.ready

    @property
    def failed(self) -> bool:
        """Its node could not bring it up; want of memory for a few seconds is no failure, for longer it is one."""
        seen = self.instance
        if seen is None:
            return False
        record = seen.record
        if record.failure is None:
            return record.state is InstanceState.FAILED
        # Where nobody has asked, want of memory is no failure however long it lasts.
        return seen.failed or (self.wants_ready and self.assignment.ahead is None and seen.refused)

    @property
    def lacks_memory(self) -> bool:
        """Its node has had no memory for its climb for several tries: another node is asked, this one is left alone."""
        return self.failed and self.wants_ready and self.instance is not None and self.instance.refused

    @property
    def failure(self) -> Failure | None:
        """Why, in its node's words, told of its variant and backend."""
        failure = None if self.instance is None else self.instance.record.failure
        if failure is None:
            return None
        return failure.model_copy(update={"variant": self.assignment.variant, "backend": self.assignment.backend})

    @property
    def part(self) -> tuple[str, str]:
        """Its variant's name and its backend's label, empty where the variant has none."""
        return self.assignment.variant, self.assignment.backend

    @property
    def busy(self) -> bool:
        """It works on a request."""
        return self.instance is not None and self.instance.busy

    @property
    def climbing(self) -> bool:
        """On its way to ready: capacity to come."""
        return self.wants_ready and not self.ready and not self.failed

    @property
    def in_flight(self) -> int:
        """Requests inside, as its door counts them."""
        return 0 if self.instance is None else self.instance.record.in_flight

    @property
    def may_hold(self) -> int:
        """The most requests that its door may have inside now or let in before it hears anything new.

        What was ordered counts from the order on, what was before it until the node has taken the order up. Where nothing
        tells what that was, it may be all of its slots.
        """
        ordered = self.assignment.door_slots if self.wants_ready else 0
        if self.instance is None:
            return max(ordered, self.assignment.slots)
        record = self.instance.record
        told = record.slots if record.state in HAS_PROCESS else self.assignment.slots
        return max(ordered, 0 if self.taken_up else told, record.in_flight)

    @property
    def taken_up(self) -> bool:
        """The node has read the present intent, so its ledger already knows of it."""
        return self.instance is not None and self.instance.record.assignment_intent == self.assignment.intent

    def resting_rung(self, *, zygote: bool) -> Rung:
        """Return the rung whose time runs while it rests; ``zygote``: its engine has one on its node.

        Told to rest on a zygote and staged still, it waits for that zygote, for as long as it might rest on it: not for
        ever, as the zygote may never come.
        """
        if self.instance is None:
            return Rung.COLD
        rung = self.instance.record.rung
        waits = zygote and rung is Rung.STAGED and self.assignment.rung in {Rung.ZYGOTE, Rung.ASLEEP}
        return Rung.ZYGOTE if waits else rung

    @property
    def settled(self) -> bool:
        """It rests on its rung: nothing is under way."""
        if self.instance is None:
            return False
        state = self.instance.record.state
        return self.taken_up and (state not in HAS_PROCESS or state in {InstanceState.READY, InstanceState.ASLEEP})


@dataclass(frozen=True, slots=True)
class EndpointView:
    """One endpoint with everything that is decided for it; ``config`` and ``models`` are None or short when unread.

    ``pending`` is the config that an update brings, seen since ``pending_at``. ``demands`` is the demand by variant, or by
    backend where it has several, ``""`` in it what gateways say that do not tell variants apart. ``status_at`` and
    ``failure_at`` are when its status and its failure were last seen to change; ``leftover_nodes`` are those that still
    report an instance of it.
    """

    key: str
    record: Endpoint
    revision: int
    config: EndpointConfig | None = None
    pending: EndpointConfig | None = None
    models: Mapping[str, Model] = field(default_factory=dict)
    demand: EndpointDemand = NO_DEMAND
    demands: Mapping[str, EndpointDemand] = field(default_factory=dict)
    placed: tuple[Placed, ...] = ()
    status_at: float = -math.inf
    failure_at: float = -math.inf
    pending_at: float = -math.inf
    leftover_nodes: tuple[str, ...] = ()

    @property
    def deleting(self) -> bool:
        """It is going away."""
        return self.record.status is EndpointStatus.DELETING

    @property
    def resolved(self) -> bool:
        """Its config and every variant's model are at hand."""
        return self.config is not None and self._has_models(self.config)

    @property
    def pending_resolved(self) -> bool:
        """The config of its update and every variant's model are at hand."""
        return self.pending is not None and self._has_models(self.pending)

    def model_of(self, part: Variant, backend: Backend | None = None) -> Model | None:
        """Return what an instance serves: the model with the chosen weights, by its engine; None while it is unread.

        ``part`` and ``backend`` as ``serving.parts_of`` returns them.
        """
        model = self.models.get(part.model)
        return None if model is None else model_of_part(model, part, backend)

    def _has_models(self, config: EndpointConfig) -> bool:
        parts = (one for variant in config.variants for one in parts_of(variant))
        return all(self.model_of(part, backend) is not None for backend, part in parts)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The whole cluster, or the part that one decision needs.

    ``orphans`` are assignments whose endpoint record was not seen; ``registry_empty`` says that no endpoint at all
    was; ``assignment_count`` counts every assignment, also those outside this view. ``residents``: by node, the tenants that
    have something there, and whether one of its endpoints wants no other tenant beside it; empty where none does.
    ``wall_offset``: wall time minus the controller's clock, for schedules; None: not known.
    """

    endpoints: Mapping[str, EndpointView]
    nodes: Mapping[str, ObservedNode]
    orphans: tuple[Placed, ...] = ()
    promised: Mapping[str, int] = field(default_factory=dict)
    residents: Mapping[str, Mapping[str, bool]] = field(default_factory=dict)
    wall_offset: float | None = None
    economy: Economy = field(default_factory=Economy)
    assignment_count: int = 0
    registry_empty: bool = False
    connected: bool = True

    def alive(self, placed: Placed, now: float) -> bool:
        """Whether the node of ``placed`` has been heard within the last 15 seconds."""
        node = self.nodes.get(placed.assignment.node)
        return node is not None and node.alive(now)

    def has_zygote(self, placed: Placed) -> bool:
        """Whether the engine of ``placed`` has a zygote on its node."""
        node = self.nodes.get(placed.assignment.node)
        return node is not None and node.has_zygote(placed.assignment.model.engine)

    def lost_since(self, placed: Placed) -> float:
        """Return when the node of ``placed`` was last heard; for a node without a record, since when we know it."""
        node = self.nodes.get(placed.assignment.node)
        return placed.since if node is None else node.seen_at
