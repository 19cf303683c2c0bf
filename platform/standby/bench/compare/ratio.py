"""Whether two targets differ, and by how much: a ratio with the interval that holds it in 95 of 100 cases. Pure.

Of warm blocks it is the ratio of two percentiles, with its bootstrap interval. A percentile of a resample is an order
statistic: its rank among the original values follows a beta distribution, so that no resample has to be drawn and sorted
(Efron, "The Jackknife, the Bootstrap and Other Resampling Plans", 1982, 10.2).

Of cold starts it is the median of the rounds' own ratios: both starts of a round follow one another, so that what else the
machine does at that time meets both. Its interval is the sign test's, which supposes nothing of how the ratios are spread.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Final, NamedTuple

from standby.bench.statistics import nearest_rank

FEWEST: Final = 20
"""Below this many values on a side nothing is claimed."""
_DRAWS: Final = 4000
_LOW, _HIGH = 2.5, 97.5
_TAIL: Final = 0.025


class Ratio(NamedTuple):
    """Of A to B, with the interval that holds it in 95 of 100 cases."""

    value: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether the interval leaves out that both are the same."""
        return self.low > 1.0 or self.high < 1.0


def ratio(a: Sequence[float], b: Sequence[float], percent: float, *, seed: int = 0) -> Ratio | None:
    """Return the ratio of the percentiles; None where a side has too few values, or none above zero."""
    first, second = sorted(a), sorted(b)
    if min(len(first), len(second)) < FEWEST or second[0] <= 0 or first[0] <= 0:
        return None
    chance = random.Random(seed)  # noqa: S311 - repeatable draws, no secret
    drawn = sorted(_resampled(first, percent, chance) / _resampled(second, percent, chance) for _ in range(_DRAWS))
    value = nearest_rank(first, percent) / nearest_rank(second, percent)
    return Ratio(value, nearest_rank(drawn, _LOW), nearest_rank(drawn, _HIGH))


def in_words(a: Sequence[float], b: Sequence[float], percent: float, *, seed: int = 0) -> str:
    """Return what may be said of the two: who is faster by how much, no difference, or no claim."""
    fewest = min(len(a), len(b))
    if fewest == 0:
        return ""
    found = ratio(a, b, percent, seed=seed)
    if found is None:
        return f"no claim: {fewest} values, fewer than {FEWEST}"
    if not found.differs:
        return f"no difference shown (A/B {found.low:.2f} to {found.high:.2f})"
    if found.value < 1:
        return f"A is faster: {1 / found.value:.2f}x ({1 / found.high:.2f} to {1 / found.low:.2f})"
    return f"B is faster: {found.value:.2f}x ({found.low:.2f} to {found.high:.2f})"


def ratio_of_rounds(pairs: Sequence[tuple[float, float]]) -> Ratio | None:
    """Return the median of A/B over the rounds; None where there are too few rounds, or one without a time."""
    if len(pairs) < FEWEST or min(min(pair) for pair in pairs) <= 0:
        return None
    ratios = sorted(a / b for a, b in pairs)
    count = len(ratios)
    # The most values that may be left out at each end: fewer heads than that are so rare among fair tosses.
    out, below = 0, 0.5**count
    while below <= _TAIL:
        out += 1
        below += math.comb(count, out) * 0.5**count
    # Below 20 rounds that could be none; from then on each end has some to spare.
    return Ratio(nearest_rank(ratios, 50), ratios[out - 1], ratios[count - out])


def rounds_in_words(pairs: Sequence[tuple[float, float]]) -> str:
    """Return what may be said of pairs of times, one pair for each round."""
    if not pairs:
        return ""
    found = ratio_of_rounds(pairs)
    if found is None:
        return f"no claim: {len(pairs)} rounds, fewer than {FEWEST}"
    won = sum(a < b for a, b in pairs)
    if not found.differs:
        return f"no difference shown: A faster in {won} of {len(pairs)} rounds (A/B {found.low:.2f} to {found.high:.2f})"
    if found.value < 1:
        return (
            f"A is faster in {won} of {len(pairs)} rounds: {1 / found.value:.2f}x ({1 / found.high:.2f} to {1 / found.low:.2f})"
        )
    lost = len(pairs) - won
    return f"B is faster in {lost} of {len(pairs)} rounds: {found.value:.2f}x ({found.low:.2f} to {found.high:.2f})"


def _resampled(ordered: Sequence[float], percent: float, chance: random.Random) -> float:
    """Return the percentile of one resample with replacement."""
    count = len(ordered)
    rank = max(1, math.ceil(percent / 100 * count))
    return ordered[min(count - 1, int(count * chance.betavariate(rank, count - rank + 1)))]
