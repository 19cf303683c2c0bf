"""Arrivals are what they are called, and the same again for the same seed."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator, Sequence

import pytest

from standby.bench import arrivals
from standby.domain.errors import InvalidInput

MANY = 40_000


def gaps_of(moments: Sequence[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(moments)]


def cv_of(gaps: Sequence[float]) -> float:
    return statistics.pstdev(gaps) / statistics.fmean(gaps)


def test_constant_arrivals_are_even_and_begin_at_once() -> None:
    moments = list(itertools.islice(arrivals.constant(4.0), 9))
    assert moments == [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]


@pytest.mark.parametrize("rate", [0.1, 5.0, 2000.0])
def test_poisson_arrivals_have_the_rate_and_a_cv_of_one(rate: float) -> None:
    moments = list(itertools.islice(arrivals.poisson(rate, random.Random(1)), MANY))
    assert MANY / moments[-1] == pytest.approx(rate, rel=0.02)
    assert cv_of(gaps_of(moments)) == pytest.approx(1.0, rel=0.03)


def test_counts_of_a_poisson_process_vary_as_much_as_their_mean() -> None:
    """What makes a process Poisson: counts in windows have a variance equal to their mean."""
    moments = list(itertools.takewhile(lambda at: at < 4000.0, arrivals.poisson(10.0, random.Random(2))))
    counts = [0] * 4000
    for at in moments:
        counts[int(at)] += 1
    assert statistics.pvariance(counts) / statistics.fmean(counts) == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize("cv", [0.25, 1.0, 4.0])
def test_gamma_arrivals_have_the_rate_and_the_cv(cv: float) -> None:
    moments = list(itertools.islice(arrivals.gamma(20.0, cv, random.Random(3)), MANY))
    assert MANY / moments[-1] == pytest.approx(20.0, rel=0.06)
    assert cv_of(gaps_of(moments)) == pytest.approx(cv, rel=0.08)


def test_a_ladder_has_each_rate_for_its_step() -> None:
    moments = arrivals.ladder([10.0, 40.0, 160.0], 50.0, random.Random(4))
    assert moments == sorted(moments)
    for number, rate in enumerate([10.0, 40.0, 160.0]):
        of_step = [at for at, step in moments if step == number]
        assert all(50.0 * number <= at < 50.0 * (number + 1) for at in of_step)
        assert len(of_step) == pytest.approx(50.0 * rate, rel=0.15)


def test_moments_inside_minutes_are_as_many_as_counted_and_in_order() -> None:
    moments = list(arrivals.inside_minutes([3, 0, 200, 1], random.Random(5)))
    assert moments == sorted(moments)
    assert [sum(1 for at in moments if at // 60 == minute) for minute in range(4)] == [3, 0, 200, 1]


def test_a_burst_comes_at_once() -> None:
    assert arrivals.burst(3) == [0.0, 0.0, 0.0]


def test_bounds_are_of_time_and_number() -> None:
    assert arrivals.bounded(arrivals.constant(10.0), duration_s=0.35, count=None) == [0.0, 0.1, 0.2, 0.3]
    assert arrivals.bounded(arrivals.constant(10.0), duration_s=60.0, count=2) == [0.0, 0.1]


@pytest.mark.parametrize(
    "process",
    [
        lambda chance: arrivals.poisson(7.0, chance),
        lambda chance: arrivals.gamma(7.0, 2.0, chance),
        lambda chance: iter(arrivals.ladder([7.0], 60.0, chance)),
    ],
)
def test_a_seed_says_it_all(process: Callable[[random.Random], Iterator[object]]) -> None:
    once, again, another = (list(itertools.islice(process(random.Random(seed)), 50)) for seed in (9, 9, 10))
    assert once == again != another


@pytest.mark.parametrize(
    "ask",
    [
        lambda: arrivals.constant(0.0),
        lambda: arrivals.poisson(-1.0, random.Random(0)),
        lambda: arrivals.poisson(float("nan"), random.Random(0)),
        lambda: arrivals.gamma(1.0, 0.0, random.Random(0)),
        lambda: arrivals.ladder([1.0], 0.0, random.Random(0)),
        lambda: arrivals.ladder([1.0, 0.0], 1.0, random.Random(0)),
    ],
)
def test_what_is_no_rate_is_refused(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        ask()
