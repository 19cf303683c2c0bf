"""What gateways ask of an endpoint, a variant or a backend: counts now, and how many requests at once there were. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.controller.arrivals import GapModel


class Bucket(NamedTuple):
    """Concurrency over one short stretch of time: the lowest, the highest and the last value in it."""

    start: float
    low: int
    high: int
    last: int


@dataclass(frozen=True, slots=True)
class EndpointDemand:
    """What all living gateways together say of one endpoint.

    ``valid`` is False when no gateway has reported within its lease: no data, so nothing may be taken away.
    ``active_at`` is the last arrival or end of a request; minus infinity when no gateway ever mentioned it. ``gaps`` is what
    was learned of the time between such an end and the next request; None: nothing yet. ``dispersion``: what was learned of
    how requests cluster, where that is asked for; None: nothing.
    """

    in_flight: int = 0
    queued: int = 0
    active_at: float = -math.inf
    oldest_arrival_at: float | None = None
    valid: bool = False
    valid_since: float = math.inf
    history: tuple[Bucket, ...] = ()
    bucket_s: float = 0.25
    gaps: GapModel | None = field(default=None, compare=False)
    dispersion: float | None = None

    @property
    def concurrency(self) -> int:
        """Requests running or waiting."""
        return self.in_flight + self.queued

    def peak_since(self, since: float) -> int:
        """Return the highest concurrency at or after ``since``."""
        highest, following = self.concurrency, math.inf
        for bucket in reversed(self.history):
            if bucket.start + self.bucket_s <= since:
                return max(highest, bucket.last) if following > since else highest
            highest, following = max(highest, bucket.high), bucket.start
        return highest

    def trough_since(self, since: float) -> int:
        """Return the lowest concurrency at or after ``since``."""
        lowest, following = self.concurrency, math.inf
        for bucket in reversed(self.history):
            if bucket.start + self.bucket_s <= since:
                return min(lowest, bucket.last) if following > since else lowest
            lowest, following = min(lowest, bucket.low), bucket.start
        return lowest


NO_DEMAND: Final = EndpointDemand()


def together(one: EndpointDemand, other: EndpointDemand) -> EndpointDemand:
    """Return the demand of both. Where their buckets do not begin together, lows and highs are bounds, never too narrow."""
    oldest = [at for at in (one.oldest_arrival_at, other.oldest_arrival_at) if at is not None]
    return EndpointDemand(
        in_flight=one.in_flight + other.in_flight,
        queued=one.queued + other.queued,
        active_at=max(one.active_at, other.active_at),
        oldest_arrival_at=min(oldest, default=None),
        valid=one.valid or other.valid,
        valid_since=min(one.valid_since, other.valid_since),
        history=_summed(one.history, other.history),
        bucket_s=max(one.bucket_s, other.bucket_s),
        gaps=max((one.gaps, other.gaps), key=lambda gaps: -1 if gaps is None else gaps.count),
        dispersion=max((one.dispersion, other.dispersion), key=lambda known: -1.0 if known is None else known),
    )


def _summed(one: tuple[Bucket, ...], other: tuple[Bucket, ...]) -> tuple[Bucket, ...]:
    if not one or not other:
        return one or other
    nothing = Bucket(-math.inf, 0, 0, 0)
    left = right = nothing
    summed: list[Bucket] = []
    starts = sorted({bucket.start for bucket in (*one, *other)})
    by_start = {bucket.start: bucket for bucket in one}, {bucket.start: bucket for bucket in other}
    for start in starts:
        left, right = by_start[0].get(start, left), by_start[1].get(start, right)
        summed.append(Bucket(start, left.low + right.low, left.high + right.high, left.last + right.last))
    return tuple(summed)
