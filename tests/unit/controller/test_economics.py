"""Prices: what is refused, what a wait costs, and which rungs are worth having."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.controller.economics import PRESET_NAMES, PriceVector, RungCost, Scarcity, ladder, measured, preset
from standby.domain.errors import ConfigurationError
from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.prices import Footprint, ModelPrices, Price, Transition

pytestmark = pytest.mark.decision
GB = 10**9


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, -math.inf, 1e10, True, "100"])
@pytest.mark.parametrize("name", ["device", "host", "disk", "wait", "late", "late_after_s"])
def test_absurd_price_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ConfigurationError, match=f"price {name} is .*from 0 to 1e\\+09.*frugal") as caught:
        PriceVector(**{name: value})
    assert caught.value.remedy


def test_presets_differ_in_the_price_of_waiting() -> None:
    waits = [preset(name).wait for name in PRESET_NAMES]
    assert waits == sorted(set(waits))
    assert preset("balanced") == PriceVector()
    with pytest.raises(ConfigurationError, match="'cheap' is not known"):
        preset("cheap")


def test_late_wait_costs_more_than_its_seconds() -> None:
    prices = PriceVector(wait=10, late=7, late_after_s=2)
    assert prices.of_wait(2.0) == 20
    assert prices.of_wait(2.5) == 32


@given(
    st.lists(
        st.builds(
            RungCost,
            st.sampled_from([Rung.COLD, Rung.STAGED, Rung.ZYGOTE, Rung.ASLEEP]),
            st.floats(allow_nan=True, allow_infinity=True),
            st.floats(allow_nan=True, allow_infinity=True),
        ),
        max_size=8,
    )
)
def test_each_rung_down_is_cheaper_to_hold_and_further_from_ready(rungs: list[RungCost]) -> None:
    """A rung that another beats in both is never kept, nor one whose numbers are not numbers."""
    made = ladder([RungCost(Rung.READY, 10.0, 0.0), *rungs])
    assert made[0].rung is Rung.READY
    for warm, cold in pairwise(made):
        assert warm.rung > cold.rung
        assert warm.hold > cold.hold >= 0
        assert warm.rung is Rung.READY or warm.wait_s < cold.wait_s < math.inf


@pytest.mark.parametrize("rungs", [[], [RungCost(Rung.ASLEEP, 1, 1)], [RungCost(Rung.READY, math.nan, 0)]])
def test_ladder_needs_a_priced_ready(rungs: list[RungCost]) -> None:
    with pytest.raises(ConfigurationError, match="without the rung ready"):
        ladder(rungs)


def _prices(seconds: Mapping[Transition, float], footprint: Footprint) -> ModelPrices:
    priced = {step.value: Price(seconds=value, p95=value, samples=3, last=value, at=0) for step, value in seconds.items()}
    return ModelPrices(engine=EngineKind.VLLM, digest="d", transitions=priced, footprint=footprint)


def test_measured_ladder_has_the_rungs_whose_climb_was_measured() -> None:
    footprint = Footprint(awake=2 * GB, asleep=11 * GB, device_awake=10 * GB, device_asleep=GB // 2)
    known = {Transition.WAKE: 0.8, Transition.START: 30.0, Transition.FORK: 9.0, Transition.FETCH: 60.0}
    made = measured(_prices(known, footprint), 10.0, PriceVector(), zygote=True)
    assert [(one.rung, round(one.hold, 3), one.wait_s) for one in made] == [
        (Rung.READY, 10.25, 0.0),
        (Rung.ASLEEP, 1.65, 0.8),
        (Rung.ZYGOTE, 0.05, 9.0),
        (Rung.COLD, 0.0, 90.0),
    ]
    without_wake = measured(_prices({Transition.START: 30.0}, footprint), 10.0, PriceVector(), cold=False)
    assert [one.rung for one in without_wake] == [Rung.READY, Rung.STAGED]


def test_unmeasured_memory_has_no_price() -> None:
    with pytest.raises(ConfigurationError, match="without the rung ready"):
        measured(_prices({Transition.START: 30.0}, Footprint()), 10.0, PriceVector())


def test_sleep_that_costs_as_much_as_ready_is_no_rung() -> None:
    """On a CPU node a sleeper that keeps its memory is dominated: it would only make callers wait."""
    footprint = Footprint(awake=2 * GB, asleep=2 * GB)
    made = measured(_prices({Transition.WAKE: 0.5, Transition.START: 5.0}, footprint), 1.0, PriceVector(), cold=False)
    assert [one.rung for one in made] == [Rung.READY, Rung.STAGED]


def test_scarcity_rises_in_a_lacking_minute_and_fades() -> None:
    one = Scarcity().seen(0.0, lacked=True)
    assert one.level == 2
    once = one.seen(10.0, lacked=True).seen(20.0, lacked=True)
    assert once.level == 2, "a minute counts once, however often memory lacked in it"
    assert once.seen(61.0, lacked=False).level == 4, "what lacked within the minute is remembered to its end"
    assert one.seen(61.0, lacked=False).level == 1
    assert one.seen(1e6, lacked=False).factor == 1
    assert one.seen(-50.0, lacked=False) == one, "a clock that steps back changes nothing"
    always = Scarcity()
    for minute in range(100):
        always = always.seen(minute * 61.0, lacked=True)
    assert always.factor == 16
