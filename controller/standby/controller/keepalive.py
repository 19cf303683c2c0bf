"""How long an idle instance keeps its rung: ready, then asleep, then zygote where there is one, then staged, then cold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from standby.controller.asked import EndpointDemand
from standby.controller.view import NEVER, EndpointView, Placed
from standby.domain.durations import format_duration
from standby.domain.endpoint import EndpointStatus, ScalePolicy
from standby.domain.instance import Rung


@dataclass(frozen=True, slots=True)
class KeepDecision:
    """The rung to hold, why, and when the answer may change without any news."""

    rung: Rung
    reason: str
    wake_at: float = NEVER


def next_rung_below(rung: Rung, policy: ScalePolicy, *, zygote: bool) -> Rung:
    """Return the first rung below ``rung`` that the policy keeps at all; a time of zero skips a rung.

    ``zygote``: the instance's engine has one on its node; without, there is no such rung.
    """
    for lower in sorted((r for r in Rung if r < rung), reverse=True):
        if lower is Rung.ZYGOTE and not zygote:
            continue
        if lower is Rung.COLD or _kept_for(lower, policy) > 0:
            return lower
    return Rung.COLD


def keep(rung: Rung, since: float, policy: ScalePolicy, now: float, *, zygote: bool) -> KeepDecision:
    """Return the rung that an idle instance should hold at ``now``; ``zygote`` as in ``next_rung_below``.

    ``since``: for ready, when the endpoint fell idle; for a lower rung, when it was reached.
    """
    limit = _kept_for(rung, policy)
    due = since + limit
    idle = "idle" if rung is Rung.READY else rung.label
    if now < due:
        return KeepDecision(rung, f"{idle} for {format_duration(max(0.0, now - since))} of {format_duration(limit)}", due)
    lower = next_rung_below(rung, policy, zygote=zygote)
    return KeepDecision(lower, f"{idle} for {format_duration(limit)}")


def _kept_for(rung: Rung, policy: ScalePolicy) -> float:
    limits = {
        Rung.READY: policy.keep_ready,
        Rung.ASLEEP: policy.keep_asleep,
        Rung.ZYGOTE: policy.keep_zygote,
        Rung.STAGED: policy.keep_staged,
    }
    return limits.get(rung, NEVER)


def idle_since(endpoint: EndpointView, demand: EndpointDemand, up: Sequence[Placed]) -> float | None:
    """Return since when nothing happens, None while something does.

    The latest of the gateways' last arrival or end, an instance's last request, and its becoming ready or failing;
    loading counts as activity (field case B11), an instance with requests inside is busy whatever gateways say.
    """
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
