"""Counters, summaries and histograms that one thread alone writes: the library's, without a lock for each number.

A request moves a dozen of them in the gateway, and locks and checks were a twentieth of all that it cost there. What is
exposed is the library's own: names, labels, values, ``_created``. No exemplars. Only children count: all of them have labels.
Any thread may read: each number is whole, though two of them may be of different moments.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Counter, Histogram, Summary


class _Cell:
    """A number in place of the library's, which has a lock each."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def set(self, value: float) -> None:
        self.value = value

    def get(self) -> float:
        return self.value

    def get_exemplar(self) -> None:
        return None


class LeanCounter(Counter):
    """A counter of one thread's."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._value = _Cell()

    def inc(self, amount: float = 1, exemplar: dict[str, str] | None = None) -> None:  # noqa: ARG002 # none are kept
        """Add ``amount``. Raises ValueError where it is negative."""
        if amount < 0:
            raise ValueError(f"a counter only grows: {amount} is negative")
        self._value.value += amount


class LeanSummary(Summary):
    """Sum and count of one thread's."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._count, self._sum = _Cell(), _Cell()

    def observe(self, amount: float) -> None:
        """Take one observation."""
        self._count.value += 1
        self._sum.value += amount

    def add(self, count: int, total: float) -> None:
        """Take several observations that come to ``total``."""
        self._count.value += count
        self._sum.value += total


class LeanHistogram(Histogram):
    """Buckets of one thread's."""

    def _metric_init(self) -> None:
        super()._metric_init()
        self._sum = _Cell()
        self._buckets = [_Cell() for _ in self._upper_bounds]

    def observe(self, amount: float, exemplar: dict[str, str] | None = None) -> None:  # noqa: ARG002 # none are kept
        """Take one observation. The first bound that it is not above is the library's rule, too."""
        self._sum.value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)].value += 1

    def observe_all(self, amounts: Sequence[float]) -> None:
        """Take several observations: together each costs less than alone."""
        bounds, buckets = self._upper_bounds, self._buckets
        self._sum.value += sum(amounts)
        for amount in amounts:
            buckets[bisect_left(bounds, amount)].value += 1
