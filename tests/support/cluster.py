"""A whole cluster in memory for the controller's pure decisions: a clock that only the test moves, nodes that obey."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from standby.controller.actions import (
    Action,
    Assign,
    ConfirmAbsent,
    DropEndpoint,
    MarkEndpoint,
    Plan,
    Retarget,
    SettleUpdate,
    Unassign,
)
from standby.controller.demand import DemandBook
from standby.controller.economy import Economy
from standby.controller.placement import memory_need
from standby.controller.plan import plan
from standby.controller.view import (
    ClusterView,
    EndpointView,
    ObservedInstance,
    ObservedNode,
    Placed,
    observe_instance,
    observe_node,
)
from standby.domain.assignment import Assignment
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.endpoint import (
    NO_ZYGOTE,
    Endpoint,
    EndpointConfig,
    EndpointStatus,
    Failure,
    ScalePolicy,
    Variant,
    VariantCapacity,
)
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.model import Model
from standby.domain.names import key
from standby.domain.serving import labels_of
from support.cluster_records import GIB, HATCHED, MIB, TENANT, cached, make_config, make_endpoint, make_model, make_node

__all__ = ["GIB", "HATCHED", "MIB", "REST", "TENANT", "Cluster", "Slot", "cached", "make_config", "make_endpoint"]
__all__ += ["make_model", "make_node"]

REST = {
    Rung.READY: InstanceState.READY,
    Rung.ASLEEP: InstanceState.ASLEEP,
    Rung.ZYGOTE: InstanceState.ZYGOTE,
    Rung.STAGED: InstanceState.STAGED,
}


@dataclass
class Slot:
    """One assignment and what its node makes of it."""

    assignment: Assignment
    revision: int
    since: float
    seen: ObservedInstance | None = None
    done_at: float = math.inf
    hears_at: float = math.inf


@dataclass
class Cluster:
    """Endpoints, nodes and one gateway; ``run_until`` lets time pass, planning only on news and at the plan's own wakes.

    A climb takes ``load_s``, or what ``loads`` says of the rung it begins on. Instances of the endpoints, models and backends
    in ``fails`` do not start; on the nodes in ``no_hatch`` no zygote is ever ready.
    """

    load_s: float = 2.0
    loads: dict[Rung, float] = field(default_factory=dict)
    hears_s: float = 0.05
    now: float = 1000.0
    hatch_s: float = 0.0
    fails: set[str] = field(default_factory=set)
    no_hatch: set[str] = field(default_factory=set)
    back_off_s: float = 30.0
    beats: bool = True
    trace: list[tuple[float, Action]] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    endpoints: dict[str, tuple[Endpoint, int]] = field(default_factory=dict)
    configs: dict[str, EndpointConfig] = field(default_factory=dict)
    models: dict[str, Model] = field(default_factory=dict)
    nodes: dict[str, ObservedNode] = field(default_factory=dict)
    silent_nodes: set[str] = field(default_factory=set)
    traffic: dict[tuple[str, str, str], tuple[int, int]] = field(default_factory=dict)
    ended_at: dict[tuple[str, str, str], float] = field(default_factory=dict)
    economy: Economy = field(default_factory=Economy)

    def __post_init__(self) -> None:
        self.book = DemandBook(lambda: self.now)
        self._serial = 0
        self._sequence = 0
        self._status_at: dict[str, float] = {}
        self._failure_at: dict[str, float] = {}
        self._pending_at: dict[str, float] = {}
        self._wake_at = self._beat_at = self.now
        self.plans = 0

    # ---- building ---------------------------------------------------------------------------------------

    def add_node(self, name: str = "n1", **fields: object) -> None:
        node = make_node(name, **fields)  # type: ignore[arg-type]
        self.nodes[name] = ObservedNode(node, self.now, confirmed=True)

    def add_endpoint(
        self,
        name: str = "e",
        *,
        model: Model | None = None,
        memory_mb: int | None = None,
        limit: int | None = None,
        variants: tuple[Variant, ...] = (),
        **policy: object,
    ) -> str:
        """Add an endpoint of one variant, or of the given ones, whose models are made where they are not known."""
        chosen = model or make_model(f"m-{name}")
        scale = ScalePolicy.model_validate(policy)
        variant = Variant(model=chosen.name, memory_mb=memory_mb, concurrency_limit=limit, policy=scale)
        self.models[chosen.name] = chosen
        for one in variants:
            self.models.setdefault(one.model, make_model(one.model))
        self.configs[name] = make_config(name, *(variants or (variant,)))
        self.endpoints[key(TENANT, name)] = (make_endpoint(name), self._next())
        return key(TENANT, name)

    def update(self, name: str, *variants: Variant, models: tuple[Model, ...] = ()) -> None:
        """Do what the gateway does when somebody updates an endpoint: another config is to take over."""
        self.models |= {model.name: model for model in models}
        config = f"{name}-{self._next()}"
        self.configs[config] = make_config(config, *variants)
        self._change(name, status=EndpointStatus.UPDATING, pending_config=config, update_failure=None)
        self._pending_at[key(TENANT, name)] = self.now

    def resize(self, name: str, variant: str, **capacity: object) -> None:
        """Do what the gateway does when somebody changes a variant's weight or capacity."""
        self._change(name, capacities={variant: VariantCapacity.model_validate(capacity)})

    def _change(self, name: str, **changes: object) -> None:
        record, _ = self.endpoints[key(TENANT, name)]
        self.endpoints[key(TENANT, name)] = (record.model_copy(update=changes), self._next())

    def ask(self, name: str = "e", *, queued: int = 0, in_flight: int = 0, variant: str = "", backend: str = "") -> None:
        """Say what the gateway has for an endpoint, for a variant of it, or for one of its backends, from now on."""
        part = (name, variant, backend)
        before = self.traffic.get(part, (0, 0))
        self.traffic[part] = (in_flight, queued)
        if sum(before) and not in_flight + queued:
            self.ended_at[part] = self.now
        self.beat()

    def beat(self) -> None:
        self._sequence += 1
        demands = tuple(
            Demand(
                gateway="g1",
                boot_id="g",
                sequence=self._sequence,
                tenant=TENANT,
                endpoint=name,
                variant=variant,
                backend=backend,
                in_flight=in_flight,
                queued=queued,
                idle=0.0 if in_flight + queued else self.now - self.ended_at.get((name, variant, backend), self.now),
            )
            for (name, variant, backend), (in_flight, queued) in self.traffic.items()
        )
        self.book.take_beat(GatewayBeat(gateway="g1", boot_id="g", sequence=self._sequence, demands=demands))

    def retry(self, name: str = "e") -> None:
        """Do what the gateway does when somebody asks for a retry by hand."""
        full = key(TENANT, name)
        record, _ = self.endpoints[full]
        self.endpoints[full] = (record.model_copy(update={"generation": record.generation + 1}), self._next())

    # ---- seeing and acting ------------------------------------------------------------------------------

    def view(self) -> ClusterView:
        placed = {name: Placed(name, s.assignment, s.revision, s.since, s.seen) for name, s in self.slots.items()}
        promised: dict[str, int] = {}
        for one in placed.values():
            if one.wants_ready and not one.taken_up:
                need = memory_need(one.assignment.memory_mb, one.assignment.model, self.nodes.get(one.assignment.node))
                promised[one.assignment.node] = promised.get(one.assignment.node, 0) + need
        views: dict[str, EndpointView] = {}
        for name, (record, revision) in self.endpoints.items():
            own = tuple(p for p in placed.values() if p.assignment.endpoint == record.name)
            self.book.keep_window(name, 60.0)
            config, pending = self.configs.get(record.config), self.configs.get(record.pending_config or "")
            variants = [variant for one in (config, pending) if one is not None for variant in one.variants]
            views[name] = EndpointView(
                key=name,
                record=record,
                revision=revision,
                config=config,
                pending=pending,
                demands=self.book.by_variant(name, dict.fromkeys(label for one in variants for label in labels_of(one))),
                pending_at=self._pending_at.get(name, 0.0),
                models=self.models,
                demand=self.book.demand(name),
                placed=own,
                status_at=self._status_at.get(name, 0.0),
                failure_at=self._failure_at.get(name, 0.0),
            )
        return ClusterView(
            endpoints=views,
            nodes=dict(self.nodes),
            orphans=tuple(p for p in placed.values() if key(TENANT, p.assignment.endpoint) not in self.endpoints),
            promised=promised,
            economy=self.economy,
            assignment_count=len(placed),
            registry_empty=not self.endpoints,
        )

    def decide(self) -> Plan:
        """Plan, act, and prove that planning again yields nothing more."""
        first = plan(self.view(), self.now)
        self.plans += 1
        for action in first.actions:
            self.trace.append((self.now, action))
            self._apply(action)
        second = plan(self.view(), self.now)
        if any(isinstance(a, SettleUpdate) for a in first.actions):
            return self.decide()  # an update's end is a new state: what leaves then is planned from there
        absent = [a for a in second.actions if not isinstance(a, (ConfirmAbsent, DropEndpoint))]
        assert not absent, f"not idempotent at {self.now}: {first.actions} then {absent}"
        self._wake_at = second.wake_at
        self.book.look_ahead(self.endpoints, first.horizons)
        return first

    def run_until(self, until: float) -> None:
        """Let time pass; nodes finish their climbs, the gateway beats each second, the controller plans when it must."""
        while True:
            due = [min(s.done_at, s.hears_at) for s in self.slots.values()]
            at = min([self._wake_at, self._beat_at, self.book.next_expiry(), *due])
            if at > until:
                break
            self.now = max(self.now, at)
            self._tick()
            self.decide()
        self.now = until
        self.decide()

    def state_of(self, name: str = "e") -> list[str]:
        """Return the states of an endpoint's instances in words, sorted."""
        own = [s for s in self.slots.values() if s.assignment.endpoint == name]
        return sorted("new" if s.seen is None else s.seen.record.state.value for s in own)

    def status_of(self, name: str = "e") -> EndpointStatus:
        return self.endpoints[key(TENANT, name)][0].status

    def report(self, slot_key: str, state: InstanceState, **fields: object) -> None:
        """Let the node report a state; its clock runs 5000 s behind the controller's."""
        slot = self.slots[slot_key]
        clock = self.now - 5000.0
        before = slot.seen.record if slot.seen is not None else None
        moved = before is None or before.state is not state
        values: dict[str, object] = {
            "node": slot.assignment.node,
            "id": slot.assignment.instance,
            "tenant": TENANT,
            "endpoint": slot.assignment.endpoint,
            "variant": slot.assignment.variant,
            "backend": slot.assignment.backend,
            "served_name": slot.assignment.served_name,
            "model_digest": slot.assignment.model.manifest.digest,
            "state": state,
            "epoch": 1,
            "door": "127.0.0.1:7000",
            "slots": slot.assignment.door_slots,
            "version": slot.assignment.version,
            "idle_since": clock if state is InstanceState.READY else None,
            "rung_since": clock if moved or before is None else before.rung_since,
            "assignment_intent": slot.assignment.intent,
            "updated_at": clock,
        }
        slot.seen = observe_instance(slot.seen, Instance.model_validate({**values, **fields}), self.now)

    # ---- inside -----------------------------------------------------------------------------------------

    def _next(self) -> int:
        self._serial += 1
        return self._serial

    def _tick(self) -> None:
        for name, node in self.nodes.items():
            if name not in self.silent_nodes:
                moved = node.record.model_copy(update={"heartbeat": node.record.heartbeat + 1})
                self.nodes[name] = observe_node(node, moved, self.now)
        if self.now >= self._beat_at:
            self._beat_at = self.now + 1.0
            if self.beats:
                self.beat()
        self.book.expire()
        for name, slot in self.slots.items():
            if slot.done_at <= self.now:
                self._finish(name, slot)
            if slot.hears_at <= self.now:
                slot.hears_at = math.inf
                assert slot.seen is not None
                self.report(name, slot.seen.record.state, in_flight=slot.seen.record.in_flight)

    def _finish(self, name: str, slot: Slot) -> None:
        rung = slot.assignment.rung
        slot.done_at = math.inf
        if rung is Rung.READY and self._names(slot.assignment) & self.fails:
            attempts = 1
            if slot.seen is not None and slot.seen.record.failure is not None:
                attempts = slot.seen.record.failure.attempts + 1
            failure = Failure(reason="engine exited with code 1", first_error="bad model", attempts=attempts, code="start")
            self.report(name, InstanceState.FAILED, failure=failure)
            slot.done_at = self.now + self.back_off_s
        elif rung is Rung.ZYGOTE:
            self._rest_on_zygote(name, slot)
        else:
            self.report(name, REST[rung])

    def _names(self, assignment: Assignment) -> set[str]:
        return {assignment.endpoint, assignment.model.name, assignment.backend}

    def _rest_on_zygote(self, name: str, slot: Slot) -> None:
        """Report staged first, as nodes do, then zygote once it has hatched; an engine without one stays staged."""
        node = self.nodes[slot.assignment.node].record
        if slot.assignment.model.engine not in node.zygotes:
            self.report(name, InstanceState.STAGED)
        elif node.name in self.no_hatch:
            failure = Failure(reason="the zygote exited with code 1", code=NO_ZYGOTE, next_retry_at=self.now)
            self.report(name, InstanceState.STAGED, failure=failure)
            slot.done_at = self.now + self.back_off_s
        elif self.hatch_s and (slot.seen is None or slot.seen.record.state is not InstanceState.STAGED):
            self.report(name, InstanceState.STAGED)
            slot.done_at = self.now + self.hatch_s
        else:
            self.report(name, InstanceState.ZYGOTE)

    def _apply(self, action: Action) -> None:
        match action:
            case Assign():
                serial = self._next()
                value = Assignment(
                    node=action.node,
                    instance=f"{action.endpoint}-{serial}",
                    tenant=TENANT,
                    endpoint=action.endpoint,
                    endpoint_generation=action.generation,
                    variant=action.variant,
                    backend=action.backend,
                    served_name=action.served_name,
                    model=action.model,
                    rung=action.rung,
                    slots=action.slots,
                    admits=action.admits,
                    version=action.version,
                    memory_mb=action.memory_mb,
                    intent=f"i{serial}",
                    leader_epoch=1,
                )
                self.slots[key(value.node, value.instance)] = Slot(value, serial, self.now, None, self.now + self.load_s)
            case Retarget():
                slot = self.slots[action.key]
                assert slot.revision == action.revision
                serial = self._next()
                update: dict[str, object] = {
                    "rung": action.rung,
                    "slots": action.slots,
                    "admits": action.admits,
                    "intent": f"i{serial}",
                }
                update["ahead"] = action.keeps_ahead(slot.assignment.ahead)
                slot.assignment = slot.assignment.model_copy(update=update)
                slot.revision = serial
                if action.rung is not action.before:
                    slot.done_at = self.now + (self.loads.get(action.before, self.load_s) if action.rung is Rung.READY else 0.1)
                elif slot.seen is not None:
                    slot.hears_at = self.now + self.hears_s
            case Unassign():
                assert self.slots[action.key].revision == action.revision
                del self.slots[action.key]
            case MarkEndpoint():
                record, revision = self.endpoints[action.key]
                assert revision == action.revision
                self._change(record.name, status=action.status, failure=action.failure)
                self._failure_at[action.key] = self.now
                if record.status is not action.status:
                    self._status_at[action.key] = self.now
            case SettleUpdate():
                self._settle(action)
            case DropEndpoint():
                del self.endpoints[action.key]
            case ConfirmAbsent():
                for name, _ in action.assignments:
                    del self.slots[name]

    def _settle(self, action: SettleUpdate) -> None:
        record, _ = self.endpoints[action.key]
        changes: dict[str, object] = {"pending_config": None, "pending_capacities": {}, "update_failure": action.failure}
        if action.failure is None:
            changes |= {"config": record.pending_config, "capacities": record.pending_capacities}
        self._change(record.name, status=EndpointStatus.IN_SERVICE, **changes)
