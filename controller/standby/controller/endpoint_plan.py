"""The plan of one endpoint: scale, place, keep alive, clean up, mark. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from standby.controller import foresight, keepalive, limits, placement, recorded, scaling, sinking, status, updates, victims
from standby.controller.actions import Assign, DropEndpoint, Inputs, Plan, Retarget, Unassign
from standby.controller.draft import Draft
from standby.controller.order import in_order, rests_until
from standby.controller.served import Served, served
from standby.controller.sites import Sites
from standby.controller.view import LOST_NODE_KEPT_S, NEVER, ClusterView, EndpointView, Placed
from standby.domain.instance import Rung
from standby.domain.node import NodeMode

# A failed endpoint with no instance left tries again when somebody asks, at most this often.
FAILED_RETRY_S: Final = 60.0
# What has just become ready is not sent down again at once because there is less to do: its climb was paid for.
TENURE_S: Final = 10.0


def plan_one(endpoint: EndpointView, cluster: ClusterView, sites: Sites, now: float) -> Plan:
    """Return the plan of ``endpoint``; what is placed is noted in ``sites``."""
    draft = Draft(endpoint, cluster, sites, now)
    if endpoint.deleting:
        _finish_deletion(draft)
    elif not endpoint.resolved:
        draft.note("hold", f"config {endpoint.record.config} or one of its models is not at hand; nothing is changed")
    else:
        _serve(draft)
    horizons = {endpoint.key: draft.looks} if draft.looks else {}
    return Plan(tuple(draft.actions), tuple(draft.decisions), {endpoint.key: draft.wake_at}, horizons)


def _finish_deletion(draft: Draft) -> None:
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


def _may_return(draft: Draft, node: str) -> bool:
    seen = draft.cluster.nodes.get(node)
    return seen is not None and draft.now - seen.seen_at < LOST_NODE_KEPT_S


def _serve(draft: Draft) -> None:
    variants = _scheduled(draft, served(draft.endpoint))
    of: list[tuple[Served, Sequence[Placed]]]
    live: Sequence[Placed]
    if len(variants) == 1 and in_order(draft.endpoint, variants[0], draft.sites):
        live = draft.endpoint.placed
        of = [(variants[0], live)]
        _scale_variant(draft, of, in_order=True)
        if not draft.actions and not draft.no_fit:
            return
    else:
        of, live = _sort_out(draft, variants)
    complete = all(_has_what_it_keeps(one, its) for one, its in of if not one.coming)
    marked = status.mark(draft.endpoint, live, draft.no_fit, complete=complete)
    if marked is not None:
        draft.actions.append(marked)


def _scheduled(draft: Draft, variants: tuple[Served, ...]) -> tuple[Served, ...]:
    """Return the variants with the bounds that their scheduled windows give them now."""
    if not any(one.variant.policy.schedules for one in variants):
        return variants
    found = []
    for one in variants:
        now = scaling.scheduled(one.variant.policy, draft.cluster.wall_offset, draft.now)
        draft.wake(now.wake_at)
        if now.words:
            draft.windows[one.part] = now.words
        found.append(one.with_policy(now.policy))
    return tuple(found)


def _sort_out(draft: Draft, variants: Sequence[Served]) -> tuple[list[tuple[Served, Sequence[Placed]]], Sequence[Placed]]:
    """Scale every variant with what serves it, let go what serves none; return the instances of each, and those that count."""
    endpoint = draft.endpoint
    generation = endpoint.record.generation
    outdated = [p for p in endpoint.placed if not any(one.has(p, generation) for one in variants)]
    fresh = [p for p in endpoint.placed if p not in outdated]
    live = _drop_lost(draft, fresh)
    gone = _drop_broken_rests(draft, live)
    of: list[tuple[Served, Sequence[Placed]]] = [
        (one, [p for p in live if p not in gone and one.has(p, generation)]) for one in variants
    ]
    for _, parts in groupby((pair for pair in of if not pair[0].coming), key=lambda pair: pair[0].variant.name):
        _scale_variant(draft, list(parts))
    live = [p for one, its in of if not one.coming for p in its]
    leaving = _leaving(draft)
    _update(draft, [(one, its) for one, its in of if one.coming], [p for p in live if p.key not in leaving])
    _retire(draft, _drop_lost(draft, outdated), any(p.ready for p in live))
    # A climb that is given up because nobody asks any more lacks no memory either, and a backend that is let go fails no more.
    left = {action.key for action in draft.actions if isinstance(action, Unassign)}
    left |= _replaced(draft, live)
    return of, [p for p in live if p.key not in left or p.instance is None or not (p.instance.refused or p.part[1])]


def _leaving(draft: Draft) -> set[str]:
    """Return those that this plan lets go or lets fall: to an update they are up no more, now and at the next look."""
    return {a.key for a in draft.actions if isinstance(a, Unassign) or (isinstance(a, Retarget) and a.rung < Rung.READY)}


def _replaced(draft: Draft, live: Sequence[Placed]) -> set[str]:
    """Return those that lack memory while another one of the same part climbs elsewhere: nothing is wrong yet."""
    lacking = [p for p in live if p.lacks_memory]
    if not lacking:
        return set()
    coming = {p.part for p in live if p.climbing}
    coming |= {(action.variant, action.backend) for action in draft.actions if isinstance(action, Assign)}
    woken = {action.key for action in draft.actions if isinstance(action, Retarget) and action.rung is Rung.READY}
    coming |= {p.part for p in live if p.key in woken and not p.lacks_memory}
    return {p.key for p in lacking if p.part in coming}


def _has_what_it_keeps(one: Served, its: Sequence[Placed]) -> bool:
    """Whether as many are ready as the variant keeps, or it is certain that they do not start."""
    return sum(p.ready for p in its) >= one.variant.policy.min_ready or updates.failed_for_good(its) is not None


def _update(draft: Draft, coming: Sequence[tuple[Served, Sequence[Placed]]], serving: Sequence[Placed]) -> None:
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


def _bring_up(draft: Draft, arrivals: Sequence[updates.Arrival]) -> None:
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


def _retire(draft: Draft, outdated: Iterable[Placed], replaced: bool) -> None:
    """Remove what is outdated: at once where it does not serve, otherwise when a fresh one is ready or nobody asks."""
    quiet = draft.endpoint.demand.valid and draft.endpoint.demand.concurrency == 0
    for placed in outdated:
        if not placed.ready or replaced or (quiet and not placed.busy):
            draft.unassign(placed, "it serves an older version of the endpoint")


def _drop_lost(draft: Draft, placed: Sequence[Placed]) -> list[Placed]:
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


def _drop_broken_rests(draft: Draft, live: Sequence[Placed]) -> list[Placed]:
    """Remove what failed on its way down: cold is the rung that always works."""
    broken = [p for p in live if p.failed and not p.wants_ready and p.taken_up]
    for placed in broken:
        draft.unassign(placed, f"it failed on its way to {placed.assignment.rung.label}")
    return broken


def _scale_variant(draft: Draft, parts: Sequence[tuple[Served, Sequence[Placed]]], *, in_order: bool = False) -> None:
    """Scale each backend of a variant, or the variant itself, and say how many each door lets in.

    ``in_order``: as ``order`` says it; while nothing changes, every door lets in what it should then.
    """
    start = len(draft.actions)
    for one, its in parts:
        _scale(draft, one, its, in_order=in_order)
    if in_order and len(draft.actions) == start:
        return
    draft.actions[start:] = limits.share_out([(one.variant, its) for one, its in parts], draft.actions[start:])


def _scale(draft: Draft, one: Served, live: Sequence[Placed], *, in_order: bool) -> None:
    """Bring one part to its number of ready instances, and let what is idle sink."""
    up = [p for p in live if p.wants_ready]
    # What its node has no memory for is no capacity to come: another node may have it.
    refused = [p for p in up if p.lacks_memory]
    sound = [p for p in up if p not in refused] if refused else up
    ahead = foresight.margin(draft.cluster, one, sound)
    capacity = _capacity(draft, one, live, sound, ahead)
    decision = foresight.desired(one.demand, one.share, one.variant.policy, capacity, draft.now, ahead)
    draft.wake(decision.wake_at)
    if decision.count > len(sound):
        _climb(draft, one, live, _with_windows(draft, one, decision), _inputs(one, capacity, decision.count, draft.now, ahead))
    elif decision.count < len(sound):
        decision = _with_windows(draft, one, decision)
        up = [*_shrink(draft, one, sound, decision, _inputs(one, capacity, decision.count, draft.now, ahead)), *refused]
    elif status.starved(draft.endpoint, one.part) and not up:
        _look_for_room(draft, one, live)
    # not while more are asked for: it would be the next to be woken, and refused again
    enough = max(1, decision.count, scaling.needed(one.demand.concurrency, one.share, one.variant.policy))
    if refused and capacity.ready >= enough:
        _give_up(draft, refused)
        up = [p for p in up if p not in refused]
    if refused and len(sound) < one.variant.policy.min_ready:
        up = sound  # let go, what is to be kept ready would ask their nodes again at once
    until = rests_until(draft.endpoint, one, up, draft.now) if in_order else None
    if until is None:
        _keep_alive(draft, one, live, up)
    else:
        draft.wake(until)


def _capacity(
    draft: Draft, one: Served, live: Sequence[Placed], up: Sequence[Placed], ahead: foresight.Margin | None
) -> scaling.Capacity:
    ready = [p.instance.rung_at for p in up if p.instance is not None and p.instance.ready]
    crowded, climb_s = one.demand.concurrency > len(up) * one.variant.policy.load > 0, 0.0
    if crowded or ahead is not None:
        climb_s = placement.cheapest_seconds(one.variant, one.model, draft.sites, live, draft.tenant)
    look = None if ahead is None else foresight.look(one.variant.policy, climb_s)
    if look is not None:
        draft.looks[one.label] = look
    return scaling.Capacity(len(up), len(ready), max(ready, default=None), climb_s)


def _with_windows(draft: Draft, one: Served, decision: scaling.ScaleDecision) -> scaling.ScaleDecision:
    """Return the decision with the scheduled windows under which it was made."""
    words = draft.windows.get(one.part)
    return decision if words is None else replace(decision, reason=f"{decision.reason}; open: {words}")


def _give_up(draft: Draft, refused: Sequence[Placed]) -> None:
    """Let go what waits for memory that its node does not have, now that others serve: it rests where it is."""
    for placed in refused:
        rests = Rung.COLD if placed.instance is None else placed.instance.record.rung
        draft.move(placed, rests, f"its node {placed.assignment.node} has no memory for it, and others serve")


def _inputs(one: Served, capacity: scaling.Capacity, count: int, now: float, ahead: foresight.Margin | None) -> Inputs:
    return {
        "variant": one.variant.name,
        "backend": one.backend,
        "in_flight": one.demand.in_flight,
        "queued": one.demand.queued,
        "demand_valid": one.demand.valid,
        "current": capacity.current,
        "ready": capacity.ready,
        "desired": count,
        "slots": one.variant.policy.slots,
        "min_ready": one.variant.policy.min_ready,
        "max_instances": one.variant.policy.max_instances,
        "concurrency_limit": one.variant.limit,
        **recorded.scaled(one.demand, one.share, one.variant.policy, capacity, now, ahead),
    }


def _climb(draft: Draft, one: Served, live: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs) -> None:
    """Let instances climb; a failing endpoint gets none, so that it cannot starve others (field case B12)."""
    if any(p.failed and not p.lacks_memory for p in live):
        draft.note("hold", f"{decision.reason}, but an instance failed: its node tries again after its back-off", inputs)
        return
    if not one.coming and status.failed_for_good(draft.endpoint, one.variant.name) and not any(p.wants_ready for p in live):
        retry_at = draft.endpoint.failure_at + FAILED_RETRY_S
        if draft.now < retry_at:
            draft.note("hold", f"{decision.reason}, but the endpoint failed less than {FAILED_RETRY_S:.0f} s ago", inputs)
            draft.wake(retry_at)
            return
    siblings = list(live)
    for _ in range(decision.count - sum(p.wants_ready and not p.lacks_memory for p in live)):
        choice = placement.choose(one.variant, one.model, draft.sites, siblings, draft.tenant)
        if isinstance(choice, placement.NoFit):
            draft.note("no capacity", choice.reason, inputs)
            if one.coming:
                draft.no_room = choice.reason
            elif not choice.passing and not any(p.wants_ready for p in live):
                draft.no_fit[one.part] = choice.reason
            return
        siblings = [p for p in siblings if p is not choice.wake]
        _place(draft, one, choice, f"{decision.reason}; {choice.reason}", inputs)


def _place(draft: Draft, one: Served, choice: placement.Choice, reason: str, inputs: Inputs) -> None:
    draft.sites.place(choice.node, choice.need_bytes, draft.tenant, isolate=one.variant.policy.isolate)
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


def _look_for_room(draft: Draft, one: Served, live: Sequence[Placed]) -> None:
    """Keep the endpoint Failed for want of room as long as there is none, also while nobody asks."""
    choice = placement.choose(one.variant, one.model, draft.sites, live, draft.tenant)
    if isinstance(choice, placement.NoFit):
        draft.no_fit[one.part] = choice.reason


def _shrink(draft: Draft, one: Served, up: Sequence[Placed], decision: scaling.ScaleDecision, inputs: Inputs) -> list[Placed]:
    """Send the surplus one rung down; return what stays up."""
    policy = one.variant.policy
    leaving = victims.in_order(up)
    if len(up) <= policy.max_instances:
        tenants = {p.key for p in up if p.instance is not None and p.ready and draft.now < p.instance.rung_at + TENURE_S}
        draft.wake(min((p.instance.rung_at + TENURE_S for p in up if p.instance and p.key in tenants), default=NEVER))
        leaving = [p for p in leaving if p.key not in tenants]
    surplus = leaving[: len(up) - decision.count]
    for placed in surplus:
        if placed.failed:
            draft.unassign(placed, f"{decision.reason}; it failed")
        else:
            lower = keepalive.next_rung_below(Rung.READY, policy, zygote=draft.cluster.has_zygote(placed))
            draft.move(placed, lower, decision.reason, inputs)
    return [p for p in up if p not in surplus]


def _keep_alive(draft: Draft, one: Served, live: Sequence[Placed], up: Sequence[Placed]) -> None:
    """Let idle instances sink, as ``sinking`` decides."""
    sunk = sinking.sink(draft.endpoint, draft.cluster, one, live, up, draft.now)
    draft.wake(sunk.wake_at)
    for move in sunk.moves:
        climbs_for = one if move.wish is not None else None
        verb = "expected" if move.used else ""
        draft.move(move.placed, move.rung, move.reason, move.inputs, climbs_for=climbs_for, wish=move.wish, verb=verb)
