"""What is meant to become of an endpoint's instances as long as nobody asks: rung, until when, what then, and why. Pure."""

from __future__ import annotations

import math

from standby.controller import keepalive, scaling, sinking
from standby.controller.served import Served, served
from standby.controller.sinking import Held
from standby.controller.view import NEVER, ClusterView, EndpointView, Placed
from standby.controller.weighing import prices_in_words
from standby.domain.durations import format_duration
from standby.domain.instance import Rung
from standby.domain.outlook import Intention, Outlook

_RUNGS = (Rung.READY, Rung.ASLEEP, Rung.ZYGOTE, Rung.STAGED)


def outlook(view: ClusterView, endpoint: EndpointView, now: float, controller: str) -> Outlook:
    """Return what is meant for each instance of ``endpoint``."""
    record = endpoint.record
    parts = tuple(_now(view, part, now) for part in served(endpoint)) if endpoint.resolved else ()
    policy = parts[0].variant.policy if parts else None
    times = () if policy is None else tuple((rung, keepalive.time_of(rung, policy)) for rung in _RUNGS)
    return Outlook(
        tenant=record.tenant,
        endpoint=record.name,
        controller=controller,
        prices="" if policy is None else prices_in_words(policy, view.economy),
        keeps=tuple(f"keep {rung.label}: {format_duration(seconds)}" for rung, seconds in times if seconds is not None),
        intentions=tuple(one for part in parts for one in _of_part(view, endpoint, part, now)),
    )


def _now(view: ClusterView, part: Served, now: float) -> Served:
    """Return ``part`` with the bounds of its schedules' open windows."""
    return part.with_policy(scaling.scheduled(part.variant.policy, view.wall_offset, now).policy)


def _of_part(view: ClusterView, endpoint: EndpointView, part: Served, now: float) -> list[Intention]:
    live = [p for p in endpoint.placed if part.has(p, endpoint.record.generation)]
    held = sinking.decided(endpoint, view, part, live, now)
    return [_intention(view, part, placed, held.get(placed.key), now) for placed in live]


def _intention(view: ClusterView, part: Served, placed: Placed, held: Held | None, now: float) -> Intention:
    have = placed.assignment
    at = {"instance": have.instance, "node": have.node, "variant": have.variant, "backend": have.backend}
    if held is None:
        return Intention(**at, rung=have.rung, by="demand", reason=_unheld(part, placed))
    decision, idle_at = held.decision, held.clocks.idle_at
    timer = keepalive.time_of(held.rung, part.variant.policy)
    by = f"policy ({prices_in_words(part.variant.policy, view.economy)})"
    if timer is not None:
        by = f"keep_{held.rung.label} {format_duration(timer)}"
    return Intention(
        **at,
        rung=decision.rung,
        for_s=None if decision.wake_at == NEVER else max(0.0, decision.wake_at - now),
        then=_then(part, held),
        by=by,
        idle_s=None if math.isinf(idle_at) else max(0.0, now - idle_at),
        reason=decision.reason,
    )


def _then(part: Served, held: Held) -> Rung | None:
    """Return the rung after the present one, as far as it is known now."""
    at = held.decision.wake_at
    if at == NEVER or held.decision.rung is not held.rung:
        return None
    after = keepalive.keep(held.rung, held.clocks, part.variant.policy, held.weighed, at, zygote=held.zygote)
    return None if after.rung is held.rung else after.rung


def _unheld(part: Served, placed: Placed) -> str:
    if placed.failed and placed.failure is not None:
        return f"it failed: {placed.failure.reason}"
    if placed.climbing:
        return f"on its way to ready: {placed.assignment.reason}"
    if placed.busy or part.demand.concurrency:
        return f"it answers: {part.demand.in_flight} requests run, {part.demand.queued} wait"
    if placed.wants_ready:
        return f"min_ready is {part.variant.policy.min_ready}" if part.variant.policy.min_ready else "others of it work"
    return f"on its way to {placed.assignment.rung.label}: {placed.assignment.reason}"
