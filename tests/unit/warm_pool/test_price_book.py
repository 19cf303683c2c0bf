"""Measured prices: averages, what placement and eviction read of them, and how many are kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.prices import Footprint, NodePrices, Transition
from standby.warm_pool.price_book import MOST_MODELS, RECENT, PriceBook, Series
from standby.warm_pool.price_key import PriceKey, price_key
from support.builders import a_model, an_assignment

pytestmark = pytest.mark.decision


KEY = PriceKey(EngineKind.VLLM, "d" * 64, "abc")


def book(**seconds: float) -> PriceBook:
    made = PriceBook()
    for at, (name, value) in enumerate(seconds.items()):
        made = made.observe(KEY, Transition[name], value, float(at))
    return made


def test_old_measurements_are_forgotten_slowly() -> None:
    price = Series.first(10.0, 1.0).observe(20.0, 2.0).price()
    assert price.seconds == pytest.approx(13.0)
    assert (price.p95, price.samples, price.last, price.at) == (20.0, 2, 20.0, 2.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=100))
def test_the_average_lies_between_the_extremes_and_p95_among_the_last(seconds: list[float]) -> None:
    series = Series.first(seconds[0], 0.0)
    for value in seconds[1:]:
        series = series.observe(value, 0.0)
    price = series.price()
    assert min(seconds) - 1e-6 <= price.seconds <= max(seconds) + 1e-6
    assert price.p95 in seconds[-RECENT:]
    assert sum(value <= price.p95 for value in seconds[-RECENT:]) >= 0.95 * len(seconds[-RECENT:])
    assert price.samples == len(seconds)


def test_the_table_says_the_seconds_until_ready() -> None:
    """A climb from cold is the fetch and the start; a rung that was never climbed from is left out."""
    assert book(FETCH=3.0, START=5.0, WAKE=0.5, SLEEP=0.1).table == {
        KEY.digest: {Rung.COLD: 8.0, Rung.STAGED: 5.0, Rung.ASLEEP: 0.5}
    }
    assert book(FETCH=3.0, FORK=2.0).table == {KEY.digest: {Rung.ZYGOTE: 2.0}}
    assert book(FETCH=3.0).table == {}


def test_of_several_options_those_measured_last_count() -> None:
    other = PriceKey(KEY.engine, KEY.digest, "other")
    made = PriceBook().observe(KEY, Transition.START, 9.0, 1.0).observe(other, Transition.START, 4.0, 2.0)
    assert made.table[KEY.digest][Rung.STAGED] == 4.0
    assert made.observe(KEY, Transition.START, 9.0, 3.0).table[KEY.digest][Rung.STAGED] == 9.0


def test_a_sleeper_is_worth_what_its_wake_saves_over_the_next_best_climb() -> None:
    assert PriceBook().gain_of_sleep(KEY.digest) == book(WAKE=1.0).gain_of_sleep(KEY.digest) == 5.0
    assert book(WAKE=1.0, START=13.0).gain_of_sleep(KEY.digest) == 12.0
    assert book(WAKE=1.0, START=13.0, FORK=3.0).gain_of_sleep(KEY.digest) == 2.0
    assert book(WAKE=9.0, START=3.0).gain_of_sleep(KEY.digest) == 0.0


def test_only_the_models_measured_last_are_kept() -> None:
    made = book(START=1.0)
    for version in range(MOST_MODELS):
        key = PriceKey(KEY.engine, f"{version:064d}", "abc")
        made = made.observe(KEY, Transition.START, 1.0, 1.0).observe(key, Transition.START, 1.0, 1.0)
    assert len(made.models) == MOST_MODELS
    assert KEY.text in made.models


def test_it_is_announced_and_stored_whole() -> None:
    made = book(START=2.0, WAKE=0.25).observe_hatch(EngineKind.VLLM, 6.0, 3.0)
    told = made.announced("n1", {KEY.text: Footprint(awake=7)}, 9.0)
    model = told.models[KEY.text]
    assert {name: price.seconds for name, price in model.transitions.items()} == {"staged→ready": 2.0, "asleep→ready": 0.25}
    assert (model.footprint.awake, model.digest, told.hatch[EngineKind.VLLM].seconds) == (7, KEY.digest, 6.0)
    assert NodePrices.model_validate_json(told.encode()) == told
    assert PriceBook.model_validate_json(made.encode()) == made


def test_a_clock_that_went_back_makes_no_price_that_readers_refuse() -> None:
    assert PriceBook().observe(KEY, Transition.START, -3.0, 1.0).announced("n1", {}, 1.0).models[KEY.text].transitions


def test_a_key_knows_options_and_slots_and_no_order() -> None:
    def key(slots: int = 1, **options: int) -> PriceKey:
        return price_key(an_assignment(slots=slots, model=a_model(engine_options=options)))

    assert key(a=1, b=2) == key(b=2, a=1)
    assert len({key(), key(slots=2), key(a=1), key(a=2)}) == 4
