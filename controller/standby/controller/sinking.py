"""Which idle instances of one part of an endpoint fall, which one climbs before it is asked, and why. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from standby.controller import keepalive, prewarm, recorded, victims, weighing
from standby.controller.actions import Inputs
from standby.controller.demotion import expected_loss
from standby.controller.keepalive import Clocks, KeepDecision
from standby.controller.prewarm import Wish
from standby.controller.served import Served
from standby.controller.view import NEVER, ClusterView, EndpointView, Placed
from standby.controller.weighing import Weighing
from standby.domain.endpoint import EndpointStatus
from standby.domain.instance import Rung

# A climb ahead of demand that was refused is asked for again after this.
WISH_AGAIN_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Move:
    """Move ``placed`` to ``rung``; cold: its assignment goes.

    ``wish``: it is a climb that nobody waits for. ``used``: it stays, and somebody has asked of what had climbed unasked.
    """

    placed: Placed
    rung: Rung
    reason: str
    inputs: Inputs
    wish: Wish | None = None
    used: bool = False


@dataclass(frozen=True, slots=True)
class Sinking:
    """What falls or climbs now, and when to look again without news."""

    moves: tuple[Move, ...] = ()
    wake_at: float = NEVER


class Held(NamedTuple):
    """What is decided of one idle instance on ``rung``, and what from."""

    placed: Placed
    rung: Rung
    clocks: Clocks
    weighed: Weighing | None
    zygote: bool
    decision: KeepDecision


def sink(
    endpoint: EndpointView, cluster: ClusterView, one: Served, live: Sequence[Placed], up: Sequence[Placed], now: float
) -> Sinking:
    """Return what of ``one`` moves; ``up`` are those of ``live`` that stay wanted ready. No data from gateways: nothing."""
    if not one.demand.valid:
        return Sinking()
    moves = list(_unasked(cluster, one, up, now))
    moved = {move.placed.key for move in moves}
    wake_at, wish = NEVER, None
    for held in _held(endpoint, cluster, one, live, up, now):
        if held.placed.key in moved:
            continue
        wake_at = min(wake_at, held.decision.wake_at)
        if held.decision.rung < held.rung:
            moves.append(_fall(held, now))
        elif held.decision.rung > held.rung and wish is None and not up and _may_climb(endpoint, cluster, one, held, now):
            wish = _wish(cluster, one, held, now)
    if wish is not None:
        moves.append(wish)
        wake_at = min(wake_at, now + WISH_AGAIN_S)
    return Sinking(tuple(moves), wake_at)


def decided(endpoint: EndpointView, cluster: ClusterView, one: Served, live: Sequence[Placed], now: float) -> dict[str, Held]:
    """Return by its key what is decided of each idle instance of ``one``; what works or is under way is not among them."""
    up = [p for p in live if p.wants_ready]
    return {held.placed.key: held for held in _held(endpoint, cluster, one, live, up, now)}


def _held(
    endpoint: EndpointView, cluster: ClusterView, one: Served, live: Sequence[Placed], up: Sequence[Placed], now: float
) -> Iterator[Held]:
    since = keepalive.idle_since(endpoint, one.demand, up) if up else None
    if since is not None:
        spare = victims.in_order(up)[: max(0, len(up) - one.variant.policy.min_ready)]
        for placed in (*(p for p in spare if p.ready), *(p for p in spare if p.failed)):
            yield _decide(cluster, one, placed, Rung.READY, Clocks(since, since), now)
    busy = bool(up) or one.demand.concurrency > 0
    for placed in live:
        if placed.wants_ready or not placed.settled or placed.instance is None or placed.failed:
            continue
        rung = placed.resting_rung(zygote=cluster.has_zygote(placed))
        if rung is Rung.COLD or rung > placed.assignment.rung:
            continue  # still on its way to the rung that was asked for
        rests = placed.instance.rung_at
        # Beside others that answer, the endpoint's gaps say nothing of when this one will be needed.
        idle_at = rests if busy else min(rests, keepalive.resting_since(one.demand, placed))
        yield _decide(cluster, one, placed, rung, Clocks(idle_at, rests), now, alone=not busy)


def _decide(
    cluster: ClusterView, one: Served, placed: Placed, rung: Rung, clocks: Clocks, now: float, *, alone: bool = True
) -> Held:
    zygote = cluster.has_zygote(placed)
    weighed = _weighed(cluster, one, placed, alone=alone)
    if placed.failed and one.variant.policy.keep_ready is None:
        due = clocks.idle_at + keepalive.FAILED_KEPT_S
        rung_now = rung if now < due else Rung.COLD
        decision = KeepDecision(rung_now, f"nobody has asked for {keepalive.FAILED_KEPT_S:.0f} s", due)
    else:
        decision = keepalive.keep(rung, clocks, one.variant.policy, weighed, now, zygote=zygote)
    return Held(placed, rung, clocks, weighed, zygote, decision)


def _weighed(cluster: ClusterView, one: Served, placed: Placed, *, alone: bool) -> Weighing | None:
    node = cluster.nodes.get(placed.assignment.node)
    if node is None:
        return None
    variant = one.variant
    return weighing.weighing(cluster.economy, node, one.model, variant.policy, one.demand.gaps, variant.memory_mb, alone=alone)


def _fall(held: Held, now: float) -> Move:
    placed, decision = held.placed, held.decision
    inputs = recorded.inputs(held.weighed, decision.step, now - held.clocks.idle_at, held.rung)
    if placed.failed:
        return Move(placed, Rung.COLD, f"it failed and nobody has asked since: {decision.reason}", inputs)
    if placed.assignment.ahead is not None and decision.rung <= placed.assignment.ahead:
        inputs = {**inputs, **_regret(placed, held.weighed, now, came_after_s=None)}
    return Move(placed, decision.rung, decision.reason, inputs)


# ---- climbs ahead of demand ----------------------------------------------------------------------------------


def _unasked(cluster: ClusterView, one: Served, up: Sequence[Placed], now: float) -> Iterator[Move]:
    """Yield what becomes of instances that climbed ahead of demand: somebody has asked, or their memory is needed."""
    for placed in up:
        before, seen = placed.assignment.ahead, placed.instance
        if before is None:
            continue
        began = placed.since if seen is None or not placed.ready else seen.rung_at
        if one.demand.concurrency or (placed.ready and one.demand.active_at > began):
            inputs = _told(cluster, one, placed, now, came_after_s=max(0.0, one.demand.active_at - began))
            yield Move(placed, Rung.READY, "the request for which it had climbed ahead has come", inputs, used=True)
        elif (lacks := _lacks(placed)) or placed.assignment.node in cluster.economy.wanted:
            lower = max(before, Rung.STAGED)
            inputs = _told(cluster, one, placed, now, came_after_s=None)
            reason = "it climbed ahead of demand, and " + (
                "its node cannot" if lacks else "somebody waits for its node's memory"
            )
            yield Move(placed, lower, reason, inputs)


def _lacks(placed: Placed) -> bool:
    """Whether it does not get up, if only for want of memory for now: nobody has asked for it, and it does not wait."""
    seen = placed.instance
    return placed.failed or (seen is not None and not seen.ready and seen.record.failure is not None)


def used(cluster: ClusterView, one: Served, placed: Placed, now: float) -> Inputs:
    """Return what a climb ahead of demand has brought of which the rest is climbed now that somebody asks."""
    rests = placed.since if placed.instance is None else placed.instance.rung_at
    return _told(cluster, one, placed, now, came_after_s=max(0.0, now - rests))


def _may_climb(endpoint: EndpointView, cluster: ClusterView, one: Served, held: Held, now: float) -> bool:
    """Whether nothing forbids it: in doubt it waits for a request, as one that climbs in vain would do so again and again.

    Since when it is idle is not known as long as nobody was heard to ask: it would seem to begin anew after each climb. What
    its node has refused before, or could not start, keeps that failure until it has been ready once more.
    """
    node, seen = cluster.nodes.get(held.placed.assignment.node), held.placed.instance
    if one.demand.active_at == -math.inf or seen is None or seen.record.failure is not None:
        return False
    fit = endpoint.record.status is EndpointStatus.IN_SERVICE and endpoint.record.pending_config is None
    return fit and node is not None and node.open and node.alive(now) and held.decision.step is not None


def _wish(cluster: ClusterView, one: Served, held: Held, now: float) -> Move:
    placed, weighed, step = held.placed, held.weighed, held.decision.step
    assert weighed is not None, "only what was weighed climbs ahead"
    assert step is not None, "only what was weighed climbs ahead"
    node = cluster.nodes[placed.assignment.node]
    idle_s = now - held.clocks.idle_at
    saves = expected_loss(weighed.ladder, weighed.gaps, idle_s, (Rung.READY, held.rung), weighed.prices, weighed.limits)
    wish = Wish(
        key=placed.key,
        rung=held.rung,
        step=step,
        device_gb=weighing.held_gb(node, one.model, one.variant.memory_mb),
        saves=saves if math.isfinite(saves) else 0.0,
    )
    inputs = {**recorded.inputs(weighed, step, idle_s, held.rung), "saves": round(wish.saves, 6)}
    return Move(placed, Rung.READY, held.decision.reason, inputs, wish=wish)


def _told(cluster: ClusterView, one: Served, placed: Placed, now: float, came_after_s: float | None) -> Inputs:
    return _regret(placed, _weighed(cluster, one, placed, alone=True), now, came_after_s=came_after_s)


def _regret(placed: Placed, weighed: Weighing | None, now: float, *, came_after_s: float | None) -> Inputs:
    """Return what a climb ahead of demand has cost and saved, as far as its rungs are still on the ladder."""
    before, seen = placed.assignment.ahead, placed.instance
    if before is None or weighed is None or seen is None:
        return {}
    known = {rung.rung: rung for rung in weighed.ladder}
    if before not in known:
        return {"ahead_from": before.label}
    held_s = now - seen.rung_at if placed.settled else 0.0
    # The request's time counts from the climb's begin, which took as long as a wake.
    came = None if came_after_s is None else came_after_s + (known[before].wait_s if placed.settled else 0.0)
    after = seen.record.rung if seen.record.rung in known and seen.record.rung > before else Rung.READY
    brought = prewarm.outcome(weighed.ladder, before, after, weighed.prices, held_s=held_s, came_after_s=came)
    return {
        "ahead_from": before.label,
        "paid": round(brought.paid, 6),
        "saved": round(brought.saved, 6),
        "regret": round(brought.regret, 6),
    }
