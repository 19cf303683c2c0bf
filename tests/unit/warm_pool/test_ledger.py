"""The memory ledger and the measured prices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.instance import Rung
from standby.warm_pool.costs import MOST_MODELS, Costs
from standby.warm_pool.ledger import Ledger, Sleeper, reserve, victims

pytestmark = pytest.mark.decision


def test_a_claim_follows_the_rung() -> None:
    ledger = reserve(Ledger(100), "a", 80).ledger
    ledger = ledger.claim("a", 20)
    assert (ledger.free, reserve(ledger, "b", 80).granted) == (80, True)
    assert ledger.release("a").free == 100


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    ledger = reserve(Ledger(100), "a", 80).ledger
    refusal = reserve(ledger, "b", 30)
    assert (refusal.granted, refusal.short_by, refusal.ledger) == (False, 10, ledger)
    assert refusal.reason == "needs 30 bytes and holds 0, 20 of 100 are free"


def test_an_instance_may_grow_into_what_it_holds() -> None:
    ledger = reserve(Ledger(100), "a", 40).ledger
    assert reserve(ledger, "a", 100).granted
    assert reserve(ledger, "a", 101).short_by == 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 60)), max_size=40))
def test_promises_never_exceed_the_capacity(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(100)
    for instance, amount in steps:
        ledger = reserve(ledger, instance, amount).ledger
        assert 0 <= ledger.reserved <= 100


def test_the_cheapest_sleeper_to_lose_goes_first() -> None:
    sleepers = [
        Sleeper("small-recent", held=10, idle_s=1, wake_gain_s=10),
        Sleeper("big-old", held=100, idle_s=1000, wake_gain_s=10),
        Sleeper("big-recent", held=100, idle_s=1, wake_gain_s=10),
    ]
    assert victims(sleepers, 50) == ("big-old",)
    assert victims(sleepers, 150) == ("big-old", "big-recent")
    assert victims(sleepers, 1000) == (), "nobody is stopped in vain"


def test_costs_forget_old_measurements_slowly() -> None:
    costs = Costs().observe("d", Rung.STAGED, 10.0).observe("d", Rung.STAGED, 20.0)
    assert costs.table["d"][Rung.STAGED] == pytest.approx(13.0)
    assert costs.gain_of_sleep("d") == 5.0
    for version in range(MOST_MODELS):
        costs = costs.observe("d", Rung.STAGED, 13.0).observe(f"old-{version}", Rung.STAGED, 1.0)
    assert len(costs.table) == MOST_MODELS
    assert costs.observe("d", Rung.ASLEEP, 1.0).gain_of_sleep("d") == pytest.approx(12.0)
