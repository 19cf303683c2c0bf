"""Knative's rule by hand, and the scalers by name."""

from __future__ import annotations

import pytest

from standby.controller.scaling import Capacity
from standby.controller.simulator.scalers import Kpa, build, names
from standby.controller.simulator.tokens import TokenModel, parse
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

MODEL = TokenModel(slots=10, instances=20)  # a target of 7 each


def up(ready: int) -> Capacity:
    return Capacity(ready, ready, 0.0 if ready else None, 1.5)


def test_the_stable_window_averages_over_a_minute() -> None:
    one = Kpa(MODEL)
    one.told(14, 0, 0.0)
    assert one.decide(up(2), 30.0).count == 2
    one.told(7, 0, 60.0)
    # half of the last minute at 14, half at 7: 10.5 of 7 each
    assert one.decide(up(2), 90.0).count == 2
    assert one.decide(up(2), 120.0).count == 1


def test_panic_takes_the_short_window_and_never_goes_down() -> None:
    one = Kpa(MODEL)
    one.told(1, 0, 0.0)
    one.told(60, 0, 54.0)
    assert one.decide(up(1), 60.0).count == 9
    one.told(1, 0, 60.0)
    assert one.decide(up(9), 66.0).count == 9
    # 60 s after the last crossing, which was at 60
    assert one.decide(up(9), 118.0).count == 9
    assert one.decide(up(9), 120.0).count == 4  # at most half of what is ready goes at once
    assert one.decide(up(4), 122.0).count == 2


def test_zero_wakes_at_once_and_comes_back_after_the_window_and_the_grace() -> None:
    one = Kpa(MODEL)
    one.told(0, 1, 5.0)
    assert one.decide(up(0), 5.0).count == 1
    one.told(0, 0, 6.0)
    assert one.decide(up(1), 64.0).count == 1
    assert one.decide(up(1), 68.0).count == 1
    assert one.decide(up(1), 98.0).count == 0


@pytest.mark.parametrize("name", ["fixed-0", "fixed-21", "fixed-x", "ttl-10"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="use fixed-1, "):
        build(name, MODEL)


def test_every_name_builds_what_it_names() -> None:
    assert [build(name, MODEL).name for name in names(MODEL)] == names(MODEL)


def test_a_token_model_of_ones_own() -> None:
    model = parse({"slots": 3, "asleep": 0, "rest": "staged", "climb_s": {"staged": 9}, "slo_s": 0.5})
    assert (model.slots, model.resting(0), model.climb_s[Rung.STAGED], model.climb_s[Rung.ASLEEP]) == (3, Rung.STAGED, 9.0, 1.5)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"slot": 3}, "the token model has no field 'slot'"),
        ({"slots": 0}, "slots is 0, it must be a whole number from 1"),
        ({"slots": 1.5}, "slots is 1.5, it must be a whole number from 1"),
        ({"decode_s": 0}, "decode_s is 0, it must be above 0"),
        ({"climb_s": 3}, "climb_s is a int, not an object"),
        ({"climb_s": {"warm": 1}}, "'warm' is no rung to rest on"),
        ({"rest": "ready"}, "'ready' is no rung to rest on"),
        ({"prefill_s": -1}, "prefill_s is -1, the least is 0"),
    ],
)
def test_a_wrong_token_model_is_refused(said: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse(said)
