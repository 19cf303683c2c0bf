"""A comparison's decisions: order, losses, ratios, what was held, and a table that says how each cell is known."""

from __future__ import annotations

import random
from typing import Any

import pytest

from standby.bench.compare.command import acts_of, exit_code
from standby.bench.compare.course import CourseOptions, workload_of
from standby.bench.compare.held import Look, awake_bytes, held_gb_s
from standby.bench.compare.measured import block_of, burst, cold_start, in_turn, lost_from, scale_in
from standby.bench.compare.page import compare_page
from standby.bench.compare.ratio import in_words, ratio, ratio_of_rounds, rounds_in_words
from standby.bench.compare.table import phases, table
from standby.bench.compare.values import Act, ColdStart, Comparison, Death, Holding, Known, Reached, Row, Side
from standby.bench.page import render
from standby.bench.values import Sample, Slo, Workload
from standby.console.settings import ConsoleSettings
from standby.domain.errors import InvalidInput
from support.bench_values import a_plan, a_sample

REACHED = Reached(ok=True, words="stopped by hand")
FAILED: dict[str, Any] = {"error": "connect", "status": 0, "first_token_s": None}
PRICES = ConsoleSettings(usd_host_gb_hour=3.6, usd_serverless_gb_second=0.00002)


def test_the_order_is_abba_over_and_over() -> None:
    assert "".join("AB"[place] for order in in_turn(4) for place in order) == "ABBAABBA"


def test_blocks_are_parts_of_one_plan_due_from_zero() -> None:
    plan = a_plan([0.0, 1.0, 2.5, 4.0, 7.0])
    parts = [block_of(plan, number, 2).requests for number in range(2)]

    assert [[one.due_s for one in part] for part in parts] == [[0.0, 1.0], [0.0, 1.5, 4.5]]
    assert [one.prompt for part in parts for one in part] == [one.prompt for one in plan.requests]


@pytest.mark.parametrize(
    ("pattern", "first"),
    [("", None), ("+++", None), ("+--", None), ("---", 0), ("+---", 1), ("---+", None), ("-", 0), ("--", 0)],
)
def test_a_target_may_be_lost_after_failures_in_a_row_at_the_end(pattern: str, first: int | None) -> None:
    samples = [a_sample(float(at), **({} if sign == "+" else FAILED)) for at, sign in enumerate(pattern)]

    found = lost_from(samples)
    assert (None if found is None else found.due_s) == first


def test_a_burst_that_lost_a_request_was_not_served_whole() -> None:
    good = [a_sample(0.0, ttft_s=at, e2e_s=at + 1.0) for at in (0.5, 0.9)]

    whole, part = burst(7.0, REACHED, good), burst(7.0, REACHED, [*good, a_sample(0.0, **FAILED)])
    assert (whole.first_s, whole.running_s, whole.served_s, whole.ok) == (0.5, 0.9, 1.9, 2)
    assert (part.first_s, part.running_s, part.served_s, part.ok) == (0.5, None, None, 2)


def test_what_breaks_off_and_what_is_refused_are_told_apart() -> None:
    samples = [
        a_sample(),
        a_sample(error="broken stream", status=200),
        a_sample(error="5xx", status=503),
        a_sample(**FAILED),
    ]

    found = scale_in(1.0, "suspending", samples)
    assert (found.requests, found.failed, found.interrupted, found.server_errors) == (4, 3, 1, 1)


# ---- held --------------------------------------------------------------------------------------------------------


def test_an_engine_that_was_not_measured_yet_counts_as_large_as_it_was_ever_seen() -> None:
    """A node measures a second after a change: a start and the first second of ready are no gifts."""
    looks = [
        Look(0.0, "cold", 0), Look(1.0, "starting", 0), Look(2.0, "ready", 0), Look(3.0, "ready", 300), Look(4.0, "asleep", 60),
        Look(5.0, "staged", 0), Look(6.0, "cold", 0),
    ]  # fmt: skip

    assert awake_bytes(looks) == 300
    assert held_gb_s(looks) == pytest.approx((0 + 300 + 300 + 300 + 60 + 0) / 1e9)
    assert held_gb_s([]) == 0.0


# ---- ratios ------------------------------------------------------------------------------------------------------


def drawn(seed: int, scale: float, count: int = 60) -> list[float]:
    chance = random.Random(seed)
    return [scale * chance.lognormvariate(0.0, 0.3) for _ in range(count)]


def test_twice_as_fast_is_seen_and_the_interval_holds_it() -> None:
    found = ratio(drawn(1, 1.0), drawn(2, 2.0), 50)

    assert found is not None
    assert found.low < 0.5 < found.high < 1.0
    assert in_words(drawn(1, 1.0), drawn(2, 2.0), 50).startswith("A is faster: ")
    assert in_words(drawn(2, 2.0), drawn(1, 1.0), 50).startswith("B is faster: ")


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    """Of 80 pairs from one distribution about four may look different."""
    found = [ratio(drawn(2 * number, 1.0), drawn(2 * number + 1, 1.0), 50, seed=number) for number in range(80)]

    assert sum(one is not None and one.differs for one in found) <= 10


@pytest.mark.parametrize("count", [1, 19])
def test_nothing_is_claimed_from_few_values(count: int) -> None:
    assert ratio(drawn(1, 1.0, count), drawn(2, 9.0), 50) is None
    assert in_words(drawn(1, 1.0, count), drawn(2, 9.0), 50) == f"no claim: {count} values, fewer than 20"


def test_the_same_values_give_the_same_words() -> None:
    assert in_words(drawn(1, 1.0), drawn(1, 1.0), 95).startswith("no difference shown")
    assert ratio(drawn(1, 1.0), drawn(2, 1.0), 95, seed=3) == ratio(drawn(1, 1.0), drawn(2, 1.0), 95, seed=3)
    assert in_words([], drawn(1, 1.0), 50) == ""


def test_rounds_tell_apart_what_a_noisy_machine_hides_in_the_whole() -> None:
    """Both starts of a round meet the same machine: its slowness is in both, and cancels out."""
    chance = random.Random(5)
    slowness = [chance.lognormvariate(0.0, 1.0) for _ in range(20)]
    rounds = [(each * 1.0 * chance.uniform(0.9, 1.1), each * 1.5 * chance.uniform(0.9, 1.1)) for each in slowness]

    found = ratio_of_rounds(rounds)
    assert found is not None
    assert found.low < 1 / 1.5 < found.high < 1.0
    assert rounds_in_words(rounds).startswith("A is faster in 20 of 20 rounds: 1.")
    assert rounds_in_words([(b, a) for a, b in rounds]).startswith("B is faster in 20 of 20 rounds: 1.")
    assert in_words([a for a, _ in rounds], [b for _, b in rounds], 50).startswith("no difference shown")


@pytest.mark.parametrize(("won", "differs"), [(10, False), (14, False), (15, True), (20, True)])
def test_rounds_differ_where_fair_tosses_rarely_fall_so(won: int, differs: bool) -> None:
    """Of 20 fair tosses 15 or more of a side come in 4 of 100 cases, 14 or more in 12."""
    rounds = [(1.0, 2.0)] * won + [(2.0, 1.0)] * (20 - won)

    found = ratio_of_rounds(rounds)
    assert found is not None
    assert found.differs is differs
    assert rounds_in_words(rounds[:19]) == "no claim: 19 rounds, fewer than 20"
    assert rounds_in_words([]) == ""


# ---- the table ---------------------------------------------------------------------------------------------------


def a_cold_start(ttft_s: float | None = 1.0, **changes: object) -> ColdStart:
    start = cold_start(0.0, REACHED, a_sample(ttft_s=ttft_s or 0.1, e2e_s=2.0, rung="cold", phases_ms=(("loaded", 700.0),)))
    return start.model_copy(update={"ttft_s": ttft_s, **changes})


def a_side(**changes: object) -> Side:
    samples = tuple(a_sample(float(at), ttft_s=0.1 + at / 1000, e2e_s=0.5) for at in range(30))
    fields: dict[str, object] = {
        "name": "smol",
        "kind": "standby endpoint 'smol'",
        "samples": samples,
        "cold": (a_cold_start(1.0), a_cold_start(3.0), a_cold_start(1.5)),
        "bursts": (burst(0.0, REACHED, samples[:4]),),
        "scale_ins": (scale_in(0.0, "suspending", samples[:6]),),
        "holding": Holding(gb_s=10.0, seconds=100.0, awake_bytes=300_000_000, words="as seen"),
        "sent": 50,
    }
    return Side.model_validate({**fields, **changes})


def compared(a: Side, b: Side, **changes: object) -> Comparison:
    fields: dict[str, object] = {
        "began_at": 1000.0,
        "seconds": 100.0,
        "workload": Workload(name="poisson 2/s"),
        "slo": Slo(ttft_s=1.2),
    }
    return Comparison.model_validate({**fields, "a": a, "b": b, **changes})


def rows_of(comparison: Comparison) -> dict[str, Row]:
    return {row.name: row for row in table(comparison, PRICES)}


def test_every_cell_says_how_it_is_known() -> None:
    nothing = a_side(
        samples=(), cold=(), bursts=(), scale_ins=(), holding=Holding(words="it cannot be seen"), sent=0,
        skipped=dict.fromkeys(Act, "not asked for"),
    )  # fmt: skip
    rows = rows_of(compared(a_side(), nothing))

    assert len(rows) > 15
    for row in rows.values():
        assert row.a.known is not Known.NOT_MEASURED
        assert row.b.known is Known.NOT_MEASURED
        assert row.b.text == "not measured"
        assert row.b.note in {"not asked for", "it cannot be seen"}, row.name


def test_figures_are_what_was_measured() -> None:
    rows = rows_of(compared(a_side(), a_side()))

    assert rows["first token, P50, warm"].a.text == "114 ms"
    assert rows["cold start to the first token"].a.text == "1.50 s"
    assert rows["cold start to the first token"].a.note == "median of 3, 1.00 s to 3.00 s; found cold"
    assert rows["cold start to the first token"].verdict == "no claim: 3 rounds, fewer than 20"
    assert rows["its phases, medians"].a.text == "loaded 700 ms, first token 800 ms"
    assert rows["above 1.20 s first token, cold"].a.text == "2 of 3 (66.7%)"
    assert rows["above 1.20 s first token, warm"].a.text == "0 of 30 (0.0%)"
    assert rows["5xx while scaling in"].a.text == "0 of 6 (0.0%)"


def test_who_was_ready_after_all_was_no_cold_start() -> None:
    """Somebody else may wake a target between its fall and the request: its answer says so."""
    woken = a_cold_start(0.1, rung="ready")
    rows = rows_of(compared(a_side(cold=(woken, a_cold_start(1.5))), a_side(cold=(woken, woken))))

    start = rows["cold start to the first token"]
    assert (start.a.text, start.a.note) == (
        "1.50 s",
        "median of 1, 1.50 s to 1.50 s, 1 left out that found it ready; found cold",
    )
    assert (start.b.known, start.b.note) == (Known.NOT_MEASURED, "its answers say that it was ready each time")
    assert start.verdict == ""
    assert rows["above 1.20 s first token, cold"].a.text == "1 of 1 (100.0%)"
    assert rows["above 1.20 s first token, cold"].b.known is Known.NOT_MEASURED


def test_rounds_that_are_no_pair_of_cold_starts_are_left_out_and_counted() -> None:
    """Who fails half of his starts has not won the others without a word."""
    fast, slow = (a_cold_start(1.0),) * 25, (a_cold_start(2.0),) * 25
    failing = (*fast[:20], *(a_cold_start(None, error="5xx: no"),) * 3, *(a_cold_start(0.1, rung="ready"),) * 2)

    verdict = rows_of(compared(a_side(cold=failing), a_side(cold=slow)))["cold start to the first token"].verdict
    assert (
        verdict == "A is faster in 20 of 20 rounds: 2.00x (2.00 to 2.00); 5 rounds left out, in which one failed or was ready"
    )


def test_a_price_that_was_set_is_not_told_as_published() -> None:
    set_ = ConsoleSettings(usd_serverless_gb_second=0.00004)
    rows = {row.name: row for row in table(compared(a_side(), a_side()), set_)}

    figure = rows["the same on SageMaker Serverless"].a
    assert (figure.known, figure.text) == (Known.RECKONED, "$0.02")
    assert "AWS" not in figure.note


def test_the_report_names_the_load_that_was_sent_and_nonsense_is_refused_before_anything_starts() -> None:
    named = workload_of(CourseOptions(prompt_tokens="16-64", max_tokens="9"))
    assert (named.parameters["prompt_tokens"], named.parameters["max_tokens"]) == ("16-64", "9")
    for wrong in ({"prompt_tokens": "x"}, {"max_tokens": "0"}, {"rate": float("nan")}, {"burst": 5_000_000}):
        with pytest.raises(InvalidInput):
            workload_of(CourseOptions(**wrong))


def test_prices_are_reckoned_or_published_and_say_so() -> None:
    rows = rows_of(compared(a_side(), a_side(name="sagemaker:x", holding=Holding(words="hidden"))))

    # 10 GB·s at $3.6 for a GB and hour are a cent, for 50 requests.
    assert rows["price of 1,000 requests"].a.text == "$0.2"
    assert rows["price of 1,000 requests"].a.known is Known.RECKONED
    assert rows["price of 1,000 requests"].b.note == "real SageMaker bills by its own price, below"
    assert rows["the same, always on"].a.text == "$0.6"
    published = rows["the same on SageMaker Serverless"].a
    assert (published.known, published.text) == (Known.PUBLISHED, "$0.01")
    assert "September 2026" in published.note
    # Of a target whose memory nobody sees its size has to be named.
    unknown = rows["the same on SageMaker Serverless"].b
    assert (unknown.known, unknown.text) == (Known.NOT_MEASURED, "not measured")
    named = rows_of(compared(a_side(), a_side(holding=Holding(words="hidden")), serverless_gb=3))
    assert named["the same on SageMaker Serverless"].b.text == "$0.03"


def test_the_table_is_made_of_a_target_that_was_lost() -> None:
    death = Death(at_s=12.3, act=Act.COLD, words="connect: refused <b>")
    lost = a_side(name="<i>lost</i>", samples=(), bursts=(), scale_ins=(), death=death)
    comparison = compared(a_side(), lost)

    assert rows_of(comparison)["first token, P50, warm"].b.note == "lost after 12 s"
    page = render(compare_page(comparison, table(comparison, PRICES)))
    assert "B (&lt;i&gt;lost&lt;/i&gt;) was lost 12.3 s after the start, during cold starts: connect: refused &lt;b&gt;" in page
    assert exit_code(comparison) == 7
    assert exit_code(compared(a_side(), a_side())) == 0
    assert exit_code(compared(a_side(), lost, interrupted=True)) == 130


def test_a_comparison_without_a_request_has_a_page_that_says_so() -> None:
    empty = a_side(samples=(), cold=(), bursts=(), scale_ins=(), holding=Holding(), sent=0)
    comparison = compared(empty, empty, interrupted=True, seconds=0.0)

    page = render(compare_page(comparison, table(comparison, PRICES)))
    assert "No request was sent: nothing was measured." in page
    assert "Stopped after 0 s" in page


def test_phases_of_a_start_leave_no_time_out() -> None:
    found = phases((a_cold_start(1.0), a_cold_start(None)))

    assert dict(found) == pytest.approx({"loaded": 700.0, "first token": 300.0})
    assert phases((a_cold_start(1.0, phases_ms=()),)) == ()


def test_acts_are_named_by_their_first_words() -> None:
    assert acts_of(None) == frozenset(Act)
    assert acts_of("cold, scale-in") == {Act.COLD, Act.SCALE_IN}
    with pytest.raises(InvalidInput, match="warmth"):
        acts_of("warmth")


def test_a_sample_of_a_failed_start_has_no_times() -> None:
    failed: Sample = a_sample(**FAILED, message="refused")

    start = cold_start(3.0, REACHED, failed)
    assert (start.ttft_s, start.e2e_s, start.error) == (None, None, "connect: refused")
    assert start.at_s == 3.0
