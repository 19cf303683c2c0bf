"""How ``bench_coldstart`` shows what it has measured."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from support.coldstart_phases import Phase
from support.coldstart_values import GOALS, TITLES, Kind, Results, spread

_FIGURES = {Kind.ZYGOTE: "speedup_zygote", Kind.ASLEEP: "speedup_asleep", Kind.LLAMA: "llama_staged_first_token_s"}
_DASH = "-"


def show(results: Results, console: Console) -> None:
    """Print what was compared, and every table."""
    console.print(", ".join(results.versions), highlight=False)
    for table in (_starts(results), _phases(results), _costs(results)):
        if table.row_count:
            console.print(table)


def _starts(results: Results) -> Table:
    figures = results.figures()
    title = f"To the first token: medians, on {os.cpu_count()} cores"
    table = _table(title, "start", "median s", "min to max s", "runs", "times faster than plain", "goal", "met")
    for kind in Kind:
        median, values = results.median(kind), results.values(kind)
        if median is None:
            continue
        speedup = results.speedup(kind)
        goal, met = _judged(_FIGURES.get(kind, ""), figures)
        table.add_row(
            TITLES[kind] + _notes(results, kind),
            f"{median:.3f}",
            spread(values, "{:.3f}".format),
            str(len(values)),
            _DASH if speedup is None else f"{speedup:.1f}",
            goal,
            met,
        )
    return table


def _notes(results: Results, kind: Kind) -> str:
    """Return the medians of what else was seen of a start, in brackets."""
    names = {
        Kind.ZYGOTE: ("ready",),
        Kind.ASLEEP: ("suspend",),
        Kind.LLAMA: ("loaded",),
        Kind.RAY: ("engine",),
        Kind.CONTAINER: ("unpacked", "imported", "built", "first_token"),
    }
    found = [(name, results.detail(kind, name)) for name in names.get(kind, ())]
    said = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in found if value is not None)
    return f" ({said})" if said else ""


def _phases(results: Results) -> Table:
    table = _table("Where a vLLM start spends it: medians", "phase", "plain s", "zygote s", "of plain")
    for phase in Phase:
        plain, ours = results.phase(Kind.PLAIN, phase), results.phase(Kind.ZYGOTE, phase)
        if plain is None and ours is None:
            continue
        ratio = f"{ours / plain:.0%}" if plain and ours is not None else _DASH
        table.add_row(phase.value, _seconds(plain), _seconds(ours), ratio)
    return table


def _costs(results: Results) -> Table:
    figures = results.figures()
    table = _table("What it costs while nobody asks", "figure", "measured", "goal", "met")
    idle_plain = results.detail(Kind.PLAIN, "idle_cpu")
    if idle_plain is not None:
        table.add_row("plain server, processor", f"{idle_plain:.1%} of a core", _DASH, "")
    for name, title in (("idle_cpu_ready", "ready engine, processor"), ("idle_cpu_parked", "parked engine, processor")):
        if (value := figures[name]) is not None:
            table.add_row(title, f"{value:.2%} of a core", *_judged(name, figures))
    for title, said in _memory(results):
        table.add_row(title, said, _DASH, "")
    return table


def _memory(results: Results) -> Sequence[tuple[str, str]]:
    rows = [] if results.hatch_s is None else [("zygote, hatching once", f"{results.hatch_s:.1f} s")]
    if (memory := results.memory) is not None:
        rows += [
            ("first instance, PSS beside the second", f"{memory.first_pss_mb:.0f} MB"),
            ("second instance, PSS", f"{memory.second_pss_mb:.0f} MB"),
            ("second instance, mapped by it alone", f"{memory.second_private_mb:.0f} MB"),
            ("zygote, PSS alone", f"{memory.zygote_alone_pss_mb:.0f} MB"),
            ("zygote, PSS beside two instances", f"{memory.zygote_beside_two_pss_mb:.0f} MB"),
            ("zygote, RSS", f"{memory.zygote_rss_mb:.0f} MB"),
        ]
    return rows


def _judged(name: str, figures: dict[str, float | None]) -> tuple[str, str]:
    """Return a figure's goal and whether it is met, in words; empty where there is no goal."""
    goal, value = GOALS.get(name), figures.get(name)
    if goal is None or value is None:
        return _DASH, ""
    return str(goal), "[green]yes[/]" if goal.met(value) else "[red]no[/]"


def _seconds(value: float | None) -> str:
    return _DASH if value is None else f"{value:.2f}"


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table
