"""Rates and percentiles out of counters that are kept anyway, sampled once a second.

Counters may begin anew, when an endpoint is deleted and made again: a count that has fallen has grown from zero.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from standby.console.values import SPARK_S, EndpointKey, Percentiles

# Rates are means of so many seconds: a single one jumps, many are late.
RATE_S: Final = 5
# Percentiles are of the last window and the one before, so that they neither jump nor remember yesterday.
WINDOW_S: Final = 300.0
NOTHING: Final = Percentiles()


class Count(NamedTuple):
    """One endpoint's counters in this gateway; ``busy_s``: seconds that engines were at work on its answered requests."""

    requests: int = 0
    errors: int = 0
    tokens: float = 0.0
    busy_s: float = 0.0

    def since(self, before: Count) -> Count:
        """Return what was added since ``before``; all of it where the counters have begun anew."""
        if self.requests < before.requests:
            return self
        return Count(*(max(0, now - then) for now, then in zip(self, before, strict=True)))  # type: ignore[arg-type] # as it is


class _Second(NamedTuple):
    number: int
    requests: float
    tokens: float


@dataclass
class Rates:
    """What was added in each of the last ``SPARK_S`` seconds, of endpoints that had any traffic in them."""

    _at: float | None = None
    _number: int = 0
    _before: dict[EndpointKey, Count] = field(default_factory=dict)
    _lately: dict[EndpointKey, deque[_Second]] = field(default_factory=dict)

    @property
    def lively(self) -> Set[EndpointKey]:
        """Those whose rates or sparkline may change with the next second."""
        return self._lately.keys()

    def take(self, grown: Mapping[EndpointKey, Count], now: float) -> dict[EndpointKey, Count]:
        """Take this second's counters of whoever has grown, by a monotonic clock; return what was added since the last time."""
        seconds = 1.0 if self._at is None else max(0.1, now - self._at)
        added: dict[EndpointKey, Count] = {}
        self._number += 1
        for name, count in grown.items():
            before = self._before.get(name)
            if count == before:
                continue
            fresh = added[name] = count if before is None else count.since(before)
            self._before[name] = count
            if self._at is not None:
                second = _Second(self._number, fresh.requests / seconds, fresh.tokens / seconds)
                self._lately.setdefault(name, deque(maxlen=SPARK_S)).append(second)
        self._at = now
        self._drop_old()
        return added

    def forget(self, name: EndpointKey) -> None:
        """The endpoint is no more; another one of its name begins at zero."""
        self._before.pop(name, None)
        self._lately.pop(name, None)

    def rates(self, name: EndpointKey) -> tuple[float, float]:
        """Return requests and tokens per second, means of the last ``RATE_S`` seconds."""
        requests = tokens = 0.0
        for second in reversed(self._lately.get(name, ())):
            if second.number <= self._number - RATE_S:
                break
            requests += second.requests
            tokens += second.tokens
        return round(requests / RATE_S, 2), round(tokens / RATE_S, 1)

    def spark(self, name: EndpointKey) -> tuple[int, ...]:
        """Return the requests of each of the last ``SPARK_S`` seconds, the oldest first; nothing where there were none."""
        lately = self._lately.get(name)
        if lately is None:
            return ()
        line = [0] * SPARK_S
        for second in lately:
            if second.requests:
                # A second that took longer than one still shows what came in it.
                line[second.number - self._number - 1] = max(1, round(second.requests))
        return tuple(line)

    def _drop_old(self) -> None:
        for name in [name for name, lately in self._lately.items() if lately[-1].number <= self._number - SPARK_S]:
            del self._lately[name]
        for lately in self._lately.values():
            while lately[0].number <= self._number - SPARK_S:
                lately.popleft()


@dataclass
class Windows:
    """Percentiles of histograms over the last two windows in which there was anything. Bounds are in seconds."""

    bounds: Sequence[float]
    _begins: dict[EndpointKey, tuple[list[float], list[float]]] = field(default_factory=dict)
    _turned_at: float | None = None

    def turn(self, count: Callable[[], Mapping[EndpointKey, list[float]]], now: float) -> bool:
        """Begin a new window where it is time to, and say so.

        ``count`` returns the buckets' counts since the beginning, of endpoints that had traffic since the last turn: without
        any, the last figures stay as they are.
        """
        if self._turned_at is not None and now - self._turned_at < WINDOW_S:
            return False
        self._turned_at = now
        for name, counts in count().items():
            older, newer = self._begun(name, counts)
            self._begins[name] = (older, newer) if counts == newer else (newer, counts)
        return True

    def of(self, counts: Mapping[EndpointKey, list[float]]) -> dict[EndpointKey, Percentiles]:
        """Return the percentiles, in milliseconds, by endpoint."""
        found = {}
        for name, count in counts.items():
            begin, _ = self._begun(name, count)
            found[name] = percentiles(self.bounds, [now - then for now, then in zip(count, begin, strict=True)])
        return found

    def forget(self, name: EndpointKey) -> None:
        """The endpoint is no more; another one of its name begins at zero."""
        self._begins.pop(name, None)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _begun(self, name: EndpointKey, count: Sequence[float]) -> tuple[list[float], list[float]]:
        """Return what the last two windows began with; nothing where ``count`` is not what has grown out of it."""
        zero = [0.0] * len(self.bounds)
        older, newer = self._begins.get(name, (zero, zero))
        fell = any(now < then for now, then in zip(count, newer, strict=True))
        return (zero, zero) if fell else (older, newer)


def percentiles(bounds: Sequence[float], counts: Sequence[float]) -> Percentiles:
    """Return milliseconds, as Prometheus's histogram_quantile reckons them: straight lines inside the buckets."""
    reached = list(accumulate(counts))
    if not reached or not reached[-1]:
        return NOTHING
    return Percentiles(*(_quantile(bounds, reached, share) for share in (0.5, 0.95, 0.99)))


def _quantile(bounds: Sequence[float], reached: Sequence[float], share: float) -> float:
    rank = share * reached[-1]
    at = bisect_left(reached, rank)
    low = bounds[at - 1] if at else 0.0
    if at == len(bounds) - 1:
        return round(low * 1000, 1)
    below = reached[at - 1] if at else 0.0
    return round((low + (bounds[at] - low) * (rank - below) / (reached[at] - below)) * 1000, 1)
