"""Host memory times how long, by whose it was and on which rung, and how much of that served nobody."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.instance import Rung
from standby.warm_pool.byte_seconds import KEPT_S, ByteSeconds, Holding, Series, Spent

READY = Series("t", "e", Rung.READY)
ASLEEP = Series("t", "e", Rung.ASLEEP)


def test_what_an_instance_held_is_added_up_by_rung() -> None:
    account = ByteSeconds()
    account.holds("i", Holding(READY, 100, busy_s=0), now=0)
    account.holds("i", Holding(READY, 300, busy_s=2), now=10)
    account.holds("i", Holding(ASLEEP, 50, busy_s=2.5), now=11)
    account.holds("i", Holding(ASLEEP, 50, busy_s=2.5), now=31)
    assert account.take() == {
        READY: Spent(held=100 * 10 + 300 * 1, idle=100 * 8 + 300 * 0.5),
        ASLEEP: Spent(held=50 * 20, idle=50 * 20),
    }
    assert account.take() == {}


def test_two_instances_of_an_endpoint_are_one_series() -> None:
    account = ByteSeconds()
    for name, busy_s in (("a", 0.0), ("b", 7.0)):
        account.holds(name, Holding(READY, 10, busy_s), now=0)
    account.holds("a", Holding(READY, 10, 4.0), now=4)
    account.gone("b", now=4)
    assert account.take() == {READY: Spent(held=80, idle=40)}


def test_a_door_that_was_opened_for_another_engine_counts_anew() -> None:
    account = ByteSeconds()
    account.holds("i", Holding(READY, 1, busy_s=100), now=0)
    account.holds("i", Holding(READY, 1, busy_s=3), now=10)
    assert account.take() == {READY: Spent(held=10, idle=7)}


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.integers(0, 10**9)), max_size=20))
def test_idle_is_never_less_than_nothing_nor_more_than_all(steps: list[tuple[float, float, int]]) -> None:
    """Whatever a door says, and however little time has passed."""
    account, now, busy_s = ByteSeconds(), 0.0, 0.0
    for lasted, busy, size in steps:
        now, busy_s = now + lasted, busy_s + busy
        account.holds("i", Holding(READY, size, busy_s), now)
        for spent in account.take().values():
            assert 0 <= spent.idle <= spent.held


def test_an_endpoint_is_forgotten_once_its_last_instance_is_long_gone() -> None:
    """Not at once: a scrape must still see the last of it."""
    account = ByteSeconds()
    for name in ("a", "b"):
        account.holds(name, Holding(READY, 1, 0), now=0)
    account.gone("a", now=1)
    account.gone("b", now=2)
    account.gone("never", now=2)
    assert account.forgotten(2 + KEPT_S - 1) == []
    assert account.forgotten(2 + KEPT_S) == [("t", "e")]
    assert account.forgotten(9 * KEPT_S) == []


@pytest.mark.parametrize("back_at", [3.0, KEPT_S])
def test_an_endpoint_that_comes_back_is_kept(back_at: float) -> None:
    account = ByteSeconds()
    account.holds("a", Holding(READY, 1, 0), now=0)
    account.gone("a", now=1)
    account.holds("b", Holding(ASLEEP, 1, 0), now=back_at)
    assert account.forgotten(9 * KEPT_S) == []
