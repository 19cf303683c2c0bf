"""The plan of one endpoint: scale, place, keep alive, clean up, mark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final

from standby.controller import keepalive, limits, placement, scaling, status, updates, victims
from standby.controller.actions import Action, Assign, Decision, DropEndpoint, Inputs, Plan, Retarget, Unassign
from standby.controller.served import Served, served
from standby.controller.view import LOST_NODE_KEPT_S, NEVER, ClusterView, EndpointView, Placed
from standby.domain.instance import Rung
from standby.domain.node import NodeMode

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
    no_fit: dict[status.Part, str] = field(default_factory=dict)
    no_room: str | None = None

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

    def move(
        self,
        placed: Placed,
        rung: Rung,
        reason: str,
        inputs: Inputs | None = None,
        *,
        climbs_for: Served | None = None,
    ) -> None:
        if rung is Rung.COLD:
            self.unassign(placed, reason)
            return
        demand_at = None if climbs_for is None else climbs_for.demand.oldest_arrival_at
        self.actions.append(
            Retarget(
                key=placed.key,
                revision=placed.revision,
                tenant=placed.assignment.tenant,
                endpoint=placed.assignment.endpoint,
                before=placed.assignment.rung,
                rung=rung,
                slots=placed.assignment.slots if climbs_for is None else climbs_for.variant.policy.slots,
                admits=placed.assignment.admits,
                generation=None if climbs_for is None else self.endpoint.record.generation,
                demand_at=demand_at,
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
    variants = served(endpoint)
    generation = endpoint.record.generation
    outdated = [p for p in endpoint.placed if not any(one.has(p, generation) for one in variants)]
    fresh = [p for p in endpoint.placed if p not in outdated]
    live = _drop_lost(draft, fresh)
    gone = _drop_broken_rests(draft, live)
    of = [(one, [p for p in live if p not in gone and one.has(p, generation)]) for one in variants]
    for _, parts in groupby((pair for pair in of if not pair[0].coming), key=lambda pair: pair[0].variant.name):
        _scale_variant(draft, list(parts))
    live = [p for one, its in of if not one.coming for p in its]
    _update(draft, [(one, its) for one, its in of if one.coming], live)
    _retire(draft, _drop_lost(draft, outdated), any(p.ready for p in live))
    # A climb that is given up because nobody asks any more lacks no memory either.
    left = {action.key for action in draft.actions if isinstance(action, Unassign)}
    live = [p for p in live if p.key not in left or p.instance is None or not p.instance.refused]
    complete = all(_has_what_it_keeps(one, its) for one, its in of if not one.coming)
    marked = status.mark(endpoint, live, draft.no_fit, complete=complete)
    if marked is not None:
        draft.actions.append(marked)


def _has_what_it_keeps(one: Served, its: Sequence[Placed]) -> bool:
    """Whether as many are ready as the variant keeps, or it is certain that they do not start."""
    return sum(p.ready for p in its) >= one.variant.policy.min_ready or updates.failed_for_good(its) is not None


def _update(draft: _Draft, coming: Sequence[tuple[Served, list[Placed]]], serving: Sequence[Placed]) -> None:
    """Bring up what the config of an update needs; end the update when it has that, or cannot have it."""
    endpoint, now = draft.endpoint, draft.now
    if endpoint.record.pending_config is None:
        return
    if not endpoint.pending_resolved:
        draft.note("hold", f"config {endpoint.record.pending_config} or one of its models is not at hand; the update waits")
        return
    arrivals = [
        updates.Arrival(one, tuple(its), updates.needed(one, endpoint, now, active=_active(endpoint, one, serving)))
        for one, its in coming
    ]
    if not any(arrival.failure for arrival in arrivals):
        for _, group in groupby(arrivals, key=lambda arrival: arrival.served.variant.name):
            _bring_up(draft, list(group))
    settled, look_again = updates.settle(endpoint, arrivals, draft.no_room, now)
    draft.wake(look_again)
    if settled is not None:
        draft.actions.append(settled)


def _active(endpoint: EndpointView, one: Served, serving: Sequence[Placed]) -> bool:
    """Whether something is up or asked for of what ``one`` is to replace."""
    if one.follows is None:
        return endpoint.demand.concurrency > 0 or any(p.wants_ready for p in serving)
    return one.follows.concurrency > 0 or any(p.wants_ready for p in serving if p.part == one.part)


def _bring_up(draft: _Draft, arrivals: Sequence[updates.Arrival]) -> None:
    """Let as many climb as one variant of the update needs, each of its backends for itself."""
    start = len(draft.actions)
    for arrival in arrivals:
        one, its = arrival.served, arrival.placed
        up = sum(p.wants_ready for p in its)
        decided = scaling.ScaleDecision(arrival.need, f"an update needs {arrival.need} ready instances of {one.label}")
        if arrival.need > up:
            seen: Inputs = {"variant": one.variant.name, "backend": one.backend, "current": up, "desired": arrival.need}
            _climb(draft, one, its, decided, seen)
    parts = [(arrival.served.variant, arrival.placed) for arrival in arrivals]
    draft.actions[start:] = limits.share_out(parts, draft.actions[start:])


def _retire(draft: _Draft, outdated: Iterable[Placed], replaced: bool) -> None:
    """Remove what is outdated: at once where it does not serve, otherwise when a fresh one is ready or nobody asks."""
    quiet = draft.endpoint.demand.valid and draft.endpoint.demand.concurrency == 0
    for placed in outdated:
        if not placed.ready or replaced or (quiet and not placed.busy):
            draft.unassign(placed, "it serves an older version of the endpoint")


def _drop_lost(draft: _Draft, placed: Sequence[Placed]) -> list[Placed]:
    """Return those on living nodes; those whose node stayed silent for five minutes, or is being emptied, are removed.

    Silence alone is no evidence: until then the assignment is kept, and only not counted as capacity.
    """
    live: list[Placed] = []
    for one in placed:
        if draft.cluster.alive(one, draft.now):
            mode = draft.cluster.nodes[one.assignment.node].record.mode
            # A rest stays: the node's next agent takes it up again. What a drained node lets go is gone.
            if mode.sheds and (one.wants_ready or mode is not NodeMode.LEAVING):
                draft.unassign(one, f"node {one.assignment.node} is {mode}")
            else:
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


def _scale_variant(draft: _Draft, parts: Sequence[tuple[Served, list[Placed]]]) -> None:
    """Scale each backend of a variant, or the variant itself, and say how many each door lets in."""
    start = len(draft.actions)
    for one, its in parts:
        _scale(draft, one, its)
    draft.actions[start:] = limits.share_out([(one.variant, its) for one, its in parts], draft.actions[start:])


def _scale(draft: _Draft, one: Served, live: Sequence[Placed]) -> None:
    """Bring one part to its number of ready instances, and let what is idle sink."""
    now = draft.now
    up = [p for p in live if p.wants_ready]
    crowded = one.demand.concurrency > len(up) * one.variant.policy.load > 0
    capacity = scaling.Capacity(
        current=len(up),
        ready=sum(p.ready for p in up),
        ready_at=max((p.instance.rung_at for p in up if p.instance is not None and p.ready), default=None),
        climb_s=placement.cheapest_seconds(one.model, draft.cluster.nodes.values(), live, now) if crowded else 0.0,
    )
    decision = scaling.desired(one.demand, one.share, one.variant.policy, capacity, now)
    draft.wake(decision.wake_at)
    inputs = _inputs(one, capacity, decision.count)
    if decision.count > len(up):
        _climb(draft, one, live, decision, inputs)
    elif decision.count < len(up):
        up = _shrink(draft, one, up, decision, inputs)
    elif status.starved(draft.endpoint, one.part) and not up:
        _look_for_room(draft, one, live)
    _keep_alive(draft, one, live, up)


def _inputs(one: Served, capacity: scaling.Capacity, count: int) -> Inputs:
    demand = one.demand
    return {
        "variant": one.variant.name,
        "backend": one.backend,
        "in_flight": demand.in_flight,
        "queued": demand.queued,
        "demand_valid": demand.valid,
        "current": capacity.current,
        "ready": capacity.ready,
        "desired": count,
        "slots": one.variant.policy.slots,
        "min_ready": one.variant.policy.min_ready,
        "max_instances": one.variant.policy.max_instances,
        "concurrency_limit": one.variant.limit,
    }


def _climb(draft: _Draft, one: Served, live: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs) -> None:
    """Let instances climb; a failing endpoint gets none, so that it cannot starve others (field case B12)."""
    if any(p.failed for p in live):
        draft.note("hold", f"{decision.reason}, but an instance failed: its node tries again after its back-off", inputs)
        return
    if not one.coming and status.failed_for_good(draft.endpoint, one.variant.name) and not any(p.wants_ready for p in live):
        retry_at = draft.endpoint.failure_at + FAILED_RETRY_S
        if draft.now < retry_at:
            draft.note("hold", f"{decision.reason}, but the endpoint failed less than {FAILED_RETRY_S:.0f} s ago", inputs)
            draft.wake(retry_at)
            return
    siblings = list(live)
    for _ in range(decision.count - sum(p.wants_ready for p in live)):
        choice = placement.choose(one.variant, one.model, draft.cluster.nodes.values(), siblings, draft.promised, draft.now)
        if isinstance(choice, placement.NoFit):
            draft.note("no capacity", choice.reason, inputs)
            if one.coming:
                draft.no_room = choice.reason
            elif not choice.passing and not any(p.wants_ready for p in live):
                draft.no_fit[one.part] = choice.reason
            return
        siblings = [p for p in siblings if p is not choice.wake]
        _place(draft, one, choice, f"{decision.reason}; {choice.reason}", inputs)


def _place(draft: _Draft, one: Served, choice: placement.Choice, reason: str, inputs: Inputs) -> None:
    draft.promised[choice.node] = draft.promised.get(choice.node, 0) + choice.need_bytes
    seen = {**inputs, "node": choice.node, "from_rung": choice.from_rung.label, "predicted_s": round(choice.seconds, 3)}
    if choice.wake is not None:
        draft.move(choice.wake, Rung.READY, reason, seen, climbs_for=one)
        return
    record = draft.endpoint.record
    draft.actions.append(
        Assign(
            tenant=record.tenant,
            endpoint=record.name,
            generation=record.generation,
            variant=one.variant.name,
            served_name=record.served_name,
            model=one.model,
            node=choice.node,
            rung=Rung.READY,
            slots=one.variant.policy.slots,
            memory_mb=one.variant.memory_mb,
            drain_limit=one.variant.policy.drain_limit,
            activation_limit=one.variant.policy.activation_limit,
            demand_at=one.demand.oldest_arrival_at,
            reason=reason,
            version=one.version,
            backend=one.backend,
            inputs=seen,
        )
    )


def _look_for_room(draft: _Draft, one: Served, live: Sequence[Placed]) -> None:
    """Keep the endpoint Failed for want of room as long as there is none, also while nobody asks."""
    choice = placement.choose(one.variant, one.model, draft.cluster.nodes.values(), live, draft.promised, draft.now)
    if isinstance(choice, placement.NoFit):
        draft.no_fit[one.part] = choice.reason


def _shrink(draft: _Draft, one: Served, up: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs) -> list[Placed]:
    """Send the surplus one rung down; return what stays up."""
    surplus = victims.in_order(up)[: len(up) - decision.count]
    for placed in surplus:
        if placed.failed:
            draft.unassign(placed, f"{decision.reason}; it failed")
        else:
            lower = keepalive.next_rung_below(Rung.READY, one.variant.policy, zygote=draft.cluster.has_zygote(placed))
            draft.move(placed, lower, decision.reason, inputs)
    return [p for p in up if p not in surplus]


def _keep_alive(draft: _Draft, one: Served, live: Sequence[Placed], up: Sequence[Placed]) -> None:
    """Let idle instances sink. No data from gateways: nothing sinks."""
    if not one.demand.valid:
        return
    _sink_ready(draft, one, up)
    for placed in live:
        if placed.wants_ready or not placed.settled or placed.instance is None or placed.failed:
            continue
        zygote = draft.cluster.has_zygote(placed)
        rung = placed.resting_rung(zygote=zygote)
        if rung is Rung.COLD or rung > placed.assignment.rung:
            continue  # still on its way to the rung that was asked for
        decision = keepalive.keep(rung, placed.instance.rung_at, one.variant.policy, draft.now, zygote=zygote)
        draft.wake(decision.wake_at)
        if decision.rung < rung:
            draft.move(placed, decision.rung, decision.reason)


def _sink_ready(draft: _Draft, one: Served, up: Sequence[Placed]) -> None:
    spare = victims.in_order(up)[: max(0, len(up) - one.variant.policy.min_ready)]
    failed = [p for p in spare if p.failed]
    ready = [p for p in spare if p.ready]
    since = keepalive.idle_since(draft.endpoint, one.demand, up)
    if since is None:
        return
    for placed in (*ready, *failed):
        zygote = draft.cluster.has_zygote(placed)
        decision = keepalive.keep(Rung.READY, since, one.variant.policy, draft.now, zygote=zygote)
        draft.wake(decision.wake_at)
        if decision.rung is Rung.READY:
            continue
        if placed.failed:
            draft.unassign(placed, f"it failed and nobody has asked since: {decision.reason}")
        else:
            draft.move(placed, decision.rung, decision.reason, {"idle_s": round(draft.now - since, 3)})
