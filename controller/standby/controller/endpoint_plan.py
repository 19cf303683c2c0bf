"""The plan of one endpoint: scale, place, keep alive, clean up, mark. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from standby.controller import keepalive, placement, scaling, status, victims
from standby.controller.actions import Action, Assign, Decision, DropEndpoint, Inputs, Plan, Retarget, Unassign
from standby.controller.view import LOST_NODE_KEPT_S, NEVER, ClusterView, EndpointView, Placed
from standby.domain.endpoint import EndpointStatus, Variant
from standby.domain.instance import Rung
from standby.domain.model import Model

# A failed endpoint with no instance left tries again when somebody asks, at most this often.
FAILED_RETRY_S: Final = 60.0


@dataclass(slots=True)
class _Draft:
    """What has been decided so far; local to one call."""

    endpoint: EndpointView
    cluster: ClusterView
    promised: dict[str, int]
    now: float
    actions: list[Action] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    wake_at: float = NEVER
    no_fit: str | None = None

    def wake(self, at: float) -> None:
        self.wake_at = min(self.wake_at, at)

    def note(self, action: str, reason: str, inputs: Inputs | None = None, *, loud: bool = False) -> None:
        record = self.endpoint.record
        self.decisions.append(Decision(action, reason, record.tenant, record.name, loud=loud, inputs=inputs or {}))

    def unassign(self, placed: Placed, reason: str, *, absence: bool = False) -> None:
        self.actions.append(
            Unassign(
                key=placed.key,
                revision=placed.revision,
                tenant=placed.assignment.tenant,
                endpoint=placed.assignment.endpoint,
                reason=reason,
                absence=absence,
            )
        )

    def move(self, placed: Placed, rung: Rung, reason: str, inputs: Inputs | None = None, slots: int | None = None) -> None:
        if rung is Rung.COLD:
            self.unassign(placed, reason)
            return
        climbs = rung is Rung.READY
        self.actions.append(
            Retarget(
                key=placed.key,
                revision=placed.revision,
                tenant=placed.assignment.tenant,
                endpoint=placed.assignment.endpoint,
                before=placed.assignment.rung,
                rung=rung,
                slots=placed.assignment.slots if slots is None else slots,
                generation=self.endpoint.record.generation if climbs else None,
                demand_at=self.endpoint.demand.oldest_arrival_at if climbs else None,
                reason=reason,
                inputs=inputs or {},
            )
        )


def plan_one(endpoint: EndpointView, cluster: ClusterView, promised: dict[str, int], now: float) -> Plan:
    """Return the plan of ``endpoint``; what is placed is added to ``promised`` (bytes by node)."""
    draft = _Draft(endpoint, cluster, promised, now)
    if endpoint.deleting:
        _finish_deletion(draft)
    elif not endpoint.resolved:
        draft.note("hold", f"config {endpoint.record.config} or one of its models is not at hand; nothing is changed")
    else:
        _serve(draft)
    return Plan(tuple(draft.actions), tuple(draft.decisions), {endpoint.key: draft.wake_at})


def _finish_deletion(draft: _Draft) -> None:
    endpoint = draft.endpoint
    for placed in endpoint.placed:
        draft.unassign(placed, "the endpoint is being deleted")
    if endpoint.placed:
        return
    waiting = [n for n in endpoint.leftover_nodes if _may_return(draft, n)]
    if waiting:
        draft.note("hold", f"deletion waits until {', '.join(sorted(waiting))} stopped its instances")
        draft.wake(min(draft.cluster.nodes[name].seen_at for name in waiting) + LOST_NODE_KEPT_S)
        return
    record = endpoint.record
    draft.actions.append(
        DropEndpoint(
            key=endpoint.key,
            revision=endpoint.revision,
            tenant=record.tenant,
            endpoint=record.name,
            reason="deleted, and no instance is left",
        )
    )


def _may_return(draft: _Draft, node: str) -> bool:
    seen = draft.cluster.nodes.get(node)
    return seen is not None and draft.now - seen.seen_at < LOST_NODE_KEPT_S


def _serve(draft: _Draft) -> None:
    endpoint = draft.endpoint
    assert endpoint.config is not None
    outdated = [p for p in endpoint.placed if _outdated(endpoint, p)]
    fresh = [p for p in endpoint.placed if p not in outdated]
    live = _drop_lost(draft, fresh)
    gone = _drop_broken_rests(draft, live)
    live = [p for p in live if p not in gone]
    for variant in endpoint.config.variants:
        _scale(draft, variant, [p for p in live if p.assignment.variant == variant.name])
    _retire(draft, _drop_lost(draft, outdated), any(p.ready for p in live))
    # A climb that is given up because nobody asks any more lacks no memory either.
    left = {action.key for action in draft.actions if isinstance(action, Unassign)}
    live = [p for p in live if p.key not in left or p.instance is None or not p.instance.refused]
    marked = status.mark(endpoint, live, draft.no_fit)
    if marked is not None:
        draft.actions.append(marked)


def _outdated(endpoint: EndpointView, placed: Placed) -> bool:
    """Whether it serves something that the endpoint's present config does not ask for, or failed before a retry."""
    assert endpoint.config is not None
    model = next((_model(endpoint, v) for v in endpoint.config.variants if v.name == placed.assignment.variant), None)
    if model is None:
        return True
    if placed.failed and placed.assignment.endpoint_generation < endpoint.record.generation:
        return True
    have = placed.assignment.model
    return (model.engine, model.engine_options, model.manifest) != (have.engine, have.engine_options, have.manifest)


def _model(endpoint: EndpointView, variant: Variant) -> Model:
    model = endpoint.model_of(variant)
    assert model is not None, "only resolved endpoints are served"
    return model


def _retire(draft: _Draft, outdated: Iterable[Placed], replaced: bool) -> None:
    """Remove what is outdated: at once where it does not serve, otherwise when a fresh one is ready or nobody asks."""
    quiet = draft.endpoint.demand.valid and draft.endpoint.demand.concurrency == 0
    for placed in outdated:
        if not placed.ready or replaced or (quiet and not placed.busy):
            draft.unassign(placed, "it serves an older version of the endpoint")


def _drop_lost(draft: _Draft, placed: Sequence[Placed]) -> list[Placed]:
    """Return those on living nodes; those whose node stayed silent for five minutes are removed.

    Silence alone is no evidence: until then the assignment is kept, and only not counted as capacity.
    """
    live: list[Placed] = []
    for one in placed:
        if draft.cluster.alive(one, draft.now):
            live.append(one)
            continue
        give_up = draft.cluster.lost_since(one) + LOST_NODE_KEPT_S
        if draft.now >= give_up:
            draft.unassign(one, f"node {one.assignment.node} has been silent for 5 minutes", absence=True)
        else:
            draft.wake(give_up)
    return live


def _drop_broken_rests(draft: _Draft, live: Sequence[Placed]) -> list[Placed]:
    """Remove what failed on its way down: cold is the rung that always works."""
    broken = [p for p in live if p.failed and not p.wants_ready and p.taken_up]
    for placed in broken:
        draft.unassign(placed, f"it failed on its way to {placed.assignment.rung.label}")
    return broken


def _scale(draft: _Draft, variant: Variant, live: Sequence[Placed]) -> None:
    """Bring one variant to its number of ready instances, then let what is idle sink."""
    endpoint, now = draft.endpoint, draft.now
    model = _model(endpoint, variant)
    up = [p for p in live if p.wants_ready]
    crowded = endpoint.demand.concurrency > len(up) * variant.policy.slots > 0
    capacity = scaling.Capacity(
        current=len(up),
        ready=sum(p.ready for p in up),
        ready_at=max((p.instance.rung_at for p in up if p.instance is not None and p.ready), default=None),
        climb_s=placement.cheapest_seconds(model, draft.cluster.nodes.values(), live, now) if crowded else 0.0,
    )
    decision = scaling.desired(endpoint.demand, endpoint.share(variant), variant.policy, capacity, now)
    draft.wake(decision.wake_at)
    inputs = _inputs(endpoint, variant, capacity, decision.count)
    if decision.count > len(up):
        _climb(draft, variant, live, decision, inputs)
    elif decision.count < len(up):
        up = _shrink(draft, variant, up, decision, inputs)
    elif status.starved(endpoint) and not up:
        _look_for_room(draft, variant, live)
    _keep_alive(draft, variant, live, up)


def _inputs(endpoint: EndpointView, variant: Variant, capacity: scaling.Capacity, count: int) -> Inputs:
    demand = endpoint.demand
    return {
        "variant": variant.name,
        "in_flight": demand.in_flight,
        "queued": demand.queued,
        "demand_valid": demand.valid,
        "current": capacity.current,
        "ready": capacity.ready,
        "desired": count,
        "slots": variant.policy.slots,
        "min_ready": variant.policy.min_ready,
        "max_instances": variant.policy.max_instances,
    }


def _climb(draft: _Draft, variant: Variant, live: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs) -> None:
    """Let instances climb; a failing endpoint gets none, so that it cannot starve others (field case B12)."""
    if any(p.failed for p in live):
        draft.note("hold", f"{decision.reason}, but an instance failed: its node tries again after its back-off", inputs)
        return
    if status.failed_for_good(draft.endpoint) and not any(p.wants_ready for p in live):
        retry_at = draft.endpoint.failure_at + FAILED_RETRY_S
        if draft.now < retry_at:
            draft.note("hold", f"{decision.reason}, but the endpoint failed less than {FAILED_RETRY_S:.0f} s ago", inputs)
            draft.wake(retry_at)
            return
    model = _model(draft.endpoint, variant)
    siblings = list(live)
    for _ in range(decision.count - sum(p.wants_ready for p in live)):
        choice = placement.choose(variant, model, draft.cluster.nodes.values(), siblings, draft.promised, draft.now)
        if isinstance(choice, placement.NoFit):
            draft.note("no capacity", choice.reason, inputs)
            if not any(p.wants_ready for p in live):
                draft.no_fit = choice.reason
            return
        siblings = [p for p in siblings if p is not choice.wake]
        _place(draft, variant, model, choice, f"{decision.reason}; {choice.reason}", inputs)


def _place(draft: _Draft, variant: Variant, model: Model, choice: placement.Choice, reason: str, inputs: Inputs) -> None:
    draft.promised[choice.node] = draft.promised.get(choice.node, 0) + choice.need_bytes
    seen = {**inputs, "node": choice.node, "from_rung": choice.from_rung.label, "predicted_s": round(choice.seconds, 3)}
    if choice.wake is not None:
        draft.move(choice.wake, Rung.READY, reason, seen, slots=variant.policy.slots)
        return
    record = draft.endpoint.record
    draft.actions.append(
        Assign(
            tenant=record.tenant,
            endpoint=record.name,
            generation=record.generation,
            variant=variant.name,
            served_name=record.served_name,
            model=model,
            node=choice.node,
            rung=Rung.READY,
            slots=variant.policy.slots,
            memory_mb=variant.memory_mb,
            drain_limit=variant.policy.drain_limit,
            activation_limit=variant.policy.activation_limit,
            demand_at=draft.endpoint.demand.oldest_arrival_at,
            reason=reason,
            inputs=seen,
        )
    )


def _look_for_room(draft: _Draft, variant: Variant, live: Sequence[Placed]) -> None:
    """Keep the endpoint Failed for want of room as long as there is none, also while nobody asks."""
    model = _model(draft.endpoint, variant)
    choice = placement.choose(variant, model, draft.cluster.nodes.values(), live, draft.promised, draft.now)
    if isinstance(choice, placement.NoFit):
        draft.no_fit = choice.reason


def _shrink(
    draft: _Draft, variant: Variant, up: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs
) -> list[Placed]:
    """Send the surplus one rung down; return what stays up."""
    surplus = victims.in_order(up)[: len(up) - decision.count]
    for placed in surplus:
        if placed.failed:
            draft.unassign(placed, f"{decision.reason}; it failed")
        else:
            lower = keepalive.next_rung_below(Rung.READY, variant.policy, zygote=draft.cluster.has_zygote(placed))
            draft.move(placed, lower, decision.reason, inputs)
    return [p for p in up if p not in surplus]


def _keep_alive(draft: _Draft, variant: Variant, live: Sequence[Placed], up: Sequence[Placed]) -> None:
    """Let idle instances sink. No data from gateways: nothing sinks."""
    if not draft.endpoint.demand.valid:
        return
    _sink_ready(draft, variant, up)
    for placed in live:
        if placed.wants_ready or not placed.settled or placed.instance is None or placed.failed:
            continue
        zygote = draft.cluster.has_zygote(placed)
        rung = placed.resting_rung(zygote=zygote)
        if rung is Rung.COLD or rung > placed.assignment.rung:
            continue  # still on its way to the rung that was asked for
        decision = keepalive.keep(rung, placed.instance.rung_at, variant.policy, draft.now, zygote=zygote)
        draft.wake(decision.wake_at)
        if decision.rung < rung:
            draft.move(placed, decision.rung, decision.reason)


def _sink_ready(draft: _Draft, variant: Variant, up: Sequence[Placed]) -> None:
    spare = victims.in_order(up)[: max(0, len(up) - variant.policy.min_ready)]
    failed = [p for p in spare if p.failed]
    ready = [p for p in spare if p.ready]
    since = _idle_since(draft.endpoint, up)
    if since is None:
        return
    for placed in (*ready, *failed):
        zygote = draft.cluster.has_zygote(placed)
        decision = keepalive.keep(Rung.READY, since, variant.policy, draft.now, zygote=zygote)
        draft.wake(decision.wake_at)
        if decision.rung is Rung.READY:
            continue
        if placed.failed:
            draft.unassign(placed, f"it failed and nobody has asked since: {decision.reason}")
        else:
            draft.move(placed, decision.rung, decision.reason, {"idle_s": round(draft.now - since, 3)})


def _idle_since(endpoint: EndpointView, up: Sequence[Placed]) -> float | None:
    """Return since when nothing happens, None while something does.

    The latest of the gateways' last arrival or end, an instance's last request, and its becoming ready or failing;
    loading counts as activity (field case B11), an instance with requests inside is busy whatever gateways say.
    """
    demand = endpoint.demand
    if demand.concurrency or any(p.busy or p.climbing for p in up):
        return None
    instants = [demand.active_at, endpoint.status_at if endpoint.record.status is EndpointStatus.FAILED else -math.inf]
    for placed in up:
        seen = placed.instance
        if seen is None:
            continue
        if not placed.failed:
            instants += [seen.rung_at, seen.rung_at if seen.idle_at is None else seen.idle_at]
        elif seen.record.failure is None or seen.record.failure.attempts <= 1:
            # only the first failure: the node's own retries are not activity, or a broken model would never be let go
            instants.append(seen.state_at)
    return max(instants)
