"""The numbers of a run."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.bench.attribution import parts_of
from standby.bench.command import FAILED_UNDER, INTERRUPTED, NOTHING_ANSWERED, exit_code
from standby.bench.statistics import percentiles, summarize
from standby.bench.values import ErrorClass, Slo, Summary
from support.bench_values import a_run, a_sample


def test_an_empty_run_has_a_summary_of_nothing() -> None:
    summary = summarize(a_run(), Slo(ttft_s=1.0))
    assert (summary.requests, summary.ok, summary.failed, summary.requests_per_s) == (0, 0, 0, None)
    assert summary.all.e2e.p50 is None
    assert summary.goodput is not None
    assert summary.goodput.ratio is None
    assert (summary.by_rung, summary.tail, summary.generator.invalid) == ({}, None, "")
    assert Summary.model_validate_json(summary.model_dump_json()) == summary


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200))
def test_a_percentile_is_the_least_value_that_so_many_do_not_exceed(values: list[float]) -> None:
    found = percentiles(values)
    for percent, value in ((50, found.p50), (90, found.p90), (95, found.p95), (99, found.p99)):
        assert value in values
        assert sum(one <= value for one in values) >= percent / 100 * len(values)
        assert sum(one < value for one in values) < percent / 100 * len(values)
    assert found.max == max(values)
    assert found.mean == pytest.approx(math.fsum(values) / len(values))


def test_latencies_count_from_when_a_request_was_due() -> None:
    """A generator that is late must not hide what its callers would have waited."""
    late = a_sample(10.0, sent_s=11.0, first_token_s=11.5, ended_s=12.0)
    summary = summarize(a_run([late]))
    assert (summary.all.ttft.p50, summary.all.e2e.p50) == (1.5, 2.0)
    assert summary.generator.lag.max == 1.0
    assert "the generator was late" in summary.generator.invalid


def test_a_generator_may_be_late_by_little() -> None:
    samples = [a_sample(at, sent_s=at + 0.004) for at in range(100)]
    assert summarize(a_run(samples)).generator.invalid == ""


def test_a_long_answer_excuses_no_lateness_of_the_first_token() -> None:
    """Of an answer that takes twenty seconds a second is little; of its first token's 200 ms it is nearly all."""
    samples = [a_sample(at, sent_s=at + 0.9, ttft_s=1.1, e2e_s=20.0) for at in range(20)]
    assert "the generator was late" in summarize(a_run(samples)).generator.invalid


def test_time_per_token_counts_tokens_and_not_events() -> None:
    """Several tokens may come in one event: the engine's count is what counts."""
    sample = a_sample(tokens=3, e2e_s=1.4, ttft_s=0.4)._replace(completion_tokens=11)
    assert sample.tpot_s == pytest.approx(0.1)
    assert a_sample(tokens=1).tpot_s is None


def test_failures_count_by_class_and_are_in_no_latency() -> None:
    failed = [
        a_sample(1.0, e2e_s=99.0, error=ErrorClass.SERVER.value, status=503, message="HTTP 503: asleep"),
        a_sample(2.0, error=ErrorClass.SERVER.value, status=500, message="HTTP 500: later"),
        a_sample(3.0, error=ErrorClass.CONNECT.value, status=0, message="refused"),
    ]
    summary = summarize(a_run([a_sample(0.0), *failed]))
    assert summary.errors == {"5xx": 2, "connect": 1}
    assert summary.error_examples == {"5xx": "HTTP 503: asleep", "connect": "refused"}
    assert summary.statuses == {0: 1, 200: 1, 500: 1, 503: 1}
    assert (summary.ok, summary.failed, summary.all.e2e.count, summary.all.e2e.max) == (1, 3, 1, 1.0)


def test_rungs_are_split_where_answers_name_them() -> None:
    samples = [a_sample(0.0, rung="cold", e2e_s=9.0), *[a_sample(at, rung="ready") for at in (10.0, 20.0)], a_sample(30.0)]
    summary = summarize(a_run(samples))
    assert {rung: group.requests for rung, group in summary.by_rung.items()} == {"cold": 1, "ready": 2, "unknown": 1}
    assert summary.by_rung["cold"].e2e.p50 == 9.0
    assert summarize(a_run([a_sample()])).by_rung == {}


def test_goodput_counts_what_was_due() -> None:
    """A request that failed, or was not even sent, kept no bound."""
    samples = [a_sample(0.0), a_sample(1.0, ttft_s=0.9), a_sample(2.0, error="5xx"), a_sample(3.0, ttft_s=None, e2e_s=0.3)]
    summary = summarize(a_run(samples, not_sent=1, seconds=10.0), Slo(ttft_s=0.5))
    assert summary.goodput is not None
    assert (summary.goodput.good, summary.goodput.ratio, summary.goodput.per_s) == (2, 0.4, 0.2)
    assert summarize(a_run(samples), Slo()).goodput is None


def test_steps_of_a_ladder_have_numbers_of_their_own() -> None:
    slow = [a_sample(10.0 + at, e2e_s=3.0, step=1) for at in range(5)]
    summary = summarize(a_run([*[a_sample(float(at)) for at in range(5)], *slow], steps=("1/s", "2/s", "4/s")))
    assert [(step.name, step.requests, step.latencies.e2e.p50) for step in summary.by_step] == [
        ("1/s", 5, 1.0),
        ("2/s", 5, 3.0),
        ("4/s", 0, None),
    ]
    assert summary.by_step[1].requests_per_s == pytest.approx(5 / 7)


@given(
    lag=st.floats(0, 1),
    waited=st.floats(0, 20),
    work=st.floats(0, 5),
    answer=st.floats(0, 5),
    phases=st.dictionaries(
        st.sampled_from(["queued", "placed", "fetched", "forked", "loaded", "captured", "probed", "first_token", "else"]),
        st.floats(0, 20_000),
    ),
)
def test_the_parts_of_a_request_are_all_of_it(
    lag: float, waited: float, work: float, answer: float, phases: dict[str, float]
) -> None:
    sent = 5.0 + lag
    first = sent + waited + work
    sample = a_sample(5.0, sent_s=sent, first_token_s=first, ended_s=first + answer, waited_s=waited)
    parts = parts_of(sample._replace(phases_ms=tuple(phases.items())))
    assert sum(parts.values()) == pytest.approx(sample.e2e_s, abs=1e-6)
    assert min(parts.values()) >= -1e-9


def test_who_comes_late_waits_for_the_end_of_an_activation_only() -> None:
    """Of a climb of 8 s, somebody who waited 3 s of it saw the end: all of the probe and a part of the loading."""
    phases = (("placed", 500.0), ("fetched", 3500.0), ("forked", 1000.0), ("loaded", 2000.0), ("probed", 1500.0))
    parts = parts_of(a_sample(0.0, waited_s=3.0, ttft_s=3.2, e2e_s=4.0, phases_ms=phases))
    assert parts["probed"] == 1.5
    assert parts["loaded"] == 1.5
    assert "forked" not in parts
    assert parts["queued"] == 0.0
    assert parts["first token"] == pytest.approx(0.2)
    assert parts["generation"] == pytest.approx(0.8)


def test_the_tail_is_explained_by_what_the_others_have_not() -> None:
    chance = random.Random(1)
    phases = (("placed", 300.0), ("loaded", 4000.0), ("probed", 700.0))
    quick = [a_sample(float(at), e2e_s=1.0 + chance.random() / 10, waited_s=0.0) for at in range(95)]
    cold = [a_sample(200.0 + at, ttft_s=5.4, e2e_s=6.0, waited_s=5.0, rung="cold", phases_ms=phases) for at in range(5)]
    summary = summarize(a_run([*quick, *cold]))
    assert summary.tail is not None
    assert (summary.tail.requests, summary.tail.attributed) == (10, 10)
    assert summary.tail.phases[0].phase == "loaded"
    assert summary.tail.phases[0].tail_s == pytest.approx(2.0)  # half of the tail is cold
    assert summary.tail.gap_s == pytest.approx(5.0, abs=0.1)
    assert summarize(a_run(quick[:9])).tail is None


def test_exit_codes() -> None:
    well = summarize(a_run([a_sample()]))
    nothing = summarize(a_run([a_sample(error="connect")]))
    half = summarize(a_run([a_sample(), a_sample(error="5xx")]))
    late = summarize(a_run([a_sample(0.0, sent_s=1.0)]))
    assert exit_code(well, None, interrupted=False) == 0
    assert exit_code(half, None, interrupted=False) == 0
    assert exit_code(half, 0.6, interrupted=False) == FAILED_UNDER
    assert exit_code(half, 0.5, interrupted=False) == 0
    assert exit_code(late, 0.5, interrupted=False) == FAILED_UNDER
    assert exit_code(nothing, None, interrupted=False) == NOTHING_ANSWERED
    assert exit_code(well, None, interrupted=True) == INTERRUPTED
