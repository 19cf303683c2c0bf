"""How many instances of a variant should answer: zero to one at once, one to N by concurrency, down by a windowed peak."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from standby.controller.asked import EndpointDemand
from standby.controller.view import NEVER
from standby.domain.durations import format_duration
from standby.domain.endpoint import ScalePolicy

# A queue that built up behind one start says nothing about lasting demand: another instance is worth its start only
# when the excess outlives what that start costs. Bounded, so that a slow model can still scale out.
_SHORTEST_HOLD_S: Final = 1.0
_LONGEST_HOLD_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a variant has: ``current`` instances that are ready or climbing, ``ready`` of them answering.

    ``ready_at`` is when the latest one became ready (None: none is); ``climb_s`` what the next start would cost.
    """

    current: int
    ready: int
    ready_at: float | None
    climb_s: float


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """How many should be ready, why, and when the answer may change without any news."""

    count: int
    reason: str
    wake_at: float = NEVER


def desired(demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float) -> ScaleDecision:
    """Return how many instances should be ready; ``share`` is the variant's part of the traffic, 0 to 1.

    Never below ``min_ready``, never above ``max_instances``. The last instance is left to the keep-alive.
    """
    current, floor = capacity.current, policy.min_ready
    if current < floor or (current > policy.max_instances and demand.valid):
        return _into_bounds(current, policy)
    if current == 0:
        return _from_zero(demand, share)
    if capacity.ready == 0:
        return ScaleDecision(current, "an instance is on its way, the queue behind it is no measure of demand")
    needed = _needed(demand.concurrency, share, policy)
    if needed > current:
        return _out(demand, share, policy, capacity, now)
    if needed < current and current > max(1, floor):
        return _in(demand, share, policy, current, now)
    return ScaleDecision(current, f"{demand.concurrency} requests fit {current} instances of {policy.slots} slots")


def _into_bounds(current: int, policy: ScalePolicy) -> ScaleDecision:
    if current < policy.min_ready:
        return ScaleDecision(policy.min_ready, f"min_ready is {policy.min_ready}")
    return ScaleDecision(policy.max_instances, f"{current} instances are above max_instances {policy.max_instances}")


def _from_zero(demand: EndpointDemand, share: float) -> ScaleDecision:
    """One instance, however many requests wait: replicas follow lasting demand, not the first burst (field case B07)."""
    if demand.concurrency > 0 and share > 0:
        return ScaleDecision(1, f"{demand.queued} requests wait and no instance is ready")
    return ScaleDecision(0, "nobody asks")


def _out(demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float) -> ScaleDecision:
    """As many as what lasts needs: what came later has lasted for less, and may yet be enough for more."""
    count = capacity.current
    hold = min(max(capacity.climb_s, _SHORTEST_HOLD_S), _LONGEST_HOLD_S)
    reason = ""
    while True:
        since = demand.lasting_since(lambda c, beyond=count: _needed(c, share, policy) > beyond, now)  # type: ignore[misc] # mypy cannot infer it
        if since is None:
            return ScaleDecision(count, reason)
        since = max(since, capacity.ready_at if capacity.ready_at is not None else since)
        if now < since + hold:
            short = (
                f"{demand.concurrency} requests exceed {count} instances of {policy.slots} slots, "
                f"but for less than {format_duration(hold)}"
            )
            return ScaleDecision(count, reason or short, wake_at=since + hold)
        lasting = demand.trough_since(since)
        reason = f"at least {lasting} requests at once for {format_duration(now - since)}, {policy.slots} slots each"
        needed = _needed(lasting, share, policy)
        if needed <= count:
            return ScaleDecision(count, reason)
        count = needed


def _in(demand: EndpointDemand, share: float, policy: ScalePolicy, current: int, now: float) -> ScaleDecision:
    window = policy.scale_in_after
    if not demand.valid:
        return ScaleDecision(current, "no gateway reports: no data, no scale-in")
    if math.isinf(window):
        return ScaleDecision(current, "scale_in_after is forever")
    if now < demand.valid_since + window:
        reason = f"demand is known for less than {format_duration(window)}"
        return ScaleDecision(current, reason, wake_at=demand.valid_since + window)
    peak = demand.peak_since(now - window)
    count = max(1, policy.min_ready, _needed(peak, share, policy))
    if count < current:
        return ScaleDecision(count, f"at most {peak} requests at once in {format_duration(window)}")
    last = demand.last_time(lambda c: _needed(c, share, policy) >= current, now)
    reason = f"{peak} requests at once within the last {format_duration(window)}"
    # strictly later: at the very end of the window the peak still counts
    return ScaleDecision(current, reason, wake_at=NEVER if last is None else max(now, last) + window + 0.001)


def _needed(concurrency: int, share: float, policy: ScalePolicy) -> int:
    """Return how many instances hold ``concurrency`` requests, bounded by ``max_instances``."""
    return min(policy.max_instances, math.ceil(concurrency * share / policy.load - 1e-9))
