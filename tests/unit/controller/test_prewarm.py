"""Climbs ahead of demand: which are granted, and what they brought."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.controller.demotion import Step
from standby.controller.economics import PriceVector, RungCost, ladder
from standby.controller.prewarm import Budget, Room, Wish, grant, outcome
from standby.domain.instance import Rung

pytestmark = pytest.mark.decision
LADDER = ladder([RungCost(Rung.READY, 10, 0), RungCost(Rung.ASLEEP, 1.5, 0.8), RungCost(Rung.STAGED, 0.05, 10)])
PRICES = PriceVector(wait=100, late=0)


def wish(key: str, gb: float, saves: float, rung: Rung = Rung.STAGED, to: Rung = Rung.ASLEEP) -> Wish:
    return Wish(key, rung, Step(to, 900.0, f"{to.label}: expected"), gb, saves)


def test_those_that_save_most_per_gb_come_first() -> None:
    verdicts = grant([wish("a", 20, 100), wish("b", 10, 90), wish("c", 10, 80)], Room(100, 100), Budget(0.2, 9), wanted=False)
    assert [(one.wish.key, one.granted) for one in verdicts] == [("b", True), ("c", True), ("a", False)]
    assert verdicts[2].reason == "it needs 20 GB and climbs ahead of demand have 0 GB left"


@pytest.mark.parametrize(
    ("room", "wanted", "words"),
    [
        (Room(100, 100), True, "a request waits for this node"),
        (Room(100, 5), False, "it needs 10 GB of device memory and 5 GB are free"),
        (Room(100, 100, ahead_gb=20), False, "climbs ahead of demand have 5 GB left"),
        (Room(100, 100, climbing=2), False, "as many climb ahead of demand as may at once"),
    ],
)
def test_refusal_says_what_is_lacking(room: Room, words: str, *, wanted: bool) -> None:
    verdict = grant([wish("a", 10, 100)], room, Budget(), wanted=wanted)[0]
    assert not verdict.granted
    assert words in verdict.reason


def test_step_that_is_no_climb_is_not_granted() -> None:
    assert not grant([wish("a", 1, 1, Rung.READY)], Room(100, 100), Budget(), wanted=False)[0].granted


@given(
    st.lists(st.tuples(st.floats(0, 60), st.floats(0, 1e4)), max_size=12),
    st.floats(0, 100),
    st.floats(0, 40),
    st.integers(0, 3),
)
def test_granted_climbs_fit_memory_and_budget(
    asked: list[tuple[float, float]], free: float, ahead: float, climbing: int
) -> None:
    wishes = [wish(str(k), gb, saves) for k, (gb, saves) in enumerate(asked)]
    room, budget = Room(100, free, ahead, climbing), Budget(0.3, 3)
    verdicts = grant(wishes, room, budget, wanted=False)
    assert sorted(one.wish.key for one in verdicts) == sorted(one.key for one in wishes)
    taken = [one.wish.device_gb for one in verdicts if one.granted]
    assert sum(taken) <= free + 1e-6
    assert not taken or sum(taken) + ahead <= 30 + 1e-6
    assert not taken or len(taken) + climbing <= 3


def test_climb_in_time_saves_the_deeper_wake() -> None:
    """Paid: 10 s of 10 per s while climbing and 60 s of what asleep costs more; saved: 11 s of wait against 0.8 s."""
    brought = outcome(LADDER, Rung.STAGED, Rung.ASLEEP, PRICES, held_s=60, came_after_s=70)
    assert brought.paid == pytest.approx(100 + 60 * 1.45)
    assert brought.saved == pytest.approx(1100 - 88)
    assert brought.regret < 0


def test_climb_for_nobody_is_all_regret() -> None:
    brought = outcome(LADDER, Rung.STAGED, Rung.ASLEEP, PRICES, held_s=100, came_after_s=None)
    assert brought.saved == 0
    assert brought.regret == pytest.approx(245)


def test_request_during_the_climb_waits_for_the_rest() -> None:
    brought = outcome(LADDER, Rung.STAGED, Rung.READY, PRICES, held_s=0, came_after_s=4)
    assert brought.saved == pytest.approx(1100 - 600)
    assert brought.regret == pytest.approx(-400), "four seconds less were waited and no memory was held longer"
