"""How many instances of a variant should answer: zero to one at once, one to N by concurrency, down by a windowed peak.

Out: when what is too much has lasted as long as one more start costs, so that whoever waits would still have waited by then;
or when it comes and goes, by its mean over a stable and a panic window as Knative's autoscaler has them. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from standby.controller.asked import EndpointDemand
from standby.controller.view import NEVER
from standby.domain.durations import format_duration
from standby.domain.endpoint import ScalePolicy
from standby.domain.schedule import opening

# A queue that built up behind one start says nothing about lasting demand: another instance is worth its start only
# when the excess outlives what that start costs. Bounded, so that a slow model can still scale out.
_SHORTEST_HOLD_S: Final = 1.0
_LONGEST_HOLD_S: Final = 10.0
# Knative's autoscaler (pkg/autoscaler/scaling/autoscaler.go): desired = ceil(mean over the window / target), over 60 s; in
# panic, once the mean over a tenth of that needs twice what is ready, the larger of both. Its target is 70 % of a container's
# concurrency; ours is what the policy says one instance is meant for.
_STABLE_S: Final = 60.0
_PANIC_PART: Final = 0.1
_PANIC_AT: Final = 2.0
# A wall clock may be set while a schedule waits for it.
_LOOK_AT_CLOCK_S: Final = 300.0


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


class Scheduled(NamedTuple):
    """A policy as its schedules have it now; ``words`` names the open windows, ``wake_at`` is when to ask again."""

    policy: ScalePolicy
    words: str = ""
    wake_at: float = NEVER


def scheduled(policy: ScalePolicy, wall_offset: float | None, now: float) -> Scheduled:
    """Return ``policy`` with the bounds of the scheduled windows that are open.

    ``wall_offset``: wall time minus the controller's clock, seconds; None: nobody said, and no window is open. An open
    window's ``max_instances`` stands instead of the policy's, its ``min_ready`` only where that is more.
    """
    if not policy.schedules or wall_offset is None:
        return Scheduled(policy)
    found = opening(policy.schedules, now + wall_offset)
    wake_at = min(found.until - wall_offset, now + _LOOK_AT_CLOCK_S)
    least = max(policy.min_ready, found.min_ready or 0)
    most = max(least, policy.max_instances if found.max_instances is None else found.max_instances)
    if (least, most) == (policy.min_ready, policy.max_instances):
        return Scheduled(policy, found.words, wake_at)
    return Scheduled(policy.model_copy(update={"min_ready": least, "max_instances": most}), found.words, wake_at)


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
    wanted = needed(demand.concurrency, share, policy)
    if wanted > current:
        return _out(demand, share, policy, capacity, now)
    if wanted < current and current > max(1, floor):
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
    while needed(demand.concurrency, share, policy) > count:
        since = _too_much_since(demand, share, policy, count, now)
        since = max(since, capacity.ready_at if capacity.ready_at is not None else since)
        if now < since + hold:
            recurring = None if reason else _windows(demand, share, policy, capacity, hold, since - demand.bucket_s)
            if recurring is not None:
                return recurring
            short = (
                f"{demand.concurrency} requests exceed {count} instances of {policy.slots} slots, "
                f"but for less than {format_duration(hold)}"
            )
            return ScaleDecision(count, reason or short, wake_at=since + hold)
        lasting = demand.trough_since(since)
        reason = f"at least {lasting} requests at once for {format_duration(now - since)}, {policy.slots} slots each"
        enough = needed(lasting, share, policy)
        if enough <= count:
            break
        count = enough
    return ScaleDecision(count, reason)


def _windows(
    demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, hold: float, since: float
) -> ScaleDecision | None:
    """Return more instances where demand that comes and goes needs them on average; None where it does not.

    Over the windows that end at ``since``, before the bucket in which the present excess began, which the rule above judges:
    one burst is no mean.
    Never more than are needed now. Counted from when the latest instance became ready: what waited for it says nothing. The
    stable window is at most the time after which a lower demand takes instances away, so that the two cannot disagree.
    """
    stable = min(_STABLE_S, policy.scale_in_after)
    begun = max(capacity.ready_at or -math.inf, demand.history[0].start if demand.history else since)
    if stable <= 0 or since - begun < hold:
        return None
    count, over = needed(_mean(demand, max(begun, since - stable), since), share, policy), stable
    panic = needed(_mean(demand, max(begun, since - stable * _PANIC_PART), since), share, policy)
    if panic >= _PANIC_AT * capacity.ready and panic > count:
        count, over = panic, stable * _PANIC_PART
    count = min(count, needed(demand.concurrency, share, policy))
    if count <= capacity.current:
        return None
    return ScaleDecision(count, f"{count} instances were needed on average over {format_duration(min(over, since - begun))}")


def _mean(demand: EndpointDemand, since: float, until: float) -> float:
    """Return the mean concurrency from ``since`` to ``until``; inside one bucket its last value stands for all of it."""
    area, following = 0.0, math.inf
    for bucket in reversed(demand.history):
        begins = max(bucket.start, since)
        area += bucket.last * max(0.0, min(following, until) - begins)
        following = begins
        if bucket.start <= since:
            break
    return area / (until - since)


def _in(demand: EndpointDemand, share: float, policy: ScalePolicy, current: int, now: float) -> ScaleDecision:
    window = policy.scale_in_after
    if not demand.valid:
        return ScaleDecision(current, "no gateway reports: no data, no scale-in")
    if math.isinf(window):
        return ScaleDecision(current, "scale_in_after is forever")
    if now < demand.valid_since + window:
        reason = f"demand is known for less than {format_duration(window)}"
        return ScaleDecision(current, reason, wake_at=demand.valid_since + window)
    last = _last_needed(demand, share, policy, current, now)
    if last is not None and last > now - window:
        reason = f"{current} instances were needed within the last {format_duration(window)}"
        # strictly later: at the very end of the window the peak still counts
        return ScaleDecision(current, reason, wake_at=last + window + 0.001)
    peak = demand.peak_since(now - window)
    count = max(1, policy.min_ready, needed(peak, share, policy))
    return ScaleDecision(count, f"at most {peak} requests at once in {format_duration(window)}")


def _last_needed(demand: EndpointDemand, share: float, policy: ScalePolicy, count: int, now: float) -> float | None:
    """Return when ``count`` instances were last needed; None: never as far as is remembered. They are not needed now."""
    # as needed: more than count - 1 full instances
    least = (count - 1 + 1e-9) * policy.load / share if share > 0 else math.inf
    following = now
    for start, _, high, held in reversed(demand.history):
        if high > least:
            return following if held > least else min(now, start + demand.bucket_s)
        following = start
    return None


def _too_much_since(demand: EndpointDemand, share: float, policy: ScalePolicy, count: int, now: float) -> float:
    """Return since when more than ``count`` instances have been needed without a break; they are now."""
    most = (count + 1e-9) * policy.load / share
    since = now
    for start, low, _, held in reversed(demand.history):
        if low <= most:
            # the break lies somewhere inside this bucket: its end is the latest moment it can have ended
            return min(now, start + demand.bucket_s) if held > most else since
        since = start
    return since


def needed(concurrency: float, share: float, policy: ScalePolicy) -> int:
    """Return how many instances hold ``concurrency`` requests, bounded by ``max_instances``."""
    return min(policy.max_instances, math.ceil(concurrency * share / policy.load - 1e-9))
