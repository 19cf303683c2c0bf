"""How long an idle instance keeps its rung: ready, then asleep, then zygote where there is one, then staged, then cold. Pure.

The endpoint's own times win; where it has none, holding the rung is weighed against waking from the next (``demotion``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from standby.controller.asked import EndpointDemand
from standby.controller.demotion import FOREVER, Step
from standby.controller.view import NEVER, EndpointView, Placed
from standby.controller.weighing import Weighing, step_of
from standby.domain.durations import format_duration
from standby.domain.endpoint import EndpointStatus, ScalePolicy
from standby.domain.instance import Rung

# What failed costs nothing while nobody asks; it is let go after this, where the endpoint names no time.
FAILED_KEPT_S = 300.0
# Floating point may put the end of a step a hair before its own beginning: a look then would find the same step again.
_GRAIN_S = 0.001


class KeepDecision(NamedTuple):
    """The rung to hold, why, and when the answer may change without any news.

    ``step`` is what was weighed, None where the endpoint's own time decided alone.
    """

    rung: Rung
    reason: str
    wake_at: float = NEVER
    step: Step | None = None


class Clocks(NamedTuple):
    """``idle_at``: since when nothing happens for the endpoint; ``rung_at``: when a rung below ready was reached."""

    idle_at: float
    rung_at: float


def next_rung_below(rung: Rung, policy: ScalePolicy, *, zygote: bool) -> Rung:
    """Return the first rung below ``rung`` that the policy keeps at all; a time of zero skips a rung.

    ``zygote``: the instance's engine has one on its node; without, there is no such rung.
    """
    for lower in sorted((r for r in Rung if r < rung), reverse=True):
        if lower is Rung.ZYGOTE and not zygote:
            continue
        if lower is Rung.COLD or time_of(lower, policy) != 0:
            return lower
    return Rung.COLD


def keep(
    rung: Rung, clocks: Clocks, policy: ScalePolicy, weighed: Weighing | None, now: float, *, zygote: bool
) -> KeepDecision:
    """Return the rung that an idle instance on ``rung`` should hold at ``now``; one above it: it should climb before a request.

    ``weighed`` None: its node is not known, so that only the endpoint's own times count. ``zygote`` as in ``next_rung_below``.
    """
    limit = time_of(rung, policy)
    if limit is not None:
        return _timed(rung, limit, clocks, policy, weighed, now, zygote=zygote)
    if weighed is None:
        return KeepDecision(rung, "its node is not known")
    step = step_of(weighed, now - clocks.idle_at, rung)
    wake_at = NEVER if step.until_s == FOREVER else clocks.idle_at + step.until_s + _GRAIN_S
    if step.rung < rung:
        return KeepDecision(_stop_on_the_way(rung, step.rung, policy, zygote=zygote), step.reason, wake_at, step)
    if step.rung > rung and policy.keep_ready is not None:
        return KeepDecision(rung, "the endpoint's own time for ready leaves no climb before a request", wake_at)
    return KeepDecision(step.rung, step.reason, wake_at, step)


def time_of(rung: Rung, policy: ScalePolicy) -> float | None:
    """Return how long the endpoint itself wants ``rung`` kept, in seconds; None: as it is weighed."""
    match rung:
        case Rung.READY:
            return policy.keep_ready
        case Rung.ASLEEP:
            return policy.keep_asleep
        case Rung.ZYGOTE:
            return policy.keep_zygote
        case Rung.STAGED:
            return policy.keep_staged
        case Rung.COLD:
            return NEVER


def _timed(
    rung: Rung, limit: float, clocks: Clocks, policy: ScalePolicy, weighed: Weighing | None, now: float, *, zygote: bool
) -> KeepDecision:
    since = clocks.idle_at if rung is Rung.READY else clocks.rung_at
    idle = "idle" if rung is Rung.READY else rung.label
    due = since + limit
    if now < due:
        return KeepDecision(rung, f"{idle} for {format_duration(max(0.0, now - since))} of {format_duration(limit)}", due)
    reason = f"{idle} for {format_duration(limit)}"
    lower = next_rung_below(rung, policy, zygote=zygote)
    if weighed is None or time_of(lower, policy) is not None:
        return KeepDecision(lower, reason)
    step = step_of(weighed, now - clocks.idle_at, lower)
    if step.rung >= lower:
        return KeepDecision(lower, reason)
    below = _stop_on_the_way(lower, step.rung, policy, zygote=zygote)
    return KeepDecision(below, f"{reason}; {step.reason}", step=step)


def _stop_on_the_way(above: Rung, below: Rung, policy: ScalePolicy, *, zygote: bool) -> Rung:
    """Return the warmest rung from ``below`` on that the endpoint itself wants kept for some time, else ``below``."""
    for rung in sorted((r for r in Rung if below < r < above), reverse=True):
        if (time_of(rung, policy) or 0.0) > 0 and (zygote or rung is not Rung.ZYGOTE):
            return rung
    return below


def idle_since(endpoint: EndpointView, demand: EndpointDemand, up: Sequence[Placed]) -> float | None:
    """Return since when nothing happens, None while something does.

    The latest of the gateways' last arrival or end, an instance's last request, and its becoming ready or failing;
    loading counts as activity (field case B11), an instance with requests inside is busy whatever gateways say.
    What climbed ahead of demand was not asked for: its becoming ready is no activity.
    """
    if demand.concurrency or any(p.busy or p.climbing for p in up):
        return None
    instants = [demand.active_at, endpoint.status_at if endpoint.record.status is EndpointStatus.FAILED else -math.inf]
    for placed in up:
        seen = placed.instance
        if seen is None:
            continue
        ahead = placed.assignment.ahead is not None and demand.active_at > -math.inf
        if not placed.failed and not ahead:
            instants += [seen.rung_at, seen.rung_at if seen.idle_at is None else seen.idle_at]
        elif placed.failed and (seen.record.failure is None or seen.record.failure.attempts <= 1):
            # only the first failure: the node's own retries are not activity, or a broken model would never be let go
            instants.append(seen.state_at)
    return max(instants)


def resting_since(demand: EndpointDemand, placed: Placed) -> float:
    """Return since when nothing happens for an endpoint of which nothing is up: by the gateways, else since it rests."""
    rests = -math.inf if placed.instance is None else placed.instance.rung_at
    return demand.active_at if demand.active_at > -math.inf else rests
