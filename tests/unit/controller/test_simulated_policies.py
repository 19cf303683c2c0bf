"""The live controller's decisions inside the simulator."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.demotion import FOREVER, envelope, hold
from standby.controller.economics import PriceVector
from standby.controller.eviction import MemoryKind
from standby.controller.simulator import baselines
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.policies import NAMES, Priced, ladder_of, ours
from standby.controller.simulator.protocol import Resting
from standby.domain.instance import Rung

MODEL = CostModel()
PRICES = PriceVector()


def policy(name: str = "standby", sizes: tuple[float, ...] = (10.0, 20.0)) -> Priced:
    return ours(name, sizes, MODEL, PRICES)


def lived(one: Priced, function: int, gap: float, times: int, start: float = 0.0) -> float:
    now = start
    for _ in range(times):
        one.idle(function, now, 0.0)
        now += gap
        one.arrived(function, now, gap)
        now += MODEL.exec_s
    return now


@settings(max_examples=50, deadline=None)
@given(st.floats(1, 40), st.floats(0, 1000))
def test_two_ways_to_the_envelope_agree(size: float, wait: float) -> None:
    """The baseline's own computation against the decision module's, on rungs whose weights stay on disk."""
    theirs = [(rung, until) for rung, until in baselines.envelope(size, MODEL, wait) if rung is not Rung.COLD]
    mine = envelope(ladder_of(MODEL, size), PriceVector(wait=wait, late=0))
    assert [rung for rung, until in mine if until > 0] == [rung for rung, until in theirs if until > 0]
    for (_, until), (_, other) in zip(mine[:-1], theirs[:-1], strict=True):
        assert until == pytest.approx(other)


@pytest.mark.parametrize("name", NAMES)
def test_every_policy_answers_to_the_end(name: str) -> None:
    one = policy(name)
    now = lived(one, 0, 900.0, 30)
    steps = [one.idle(0, now, 0.0)]
    while steps[-1].until_s < FOREVER:
        steps.append(one.idle(0, now + steps[-1].until_s, steps[-1].until_s))
    assert steps[-1].rung is Rung.STAGED
    climbs = [after for before, after in pairwise(steps) if after.rung > before.rung]
    assert len(climbs) == (name == "standby")


def test_unknown_name_is_no_policy() -> None:
    with pytest.raises(KeyError):
        policy("other")


def test_it_asks_the_live_decision() -> None:
    one = policy()
    now = lived(one, 1, 300.0, 10)
    assert one.idle(1, now, 100.0) == hold(one._ladders[1], one._gaps[1], 100.0, PRICES)


def test_waiting_caller_gets_the_memory_that_is_missed_least() -> None:
    one = policy()
    now = max(lived(one, 0, 9.0, 30), lived(one, 1, 5000.0, 30))
    resting = [Resting(0, 0, Rung.READY, 10, 10, 1.0), Resting(1, 0, Rung.READY, 20, 20, 1.0)]
    one.arrived(0, now, None)
    fall = one.victim(5.0, MemoryKind.DEVICE, resting, now)
    assert fall is not None
    assert (fall.function, fall.rung) == (1, Rung.ASLEEP)
    again = one.victim(5.0, MemoryKind.DEVICE, resting[:1], now)
    assert again is not None
    assert again.function == 0


def test_climb_ahead_of_demand_takes_nobodys_memory() -> None:
    one = policy()
    now = lived(one, 0, 900.0, 30)
    resting = [Resting(1, 0, Rung.READY, 20, 20, 500.0)]
    step = one.idle(0, now, 0.0)
    while step.until_s < 1000:
        before = step.rung
        step = one.idle(0, now + step.until_s, step.until_s)
        if step.rung > before:
            assert one.victim(5.0, MemoryKind.DEVICE, resting, now) is None
            break
    else:
        pytest.fail("it never climbed")
    one.arrived(0, now + 1000, None)
    assert one.victim(5.0, MemoryKind.DEVICE, resting, now + 1000) is not None


def test_lacking_host_memory_becomes_dearer() -> None:
    """Then less is put to sleep: of one idle hour, fewer seconds are spent asleep."""
    one = policy()
    now = lived(one, 0, 400.0, 5)

    def asleep_s(at: float) -> float:
        total, idle = 0.0, 0.0
        while idle < 3600:
            step = one.idle(0, at + idle, idle)
            until = min(step.until_s, 3600.0)
            total += until - idle if step.rung is Rung.ASLEEP else 0.0
            idle = until
        return total

    before = asleep_s(now)
    for minute in range(60, 70):
        one.victim(5.0, MemoryKind.HOST, [], now + 61.0 * minute)
    assert one.idle(0, now + 61.0 * 70, 0.0).until_s < FOREVER
    assert asleep_s(now + 61.0 * 70) < before
