"""The cap on bytes per second."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.artifacts.pace import Pacer, TokenBucket
from support.clock import Clock

pytestmark = pytest.mark.decision


def test_a_debt_is_waited_for() -> None:
    bucket, wait = TokenBucket(rate=100, burst=10, level=0, at=0).take(50, now=0)
    assert wait == 0.5
    assert bucket.take(50, now=0.5)[1] == 0.5


def test_a_pause_saves_up_no_more_than_the_burst() -> None:
    bucket, wait = TokenBucket(rate=100, burst=10, level=0, at=0).take(20, now=1000)
    assert wait == pytest.approx(0.1)
    assert bucket.level == -10


@given(st.lists(st.tuples(st.integers(0, 500), st.floats(0, 3)), max_size=30))
def test_never_more_than_rate_and_burst(steps: list[tuple[int, float]]) -> None:
    """Whoever waits as told stays below burst and rate times the time passed, whatever the pauses between."""
    bucket, now, passed = TokenBucket(rate=100, burst=10, level=10, at=0), 0.0, 0
    for amount, pause in steps:
        now += pause
        bucket, wait = bucket.take(amount, now)
        now += wait
        passed += amount
        assert passed <= 10 + 100 * now + 1e-6


async def test_pacer_makes_its_callers_wait_in_turn() -> None:
    clock = Clock()
    pacer = Pacer(1000, now=clock, sleep=clock.sleep)
    for _ in range(10):
        await pacer.wait(500)
    assert clock.now == pytest.approx(105.0)


async def test_no_cap_never_waits() -> None:
    pacer = Pacer(None, sleep=Clock().sleep)
    await pacer.wait(1 << 40)
    assert pacer.reserve(1 << 40) == 0
    assert pacer.portion(1 << 23, 4) == 1 << 23


def test_portions_are_small_where_the_cap_is_low() -> None:
    assert Pacer(4 << 20).portion(8 << 20, 4) == 512 << 10
    assert Pacer(1).portion(8 << 20, 4) == 64 << 10


def test_threads_share_one_rate() -> None:
    clock = Clock()
    pacer = Pacer(100, now=clock)
    waits: list[float] = []
    threads = [threading.Thread(target=lambda: waits.append(pacer.reserve(10))) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(waits) == pytest.approx([0.1 * number for number in range(1, 21)])
