"""When requests come: pure functions of a rate and a seeded source of chance. All times are seconds from the start.

An open loop: the next request comes when it comes, whatever became of those before it. A closed loop of virtual users asks
less of a target the slower it is, and so hides what its users would have waited (coordinated omission).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence

from standby.domain.errors import InvalidInput


def constant(rate: float) -> Iterator[float]:
    """Yield ``rate`` moments per second, evenly spaced, the first one at 0."""
    _check_rate(rate)
    return (number / rate for number in itertools.count())


def poisson(rate: float, chance: random.Random) -> Iterator[float]:
    """Yield moments with independent exponential gaps: many callers who know nothing of each other."""
    _check_rate(rate)
    return _after_gaps(chance.expovariate(rate) for _ in itertools.repeat(None))


def gamma(rate: float, cv: float, chance: random.Random) -> Iterator[float]:
    """Yield moments whose gaps are gamma distributed; ``cv``: their coefficient of variation.

    1 is a Poisson process, above 1 come bursts and lulls, towards 0 the gaps become even.
    """
    _check_rate(rate)
    if not 0.0 < cv <= 100.0:
        raise InvalidInput(f"a coefficient of variation of {cv:g} is not possible", remedy="give --cv above 0 and up to 100")
    shape = 1.0 / (cv * cv)
    return _after_gaps(chance.gammavariate(shape, 1.0 / (rate * shape)) for _ in itertools.repeat(None))


def burst(count: int) -> list[float]:
    """Return ``count`` moments at once: what an endpoint at zero meets in its worst second."""
    return [0.0] * count


def ladder(rates: Sequence[float], step_s: float, chance: random.Random, most: int | None = None) -> list[tuple[float, int]]:
    """Return (moment, number of the step) of Poisson arrivals at each of the rates in turn, for ``step_s`` each."""
    if not step_s > 0.0:
        raise InvalidInput(f"a step of {step_s:g} s is none", remedy="give --step above 0, e.g. 30s")
    moments = (
        (number * step_s + at, number)
        for number, rate in enumerate(rates)
        for at in itertools.takewhile(lambda moment: moment < step_s, poisson(rate, chance))
    )
    return list(itertools.islice(moments, most))


def inside_minutes(counts: Iterable[int], chance: random.Random) -> Iterator[float]:
    """Yield as many random moments inside each minute as its count says, in order; never more in memory than one."""
    return (60.0 * (minute + part) for minute, count in enumerate(counts) for part in _in_order(count, chance))


def bounded(moments: Iterable[float], *, duration_s: float | None, count: int | None) -> list[float]:
    """Return the moments before ``duration_s``, at most ``count`` of them; one of the two must be given."""
    if duration_s is not None:
        moments = itertools.takewhile(lambda moment: moment < duration_s, moments)
    return list(itertools.islice(moments, count))


def _in_order(count: int, chance: random.Random) -> Iterator[float]:
    """Yield ``count`` uniform parts of 1 in order, each drawn as the least of those that are left.

    A trace may say that there were 10^15: drawn at once and sorted they would be all the memory that there is.
    """
    at = 0.0
    for left in range(count, 0, -1):
        at += (1.0 - at) * (1.0 - (1.0 - chance.random()) ** (1.0 / left))
        yield at


def _after_gaps(gaps: Iterator[float]) -> Iterator[float]:
    return itertools.accumulate(gaps)


def _check_rate(rate: float) -> None:
    if not 0.0 < rate <= 1_000_000.0:
        raise InvalidInput(f"a rate of {rate:g} requests per second is not possible", remedy="give --rate above 0, e.g. 0.5")
