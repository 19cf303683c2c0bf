"""How many instances should be ready by the time that another one could be: demand foreseen over one climb. Pure.

``desired`` stands in for ``scaling.desired``, over the same history. Three things are foreseen for the end of the climb:

* level: as many requests at once as now;
* trend: a rise over the last climb's time goes on for another. The first moments of a burst are such a rise;
* spread: requests come by chance, and in clusters (``dispersion``). Of that not the mean is taken but a quantile.

The quantile is the newsvendor's: a slot too many costs its memory for a second, a slot too few somebody's second of waiting.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final, NamedTuple

from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.dispersion import from_history
from standby.controller.scaling import Capacity, ScaleDecision, needed
from standby.controller.scaling import desired as by_present_demand
from standby.controller.view import NEVER
from standby.domain.durations import format_duration
from standby.domain.endpoint import ScalePolicy

# A second of waiting costs 100 GB·s and a slot is a sixteenth of 80 GB, so 100 / (100 + 5).
LEVEL: Final = 0.95
# Dispersion needs several climbs' worth of past.
CLIMBS_KEPT: Final = 8
# Beyond this a burst is mostly over before the start that it caused: there demand has to last, and is not foreseen.
LONGEST_CLIMB_S: Final = 10.0
# However short the climb: as long as an instance that has just come is kept in any case (``endpoint_plan.TENURE_S``).
SHORTEST_STAY_S: Final = 10.0


class Spread(NamedTuple):
    """How far demand may be above its trend: its dispersion, and the share of moments that is to be covered."""

    dispersion: float
    level: float


@dataclass(frozen=True, slots=True)
class Foreseen:
    """Requests at once that are foreseen for one climb later: ``now``, and before: until when, and the highest until then.

    ``rise`` is what the trend adds now.
    """

    now: float
    before: tuple[tuple[float, float], ...]
    dispersion: float
    rise: int

    @property
    def lately(self) -> float:
        """The most that was foreseen."""
        return max((requests for _, requests in self.before), default=self.now)

    def last_above(self, requests: float) -> float | None:
        """Return when more than ``requests`` were last foreseen; None: never."""
        return max((until for until, foreseen in self.before if foreseen > requests), default=None)


def desired(
    demand: EndpointDemand,
    share: float,
    policy: ScalePolicy,
    capacity: Capacity,
    now: float,
    *,
    dispersion: float | None = None,
    level: float = LEVEL,
) -> ScaleDecision:
    """Return how many instances should be ready ``capacity.climb_s`` from now; parameters as those of ``scaling.desired``.

    ``climb_s`` must be the cheapest climb also while nothing is crowded. ``dispersion``: what is remembered of it; None: only
    the history speaks. ``level``: the share of moments in which everybody should find a slot, above 0 and below 1.
    Never less than the requests of this moment need, never beyond the policy's bounds. From zero to one, without data, where
    there is nothing to decide and where a climb takes longer than LONGEST_CLIMB_S it is ``scaling.desired``.
    """
    current, most = capacity.current, policy.max_instances
    settled = most > 1 and capacity.ready > 0 and policy.min_ready <= current <= most
    if not settled or not demand.valid or capacity.climb_s > LONGEST_CLIMB_S:
        return by_present_demand(demand, share, policy, capacity, now)
    horizon = max(capacity.climb_s, demand.bucket_s)
    stay = stay_s(policy, horizon, level)
    spread = from_history(demand, horizon, now) if dispersion is None else dispersion
    seen = foresee(demand, horizon, stay, Spread(spread, level), now)
    wanted = max(1, policy.min_ready, needed(seen.now, share, policy))
    if wanted > current:
        return ScaleDecision(wanted, _reason(demand, seen, horizon, policy))
    kept = max(wanted, needed(seen.lately, share, policy))
    if kept >= current:
        needed_at = seen.last_above((current - 1 + 1e-9) * policy.load / share) if share > 0 else None
        # strictly later: at the very end of the stay it still counts
        wake_at = NEVER if needed_at is None or current <= max(1, policy.min_ready) else needed_at + stay + 0.001
        return ScaleDecision(current, _reason(demand, seen, horizon, policy), wake_at)
    if math.isinf(policy.scale_in_after):
        return ScaleDecision(current, "scale_in_after is forever")
    known = demand.valid_since + stay
    if now < known:
        return ScaleDecision(current, f"demand is known for less than {format_duration(stay)}", wake_at=known)
    reason = f"at most {seen.lately:.1f} requests at once were foreseen in {format_duration(stay)}"
    return ScaleDecision(kept, reason)


def stay_s(policy: ScalePolicy, climb_s: float, level: float = LEVEL) -> float:
    """Return how long an instance stays after it was last foreseen to be needed; ``scale_in_after`` at most.

    Ski rental: as long as a start that proves needed after all would cost. That is the device for the climb, and waits: what is
    foreseen again is started one climb ahead, so that only in 1 - level of the moments somebody comes for its slots, of which
    half are asked for then on average, and waits for half of the climb. A waiting caller costs level / (1 - level) times what a
    slot of memory costs in the same time.
    """
    regret = climb_s * (1 + level / 4)
    return min(policy.scale_in_after, max(SHORTEST_STAY_S, regret))


def window_s(policy: ScalePolicy, climb_s: float) -> float:
    """Return for how many seconds demand must be remembered."""
    return max(policy.scale_in_after, CLIMBS_KEPT * climb_s)


def foresee(demand: EndpointDemand, horizon: float, stay: float, spread: Spread, now: float) -> Foreseen:
    """Return what is foreseen over ``horizon`` seconds, and the most that was at any time in the last ``stay`` seconds."""
    deviations = NormalDist().inv_cdf(spread.level)

    def at(value: int, rise: int) -> float:
        return value + max(rise, deviations * math.sqrt(spread.dispersion * value))

    first = max(0, bisect_right(demand.history, now - stay - horizon, key=lambda bucket: bucket.start) - 1)
    here = demand.concurrency
    lows: deque[tuple[float, int]] = deque()  # ascending; the first is the lowest of one horizon
    before: list[tuple[float, float]] = []
    past = [*demand.history[first:], Bucket(now, here, here, here)]
    for (start, low, high, last), following in zip(past, [*(one.start for one in past[1:]), now], strict=True):
        while lows and lows[-1][1] >= low:
            lows.pop()
        lows.append((start, low))
        while lows[0][0] <= start - horizon:
            lows.popleft()
        written = start + demand.bucket_s
        before.append((min(now, written), at(high, 0)))
        # Its last value holds until the next is written, and is a rise for one climb at most.
        before.append((following, at(last, 0)))
        before.append((min(following, written + horizon), at(last, last - lows[0][1])))
    before = [(until, requests) for until, requests in before if until > now - stay]
    rise = here - lows[0][1]
    return Foreseen(at(here, rise), tuple(before), spread.dispersion, rise)


def _reason(demand: EndpointDemand, seen: Foreseen, horizon: float, policy: ScalePolicy) -> str:
    told = f"{seen.now:.1f} requests at once are foreseen in {format_duration(horizon)}: {demand.concurrency} now"
    told += f", {seen.rise} more than a climb ago" if seen.rise else ""
    return f"{told}, dispersion {seen.dispersion:.1f}; {policy.slots} slots each"
