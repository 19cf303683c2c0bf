"""A run's summary for people at a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from standby.bench.values import Latencies, Percentiles, Summary, Tail

_MEASURES = (("first token", "ttft"), ("per token", "tpot"), ("between tokens", "itl"), ("whole answer", "e2e"))
_WHOLE_ONLY = (("first token", "ttft"), ("whole answer", "e2e"))


def print_summary(summary: Summary, console: Console) -> None:
    """Print the tables, and in words what a reader must know."""
    for line in _head(summary):
        console.print(line, highlight=False)
    if summary.ok:
        console.print(_latency_table(summary))
    if summary.by_step:
        console.print(_step_table(summary))
    if summary.errors:
        console.print(_error_table(summary))
    if summary.tail is not None and summary.tail.phases:
        console.print(_tail_words(summary.tail), highlight=False)
        console.print(_tail_table(summary.tail))
    if summary.generator.invalid:
        console.print(f"[bold red]INVALID[/]: {escape(summary.generator.invalid)}", highlight=False)
    for note in summary.notes:
        console.print(f"[yellow]note[/]: {escape(note)}", highlight=False)


def _head(summary: Summary) -> Iterator[str]:
    yield f"[bold]{escape(summary.target)}[/]: {escape(summary.workload.name)}, seed {summary.workload.seed}"
    failed = f", [red]{summary.failed} failed[/]" if summary.failed else ", none failed"
    unsent = f", {summary.not_sent} not sent" if summary.not_sent else ""
    requests = "1 request" if summary.requests == 1 else f"{summary.requests} requests"
    yield f"{requests} in {summary.seconds:.1f} s: {summary.ok} answered{failed}{unsent}"
    if summary.ok and summary.requests_per_s is not None and summary.tokens_per_s is not None:
        yield (
            f"{summary.requests_per_s:.2f} answers/s, {summary.tokens_per_s:.1f} tokens/s "
            f"({summary.prompt_tokens} tokens in, {summary.completion_tokens} out)"
        )
    goodput = summary.goodput
    if goodput is not None and goodput.ratio is not None and goodput.per_s is not None:
        bounds = {"first token": goodput.slo.ttft_s, "per token": goodput.slo.tpot_s, "whole": goodput.slo.e2e_s}
        said = ", ".join(f"{name} ≤ {duration(bound)}" for name, bound in bounds.items() if bound is not None)
        yield f"goodput {goodput.ratio:.1%}, {goodput.per_s:.2f}/s ({said})"


def _latency_table(summary: Summary) -> Table:
    table = _table("LATENCY", "COUNT", "MEAN", "P50", "P90", "P95", "P99", "MAX")
    _add(table, _MEASURES, summary.all)
    for rung, latencies in summary.by_rung.items():
        table.add_section()
        table.add_row(f"from {escape(rung)}")
        _add(table, _WHOLE_ONLY, latencies, indent="  ")
    return table


def _table(first: str, *numbers: str) -> Table:
    """Return a table that fits into 80 columns: numbers are never broken, names are."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _add(table: Table, measures: Iterable[tuple[str, str]], latencies: Latencies, indent: str = "") -> None:
    for name, member in measures:
        measured: Percentiles = getattr(latencies, member)
        if measured.count:
            table.add_row(indent + name, str(measured.count), *_cells(measured))


def _cells(measured: Percentiles) -> Iterator[str]:
    for value in (measured.mean, measured.p50, measured.p90, measured.p95, measured.p99, measured.max):
        yield duration(value)


def _step_table(summary: Summary) -> Table:
    table = _table("STEP", "REQUESTS", "FAILED", "ANSWERS/S", "TTFT P50", "TTFT P99", "E2E P50", "E2E P99")
    for step in summary.by_step:
        rate = "" if step.requests_per_s is None else f"{step.requests_per_s:.2f}"
        ttft, e2e = step.latencies.ttft, step.latencies.e2e
        values = (duration(value) for value in (ttft.p50, ttft.p99, e2e.p50, e2e.p99))
        table.add_row(step.name, str(step.requests), str(step.failed), rate, *values)
    return table


def _error_table(summary: Summary) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("FAILURE")
    table.add_column("COUNT", justify="right")
    table.add_column("THE FIRST ONE SAID", overflow="fold")
    for error, count in summary.errors.items():
        table.add_row(error, str(count), escape(summary.error_examples.get(error, "")))
    return table


def _tail_words(tail: Tail) -> str:
    gap = "" if tail.gap_s is None else f", P99 is {duration(tail.gap_s)} above P90"
    return f"where the slowest {tail.requests} spent their time{gap}"


def _tail_table(tail: Tail) -> Table:
    table = _table("PHASE", "THEIR MEAN", "THE OTHERS'", "MORE BY")
    for phase in tail.phases:
        table.add_row(phase.phase, duration(phase.tail_s), duration(phase.rest_s), duration(phase.excess_s))
    return table


def duration(seconds: float | None) -> str:
    """Return seconds as people read latencies, in three digits; empty for None."""
    if seconds is None:
        return ""
    value, unit = (seconds * 1000, "ms") if abs(seconds) < 1.0 else (seconds, "s")
    digits = 2 if abs(value) < 10.0 else 1 if abs(value) < 100.0 else 0
    # No minus before a zero.
    return f"{round(value, digits) + 0.0:.{digits}f} {unit}"
