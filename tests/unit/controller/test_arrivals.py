"""The model of an endpoint's gaps."""

from __future__ import annotations

import json
import math
import random
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.controller.arrivals import BINS, EDGES, GapModel, bin_of
from standby.domain.errors import InvalidInput

pytestmark = pytest.mark.decision
ANY_FLOAT = st.floats(allow_nan=True, allow_infinity=True)


def learned(gaps: list[float], start: float = 0.0) -> GapModel:
    model, now = GapModel(), start
    for gap in gaps:
        now += gap
        model.observe(gap, now)
    return model


@given(st.floats(min_value=0, allow_nan=False))
def test_bin_holds_its_gap(gap: float) -> None:
    b = bin_of(gap)
    assert EDGES[b] <= gap
    assert b == BINS or gap < EDGES[b + 1]


@given(st.lists(st.tuples(ANY_FLOAT, ANY_FLOAT), max_size=60))
def test_whatever_is_observed_leaves_probabilities(seen: list[tuple[float, float]]) -> None:
    """Clock steps, negative, infinite and missing numbers: hazards stay probabilities and survival never rises."""
    model = GapModel()
    for gap, at in seen:
        model.observe(gap, at)
    assert all(0 <= hazard <= 1 for hazard in model.hazards)
    survivals = [model.survival(idle) for idle in (-1.0, 0.0, 0.5, 1.0, 7.3, 60.0, 900.0, 1e5, 1e6, 1e9)]
    assert survivals == sorted(survivals, reverse=True)
    assert survivals[0] == 1
    assert model.count == sum(not math.isnan(gap) for gap, _ in seen)


def test_survival_is_close_to_the_share_of_longer_gaps() -> None:
    """Against counting in the sample itself, at idle times that are no edges."""
    draw = random.Random(7)
    gaps = [draw.expovariate(1 / 40) for _ in range(100)]
    model = learned(gaps)
    for idle in (5.0, 20.0, 50.0, 130.0):
        counted = sum(gap > idle for gap in gaps) / len(gaps)
        assert model.survival(idle) == pytest.approx(counted, abs=0.12)


def test_nothing_known_is_the_same_at_every_scale() -> None:
    model = GapModel()
    for idle in (1.0, 16.0, 1024.0):
        assert model.survival(4 * idle) / model.survival(idle) == pytest.approx(0.5)
    assert model.survival(EDGES[BINS] * 4) / model.survival(EDGES[BINS]) == pytest.approx(0.5)


def test_habits_change_within_some_hundred_requests() -> None:
    model = learned([900.0] * 300 + [5.0] * 300)
    assert model.survival(60.0) < 0.06
    assert model.survival(3.0) > 0.9


def test_a_week_of_silence_weakens_what_was_known() -> None:
    model = learned([5.0] * 50)
    model.observe(7 * 86_400.0, 250.0 + 7 * 86_400.0)
    assert model.weight == pytest.approx(1.0, abs=0.5)


def test_clock_that_steps_back_forgets_nothing() -> None:
    model = learned([5.0] * 20, start=1e6)
    before = model.weight
    model.observe(5.0, 3.0)
    assert before < model.weight <= before + 1


def test_restart_keeps_what_was_learned() -> None:
    model = learned([1.0, 30.0, 900.0, 900.0, 1e7])
    again = GapModel.from_json(json.loads(json.dumps(model.to_json())))
    assert again.count == model.count
    assert again.hazards == pytest.approx(model.hazards, rel=1e-4)
    again.observe(900.0, 12.0)  # another process's monotonic clock
    assert again.count == 6


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"counts": [], "count": 1, "per_octave": 4},
        {"counts": {"x": 1}, "count": 1, "per_octave": 4},
        {"counts": {"900": 1}, "count": 1, "per_octave": 4},
        {"counts": {"3": -1}, "count": 1, "per_octave": 4},
        {"counts": {"3": math.nan}, "count": 1, "per_octave": 4},
        {"counts": {"3": 1}, "count": 1, "per_octave": 3},
        {"counts": {"3": 1}, "count": math.inf, "per_octave": 4},
    ],
)
def test_foreign_state_is_refused(said: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="gap histogram"):
        GapModel.from_json(said)


def test_memory_is_bounded_and_weights_stay_finite() -> None:
    model = GapModel()
    for k in range(30_000):
        model.observe(k % 1000, k * 3600.0)
    assert math.isfinite(model.weight)
    assert 1 <= model.weight <= 101
    assert sys.getsizeof(json.dumps(model.to_json())) < 4096
