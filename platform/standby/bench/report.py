"""The page of one run of load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from standby.bench.page import Banner, Cell, Page, Part, Section, Table, Text, Tiles, Tone, write
from standby.bench.page_bars import Bar, Bars
from standby.bench.page_scales import amount, minute, seconds, share
from standby.bench.report_machine import machine_facts, machine_table
from standby.bench.report_samples import by_rung, histogram, percentile_curves, timeline
from standby.bench.values import Latencies, Percentiles, Run, Summary

_DASH: Final = "—"
_COLUMNS: Final = ("", "requests", "mean", "P50", "P90", "P95", "P99", "slowest")
_FIGURES: Final = frozenset(range(1, len(_COLUMNS)))
_MOST_DATA: Final = 5000
"""Requests that the page carries as data; more would make it slow to open."""


def write_bench_page(run: Run, summary: Summary, path: Path) -> None:
    """Write the page of ``run`` to ``path``. Raises ConfigurationError where that cannot be written."""
    write(bench_page(run, summary, machine_facts()), path)


def bench_page(run: Run, summary: Summary, facts: Sequence[tuple[str, str]]) -> Page:
    """Return the page; a run without requests gives one that says so. Pure."""
    sections = _filled(run, summary) if run.samples else ()
    return Page(
        title=f"Load on {summary.target}",
        lead=f"Workload {summary.workload.name}, seed {summary.workload.seed}, begun {minute(summary.began_at)}, "
        f"{summary.seconds:.1f} s.",
        kicker="standby bench",
        top=_top(run, summary),
        sections=(*sections, _how(summary, facts)),
        footer="Latencies count from the moment in which a request was due, so that a slow generator hides nothing. "
        "Percentiles are by the nearest rank: each is a value that was measured.",
        data=_data(run, summary),
    )


def _top(run: Run, summary: Summary) -> tuple[Part, ...]:
    found: list[Part] = []
    if not run.samples:
        found.append(Banner("This run is empty: no request was sent, so nothing was measured.", good=False))
    if run.interrupted:
        found.append(Banner(f"Interrupted after {summary.requests} of {summary.planned} planned requests.", good=False))
    if summary.generator.invalid:
        found.append(Banner(f"The generator itself was too slow: {summary.generator.invalid}", good=False))
    found += [Text(note) for note in summary.notes]
    if run.samples:
        found.append(_tiles(summary))
    return tuple(found)


def _tiles(summary: Summary) -> Tiles:
    latencies = summary.all
    rate, tokens = summary.requests_per_s, summary.tokens_per_s
    items = [
        (seconds(latencies.ttft.p50), "first token, P50", f"P95 {seconds(latencies.ttft.p95)}"),
        (seconds(latencies.e2e.p50), "end to end, P50", f"P95 {seconds(latencies.e2e.p95)}"),
        (_DASH if rate is None else amount(rate), "requests per second", "answered whole"),
        (_DASH if tokens is None else amount(tokens), "tokens per second", f"{summary.completion_tokens:,} in all"),
        (str(summary.failed), "failed", share(summary.failed, summary.requests)),
    ]
    if summary.goodput is not None and summary.goodput.ratio is not None:
        items.append((f"{summary.goodput.ratio:.1%}", "within the bounds", _bounds(summary)))
    return Tiles(tuple(items))


def _bounds(summary: Summary) -> str:
    assert summary.goodput is not None
    slo = summary.goodput.slo
    named = (("first token", slo.ttft_s), ("per token", slo.tpot_s), ("end to end", slo.e2e_s))
    return ", ".join(f"{name} {seconds(limit)}" for name, limit in named if limit is not None)


def _filled(run: Run, summary: Summary) -> tuple[Section, ...]:
    groups = list(by_rung(run.samples).items())
    good = [(name, [one for one in samples if one.ok]) for name, samples in groups]
    first = [(name, [one.ttft_s for one in samples if one.ttft_s is not None]) for name, samples in good]
    whole = [(name, [one.e2e_s for one in samples]) for name, samples in good]
    found = [
        Section(
            "Latencies",
            (
                latency_table(summary.all),
                percentile_curves("Time to the first token", first),
                percentile_curves("End to end", whole),
                histogram("How long requests took", "end to end", whole),
            ),
        ),
    ]
    if summary.by_rung:
        found.append(_rungs(summary))
    if summary.by_step:
        found.append(_steps(summary))
    if summary.tail is not None:
        found.append(_tail(summary))
    found.append(Section("Over time", (timeline("Each request", groups),)))
    if summary.errors:
        found.append(_errors(summary))
    return tuple(found)


def latency_table(latencies: Latencies) -> Table:
    """Return the percentiles of one group of requests."""
    rows = (
        ("first token", latencies.ttft),
        ("per token after it", latencies.tpot),
        ("gap between tokens", latencies.itl),
        ("end to end", latencies.e2e),
        ("waited in the queue", latencies.waited),
    )
    return Table(
        _COLUMNS,
        tuple((name, *_row(one)) for name, one in rows if one.count),
        "Of requests that went well",
        _FIGURES,
        empty="No request went well: there are no latencies.",
    )


def _row(one: Percentiles) -> tuple[str, ...]:
    times = (one.mean, one.p50, one.p90, one.p95, one.p99, one.max)
    return (str(one.count), *(_DASH if value is None else seconds(value) for value in times))


def _rungs(summary: Summary) -> Section:
    first = tuple((name, *_row(one.ttft)) for name, one in summary.by_rung.items() if one.ttft.count)
    whole = tuple((name, *_row(one.e2e)) for name, one in summary.by_rung.items())
    return Section(
        "By the rung that was found",
        (
            Table(("rung", *_COLUMNS[1:]), first, "To the first token", _FIGURES, empty="No first token was seen."),
            Table(("rung", *_COLUMNS[1:]), whole, "End to end", _FIGURES),
        ),
    )


def _steps(summary: Summary) -> Section:
    rows = tuple(
        (
            step.name,
            str(step.requests),
            str(step.failed),
            _DASH if step.requests_per_s is None else amount(step.requests_per_s),
            seconds(step.latencies.ttft.p95),
            seconds(step.latencies.e2e.p50),
            seconds(step.latencies.e2e.p95),
            seconds(step.latencies.e2e.p99),
        )
        for step in summary.by_step
    )
    columns = ("step", "requests", "failed", "per second", "first token P95", "end to end P50", "P95", "P99")
    return Section("By step of the ladder", (Table(columns, rows, "Each step's own requests", _FIGURES),))


def _tail(summary: Summary) -> Section:
    tail = summary.tail
    assert tail is not None
    gap = seconds(tail.gap_s)
    rows = (
        Bar("above P90", tuple((phase.phase, phase.tail_s * 1000) for phase in tail.phases)),
        Bar("the others", tuple((phase.phase, phase.rest_s * 1000) for phase in tail.phases)),
    )
    said = f"P99 lies {gap} above P90. Of {tail.requests} requests above P90 the phases of {tail.attributed} are known."
    parts: tuple[Part, ...] = (Text(said),)
    if tail.attributed:
        parts = (*parts, Bars("Mean time in each phase", rows))
    return Section("Why the slowest are slow", parts)


def _errors(summary: Summary) -> Section:
    rows = tuple(
        (Cell(name, tone=Tone.BAD), str(count), summary.error_examples.get(name, ""))
        for name, count in sorted(summary.errors.items(), key=lambda one: (-one[1], one[0]))
    )
    return Section("What failed", (Table(("class", "requests", "what the first one said"), rows, numbers=frozenset({1})),))


def _how(summary: Summary, facts: Sequence[tuple[str, str]]) -> Section:
    parameters = tuple((name, _written(value)) for name, value in summary.workload.parameters.items())
    lag = summary.generator.lag
    said = (
        f"The generator was late by {seconds(lag.p50)} (P50) and {seconds(lag.p99)} (P99), and took "
        f"{summary.generator.cpu_s:.1f} s of one processor."
        if lag.count
        else "The generator sent nothing."
    )
    return Section(
        "How it was measured",
        (
            Table(("parameter", "value"), parameters, "The workload", empty="The workload has no parameters."),
            Text(said),
            machine_table(facts),
        ),
    )


def _written(value: JsonValue) -> str:
    return ", ".join(_written(one) for one in value) if isinstance(value, list) else str(value)


def _data(run: Run, summary: Summary) -> dict[str, object]:
    samples = [[one.due_s, one.first_token_s, one.ended_s, one.status, one.error, one.rung] for one in run.samples[:_MOST_DATA]]
    columns = ["due_s", "first_token_s", "ended_s", "status", "error", "rung"]
    return {"summary": summary.model_dump(mode="json"), "columns": columns, "samples": samples}
