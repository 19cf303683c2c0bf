"""The limit of requests at once: below a knee, back at the slots, and never beyond a bound around it."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from standby.gateway import concurrency
from standby.gateway.concurrency import Limit

pytestmark = pytest.mark.decision


class _Engine:
    """Closed loop: as many requests as the limit allows; beyond its knee the engine thrashes. Ends lag behind dispatches."""

    def __init__(self, slots: int, knee: float, *, factor: float, seed: int, sigma: float = 0.3) -> None:
        self.slots, self.knee, self.factor, self.sigma = slots, knee, factor, sigma
        self.chance = random.Random(seed)
        self.limit = concurrency.fresh(slots)
        self.under_way: deque[float] = deque()

    def run(self, requests: int, *, demand: int = 10_000) -> list[int]:
        """Return the limit after each request."""
        limits = []
        for _ in range(requests):
            while len(self.under_way) < min(self.limit.whole, demand):
                self.under_way.append(self._slowness(len(self.under_way) + 1))
            slowness = self.under_way.popleft()
            self.limit = concurrency.sampled(self.limit, self.slots, len(self.under_way) + 1, slowness)
            limits.append(self.limit.whole)
        return limits

    def _slowness(self, in_flight: int) -> float:
        crowded = self.factor if in_flight > self.knee else 1.0
        return crowded * self.chance.lognormvariate(0.0, self.sigma)


@settings(max_examples=15, deadline=None)
@given(slots=st.sampled_from([32, 64, 128]), knee=st.integers(8, 28), factor=st.floats(5.0, 50.0), seed=st.integers(0, 99))
def test_it_settles_at_a_knee_and_does_not_swing_far(slots: int, knee: int, factor: float, seed: int) -> None:
    engine = _Engine(slots, knee, factor=factor, seed=seed)
    engine.run(10, demand=knee // 2)  # it has been seen uncrowded
    settled = engine.run(1600)[800:]
    mean = sum(settled) / len(settled)
    assert knee / 3 <= mean <= knee + 1
    assert max(settled) <= knee + knee**0.5 + 2
    assert min(settled) >= knee // 5


@settings(max_examples=8, deadline=None)
@given(slots=st.sampled_from([4, 16, 64]), seed=st.integers(0, 99))
def test_it_returns_to_the_slots_when_the_engine_recovers(slots: int, seed: int) -> None:
    engine = _Engine(slots, 1.5, factor=30.0, seed=seed)
    engine.run(10, demand=1)
    assert engine.run(400)[-1] < slots
    engine.knee = float(slots)
    assert engine.run(1000)[-1] == slots


@settings(max_examples=20, deadline=None)
@given(slots=st.integers(1, 64), seed=st.integers(0, 10_000), sigma=st.floats(0.0, 0.5))
@example(slots=31, seed=8, sigma=0.3)
@example(slots=31, seed=40, sigma=0.5)
@example(slots=64, seed=88, sigma=0.5)
def test_a_healthy_engine_keeps_every_slot(slots: int, seed: int, sigma: float) -> None:
    """However much its requests differ by chance: at the most here, one of six is 1.6 times slower than usual, or more."""
    engine = _Engine(slots, slots, factor=1.0, seed=seed, sigma=sigma)
    assert set(engine.run(3000)) == {slots}


def test_an_engine_that_shares_its_processor_keeps_its_four_slots() -> None:
    """Four at once are four times as slow, and nothing is gained by letting fewer in."""
    limit = concurrency.sampled(concurrency.fresh(4), 4, 1, 1.0)
    for _ in range(500):
        limit = concurrency.sampled(limit, 4, 4, 4.0)
    assert limit.whole >= 3


def test_samples_below_the_limit_do_not_move_it() -> None:
    limit = Limit(8.0, usual=0.0, recent=3.0, known=50, crowded=50)
    for in_flight in (1, 3, 5, 6):
        assert concurrency.sampled(limit, 16, in_flight, 100.0).limit == 8.0
    assert concurrency.sampled(limit, 16, 8, 100.0).limit < 8.0


def test_fewer_slots_lower_the_limit_at_once() -> None:
    assert concurrency.sampled(Limit(8.0, 0.0, 0.0, 50, 50), 4, 6, 1.0).limit == 4.0
