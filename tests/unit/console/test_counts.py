"""Rates, sparklines and percentiles out of counters."""

from __future__ import annotations

import pytest

from standby.console.counts import WINDOW_S, Count, Rates, Windows, percentiles
from standby.console.values import SPARK_S

E = ("t", "e")
BOUNDS = (0.1, 0.2, 0.4, float("inf"))


def after(rates: Rates, *requests: int) -> None:
    """Let a second pass for each of these counts."""
    for number, count in enumerate(requests):
        rates.take({E: Count(count, 0, count * 10.0)}, float(number))


def test_a_rate_is_the_mean_of_the_last_seconds() -> None:
    rates = Rates()

    after(rates, 100, 110, 120, 120, 120, 120)

    assert rates.rates(E) == (4.0, 40.0)
    assert rates.spark(E)[-5:] == (10, 10, 0, 0, 0)
    assert len(rates.spark(E)) == SPARK_S


def test_what_was_counted_before_the_first_look_is_no_traffic_of_that_second() -> None:
    rates = Rates()

    after(rates, 1_000_000)

    assert rates.rates(E) == (0.0, 0.0)
    assert rates.spark(E) == ()


def test_an_endpoint_without_traffic_for_a_minute_is_forgotten() -> None:
    rates = Rates()

    after(rates, 0, 5, *[5] * (SPARK_S - 1))
    at_the_edge = rates.spark(E)
    rates.take({E: Count(5, 0, 50.0)}, 100.0)

    assert at_the_edge == (5, *[0] * (SPARK_S - 1))
    assert rates.spark(E) == ()


def test_counters_that_begin_anew_count_from_zero() -> None:
    """An endpoint was deleted and made again."""
    rates = Rates()
    rates.take({E: Count(100, 9, 900.0, 50.0)}, 0.0)

    added = rates.take({E: Count(3, 1, 7.0, 2.0)}, 1.0)

    assert added[E] == Count(3, 1, 7.0, 2.0)
    assert rates.spark(E)[-1] == 3


def test_an_endpoint_that_was_made_again_has_no_line_of_the_one_before() -> None:
    rates = Rates()
    after(rates, 0, 50)

    rates.forget(E)
    rates.take({E: Count()}, 3.0)

    assert not any(rates.spark(E))
    assert rates.rates(E) == (0.0, 0.0)


def test_a_second_that_took_three_shows_requests_a_second() -> None:
    rates = Rates()
    rates.take({E: Count(0)}, 0.0)

    rates.take({E: Count(30)}, 3.0)

    assert rates.spark(E)[-1] == 10


def test_one_request_in_a_long_second_is_still_seen() -> None:
    rates = Rates()
    rates.take({E: Count(0)}, 0.0)

    rates.take({E: Count(1)}, 3.0)

    assert rates.spark(E)[-1] == 1


def test_percentiles_are_straight_lines_inside_the_buckets() -> None:
    assert percentiles(BOUNDS, [10, 0, 0, 0]) == (50.0, 95.0, 99.0)
    assert percentiles(BOUNDS, [50, 50, 0, 0]).p50 == 100.0
    assert percentiles(BOUNDS, [50, 50, 0, 0]).p95 == pytest.approx(190.0)


def test_beyond_the_last_bound_is_the_last_bound() -> None:
    assert percentiles(BOUNDS, [0, 0, 0, 7]).p50 == 400.0


def test_nothing_measured_has_no_percentiles() -> None:
    assert percentiles(BOUNDS, [0, 0, 0, 0]) == (None, None, None)


def test_percentiles_forget_what_is_two_windows_old() -> None:
    windows = Windows(BOUNDS)
    slow, fast = [0.0, 0.0, 10.0, 0.0], [10.0, 0.0, 10.0, 0.0]
    windows.turn(dict, 0.0)
    windows.turn(lambda: {E: slow}, WINDOW_S)

    both = windows.of({E: fast})[E]
    windows.turn(lambda: {E: fast}, 2 * WINDOW_S)
    recent = windows.of({E: fast})[E]

    assert both.p95 is not None
    assert both.p95 > 200
    assert recent.p95 is not None
    assert recent.p95 < 100


def test_percentiles_stay_while_there_is_no_traffic() -> None:
    windows = Windows(BOUNDS)
    windows.turn(dict, 0.0)
    before = windows.of({E: [4.0, 0.0, 0.0, 0.0]})[E]

    for turn in range(1, 6):
        windows.turn(lambda: {E: [4.0, 0.0, 0.0, 0.0]}, turn * WINDOW_S)

    assert windows.of({E: [4.0, 0.0, 0.0, 0.0]})[E] == before


def test_percentiles_of_an_endpoint_that_was_made_again_are_its_own() -> None:
    """Also where the new one has had more requests in all: what the old one had must not be taken from it."""
    windows = Windows(BOUNDS)
    windows.turn(lambda: {E: [0.0, 0.0, 5.0, 0.0]}, 0.0)

    again = [10.0, 0.0, 0.0, 0.0]

    assert windows.of({E: again})[E] == percentiles(BOUNDS, again)
    windows.forget(E)
    assert windows.of({E: [0.0, 0.0, 6.0, 0.0]})[E] == percentiles(BOUNDS, [0.0, 0.0, 6.0, 0.0])
