"""May a request wait? Pure: bounded by count, bytes and predicted wait per variant, and by bytes over all endpoints.

What a refusal says of when to come again is computed from the same prediction: the place in the queue times the seconds
between two requests that leave it. Where nothing can be predicted it is a second.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from statistics import NormalDist
from typing import Final, NamedTuple

from standby.domain.endpoint import Endpoint, EndpointStatus, ScalePolicy
from standby.domain.priority import Priority
from standby.gateway.queue_depth import Depth

# A first or second failed start may be chance, and the node tries again within about three seconds; from the third on
# a caller is better served by the reason than by a wait (field case B12).
FAST_FAIL_AFTER = 3
UNKNOWN_RETRY_S: Final = 1.0


class Verdict(StrEnum):
    """What admission says."""

    WAIT = "wait"
    QUEUE_FULL = "queue_full"
    OVERLOADED = "overloaded"
    THROTTLED = "throttled"
    FAILED = "failed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Room:
    """The waiting room of one variant in this gateway, and all rooms together."""

    requests: int
    body_bytes: int
    all_bytes: int
    all_bytes_limit: int


class Flow(NamedTuple):
    """How fast the queue moves; ``place`` is what ``place_of`` returns, times are in seconds.

    ``gap_s``: between two requests that leave it; None: nothing is ready, or nothing was measured yet. ``best_gap_s``: the
    same once the variant has as many instances as it may have. ``climb_s``: until an instance more, or the first, is
    ready; None: unknown, or none comes.
    """

    place: float
    gap_s: float | None = None
    best_gap_s: float | None = None
    climb_s: float | None = None

    @property
    def wait_s(self) -> float | None:
        """The predicted wait; an instance that is not there counts only if its climb has a price."""
        if self.gap_s is None:
            return None
        return self._with_growth(self.climb_s)

    @property
    def shortest_s(self) -> float | None:
        """The wait that is predicted if an instance of unknown price were ready at once."""
        if self.gap_s is None:
            return None
        return self._with_growth(self.climb_s or 0.0)

    def until_left_s(self, requests: float) -> float:
        """Seconds until so many have left the queue, or until it begins to move."""
        if self.gap_s is not None:
            return max(requests, 1.0) * self.gap_s
        return UNKNOWN_RETRY_S if self.climb_s is None else max(UNKNOWN_RETRY_S, self.climb_s)

    def _with_growth(self, climb_s: float | None) -> float:
        assert self.gap_s is not None
        as_now = self.place * self.gap_s
        if climb_s is None or self.best_gap_s is None or climb_s >= as_now:
            return as_now
        return climb_s + (self.place - climb_s / self.gap_s) * self.best_gap_s


class Bounds(NamedTuple):
    """``limit_s``: for how long the request may wait at all. ``target_s``: so that its answer begins within the endpoint's
    latency target; None: it has none. ``depth``: how many places the target bears; None: as the scale policy says.

    ``slo_violations``: the share of requests that may miss the target.
    """

    limit_s: float
    target_s: float | None = None
    depth: Depth | None = None
    slo_violations: float = 0.01


@dataclass(frozen=True, slots=True)
class Admission:
    """The verdict with its reason."""

    verdict: Verdict
    reason: str
    retry_after_s: float | None = None

    def until(self, retry_after_s: float) -> Admission:
        """Return the same with the time after which asking again may help, in seconds."""
        return Admission(self.verdict, self.reason, retry_after_s)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A variant's requests that this gateway has under way, and the slots that it sees.

    ``slots`` are those of all ready instances; ``room`` says that some of them are free all the same: not asked for a moment,
    or not of the instance to which a session belongs.
    """

    granted: int
    waiting: int
    slots: int
    room: bool


def hopeless(endpoint: Endpoint, variant: str, now: float) -> Admission | None:
    """Return a refusal if waiting cannot help: the endpoint is being deleted, or the variant fails again and again."""
    if endpoint.status is EndpointStatus.DELETING:
        return Admission(Verdict.GONE, "the endpoint is being deleted")
    failure = endpoint.failure
    if endpoint.status is not EndpointStatus.FAILED or failure is None or failure.attempts < FAST_FAIL_AFTER:
        return None
    if failure.variant not in ("", variant):
        return None
    # Once the retry is due somebody must ask, or an endpoint whose instance was given up would never be tried again.
    if failure.next_retry_at is None or failure.next_retry_at <= now:
        return None
    first = f": {failure.first_error}" if failure.first_error else ""
    reason = f"{failure.reason}{first} ({failure.attempts} attempts)"
    return Admission(Verdict.FAILED, reason, max(1.0, failure.next_retry_at - now))


def throttled(limit: int, seen: UnderWay, *, again: bool) -> Admission | None:
    """Return a refusal for a request that found no free slot, if it goes beyond the variant's concurrency limit.

    Every slot that the limit allows is at a door: what finds them taken is beyond it. While there are fewer (nothing is
    ready, or another instance is on its way) at most as many requests as the limit wait here; other gateways may have
    as many, and the doors decide who is within it. ``again`` marks one that was within it already.
    """
    if seen.slots >= limit and not seen.room:
        return Admission(Verdict.THROTTLED, f"{limit} requests are under way, which is the concurrency limit")
    if not again and seen.granted + seen.waiting >= limit:
        reason = f"{seen.granted} requests are under way and {seen.waiting} wait, the concurrency limit is {limit}"
        return Admission(Verdict.THROTTLED, reason)
    return None


def place_of(counts: Mapping[Priority, int], priority: Priority, weights: Mapping[Priority, float]) -> float:
    """Return how many requests are served until one that joins now is, itself included.

    Before it go those of its own priority, and of each other one as many as have their turns meanwhile by weight.
    """
    own = counts[priority] + 1
    place = float(own)
    for other, waiting in counts.items():
        if waiting and other is not priority:
            place += min(float(waiting), own * weights[other] / weights[priority])
    return place


def may_wait(policy: ScalePolicy, room: Room, body_bytes: int, flow: Flow, bounds: Bounds) -> Admission:
    """Return whether a request of ``body_bytes`` has room to wait, and will be served in time as far as is known."""
    return (
        _beyond_count(policy, room, flow, bounds.depth)
        or _beyond_bytes(policy, room, body_bytes, flow)
        or _too_late(flow, bounds)
        or Admission(Verdict.WAIT, _why(flow, bounds))
    )


def _beyond_count(policy: ScalePolicy, room: Room, flow: Flow, depth: Depth | None) -> Admission | None:
    if room.requests + 1 > policy.queue_requests:
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.requests} requests wait, the limit is {policy.queue_requests}",
            flow.until_left_s(room.requests + 1 - policy.queue_requests),
        )
    # At zero nobody waits for a slot but for the climb, which no depth makes shorter.
    if depth is not None and flow.gap_s is not None and flow.place > math.floor(depth.places):
        reason = f"{flow.place - 1:.0f} requests would be served before it, the queue's depth is {depth.reason}"
        return Admission(Verdict.QUEUE_FULL, reason, flow.until_left_s(flow.place - math.floor(depth.places)))
    return None


def _beyond_bytes(policy: ScalePolicy, room: Room, body_bytes: int, flow: Flow) -> Admission | None:
    over = room.body_bytes + body_bytes - policy.queue_bytes
    if over > 0:
        of_one = room.body_bytes / room.requests if room.requests else 0.0
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.body_bytes} body bytes wait, the limit is {policy.queue_bytes}",
            flow.until_left_s(min(float(room.requests), math.ceil(over / of_one)) if of_one else 1.0),
        )
    if room.all_bytes + body_bytes > room.all_bytes_limit:
        return Admission(
            Verdict.QUEUE_FULL,
            f"{room.all_bytes} body bytes wait in this gateway, the limit is {room.all_bytes_limit}",
            retry_after_s=UNKNOWN_RETRY_S,
        )
    return None


def _too_late(flow: Flow, bounds: Bounds) -> Admission | None:
    shortest = flow.shortest_s
    if shortest is not None and shortest > bounds.limit_s:
        reason = f"it would wait about {shortest:.3g} s, the limit is {bounds.limit_s:.3g} s"
        return Admission(Verdict.OVERLOADED, reason, shortest - bounds.limit_s)
    wait = flow.wait_s
    if wait is None or bounds.target_s is None:
        return None
    longest = wait + _spread(wait, flow.place, bounds.slo_violations)
    if longest > bounds.target_s:
        reason = (
            f"it would wait up to {longest:.3g} s for {1 - bounds.slo_violations:.4g} of such requests, "
            f"the latency target leaves {bounds.target_s:.3g} s"
        )
        return Admission(Verdict.OVERLOADED, reason, longest - bounds.target_s)
    return None


def _spread(wait_s: float, place: float, share: float) -> float:
    """Return by how much all but a ``share`` of waits stay below the mean plus this.

    A wait is a sum of ``place`` gaps; gaps are taken to scatter as those of independent completions do.
    """
    return NormalDist().inv_cdf(1.0 - share) * wait_s / math.sqrt(place)


def _why(flow: Flow, bounds: Bounds) -> str:
    wait = flow.wait_s
    if wait is None:
        return "waits for an instance" if flow.climb_s is None else f"waits for an instance, about {flow.climb_s:.3g} s"
    place = (
        f"place {flow.place:.0f}" if bounds.depth is None else f"place {flow.place:.0f} of {math.floor(bounds.depth.places)}"
    )
    return f"{place}, about {wait:.3g} s"
