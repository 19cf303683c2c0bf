"""What stands in the tables of ``standby top``: pure, for the live screen and for the one that is printed once.

Names, reasons and errors are other people's words: no markup, no escape sequence and no change of direction in them has any
effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rich.filesize import decimal
from rich.text import Text

from standby.cli.top.picture import Picture, Row
from standby.domain.instance import Rung

RUNGS: Final = tuple(rung.label for rung in Rung)
STYLES: Final = {"ready": "green", "asleep": "cyan", "zygote": "magenta", "staged": "blue", "cold": "dim"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH: Final = 12
_BAR_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, what stands in it, and what it is sorted by; numbers are sorted from the largest."""

    head: str
    cell: Callable[[Row], Text]
    by: Callable[[Row], Any]
    right: bool = False


def literal(text: object, style: str = "") -> Text:
    """Return ``text`` so that a terminal shows it and does nothing else."""
    shown = str(text)
    if not shown.isprintable():
        # Escapes, line ends, and the marks that turn the direction of what follows.
        shown = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in shown)
    return Text(shown, style=style, no_wrap=True, overflow="ellipsis")


def ladder(rung: str) -> Text:
    """Return the rungs as a ladder that is lit up to ``rung``."""
    reached = _height(rung)
    drawn = Text(no_wrap=True)
    drawn.append("■" * (reached + 1), style=STYLES.get(rung, ""))
    drawn.append("□" * (len(RUNGS) - 1 - reached), style="dim")
    drawn.append(f" {rung}", style=STYLES.get(rung, ""))
    return drawn


def spark(counts: Sequence[float]) -> Text:
    """Return requests per second as a line of bars, each of several seconds."""
    if not counts:
        return Text("")
    step = max(1, len(counts) // _SPARK_WIDTH)
    parts = [max(counts[at : at + step]) for at in range(0, len(counts), step)]
    most = max(*parts, 1)
    drawn = "".join(" " if not part else _BARS[min(len(_BARS) - 1, int(part / most * (len(_BARS) - 1)))] for part in parts)
    return Text(drawn, style="green", no_wrap=True)


def bar(held: int, promised: int, whole: int, width: int = _BAR_WIDTH) -> Text:
    """Return memory as a bar: what is held, what is promised beyond that, and the rest."""
    if whole <= 0:
        return Text("")
    solid = min(width, round(held / whole * width))
    shaded = max(0, min(width, round(promised / whole * width)) - solid)
    drawn = Text(no_wrap=True)
    drawn.append("█" * solid, style="red" if held > 0.92 * whole else "green")
    drawn.append("▒" * shaded, style="yellow")
    drawn.append("░" * (width - solid - shaded), style="dim")
    return drawn


def _height(rung: str) -> int:
    # What a newer gateway knows beside these stands on the lowest.
    return RUNGS.index(rung) if rung in RUNGS else 0


def _number(value: float | None, pattern: str = "{:.0f}") -> Text:
    return Text("" if not value else pattern.format(value), justify="right", no_wrap=True)


def _size(count: int) -> Text:
    return Text(decimal(count) if count else "", justify="right", no_wrap=True)


def _time(at: float) -> Text:
    return Text(datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S"), no_wrap=True)


def _first_token(row: Row, share: str) -> float:
    return float(row["ttft_ms"][share] or 0.0)


def endpoints(*, with_tenant: bool) -> tuple[Column, ...]:
    """Return the columns of endpoints."""
    tenant = Column("TENANT", lambda row: literal(row["tenant"]), lambda row: (row["tenant"], row["name"]))
    return (
        *((tenant,) if with_tenant else ()),
        Column("ENDPOINT", lambda row: literal(row["name"]), lambda row: row["name"]),
        Column("RUNG", lambda row: ladder(row["rung"]), lambda row: -_height(row["rung"])),
        Column("BUSY", _busy, lambda row: -row["in_flight"], right=True),
        Column("WAIT", lambda row: _number(row["queued"]), lambda row: -row["queued"], right=True),
        Column("REQ/S", lambda row: _number(row["rps"], "{:.1f}"), lambda row: -row["rps"], right=True),
        Column("LAST MINUTE", lambda row: spark(row["spark"]), lambda row: -sum(row["spark"])),
        Column("P50", lambda row: _millis(row, "p50"), lambda row: -_first_token(row, "p50"), right=True),
        Column("P95", lambda row: _millis(row, "p95"), lambda row: -_first_token(row, "p95"), right=True),
        Column("TOK/S", lambda row: _number(row["tokens_per_s"]), lambda row: -row["tokens_per_s"], right=True),
        Column("REQUESTS", lambda row: _number(row["requests"]), lambda row: -row["requests"], right=True),
        Column("ERRORS", lambda row: _number(row["errors"]), lambda row: -row["errors"], right=True),
        Column("MEMORY", lambda row: _size(row["resident_bytes"]), lambda row: -row["resident_bytes"], right=True),
        Column("SAVED $", lambda row: _number(row["saved_usd"], "{:.4f}"), lambda row: -row["saved_usd"], right=True),
        Column("STATE", lambda row: literal(row["words"]), lambda row: row["words"]),
    )


def instances() -> tuple[Column, ...]:
    """Return the columns of instances."""
    return (
        Column("RUNG", lambda row: ladder(row["rung"]), lambda row: (-_height(row["rung"]), row["endpoint"])),
        Column("ENDPOINT", lambda row: literal(row["endpoint"]), lambda row: row["endpoint"]),
        Column("INSTANCE", lambda row: literal(row["id"]), lambda row: row["id"]),
        Column("NODE", lambda row: literal(row["node"]), lambda row: row["node"]),
        Column("ENGINE", lambda row: literal(row["engine"] or ""), lambda row: row["engine"] or ""),
        Column("BUSY", _busy, lambda row: -row["in_flight"], right=True),
        Column("MEMORY", lambda row: _size(row["resident_bytes"]), lambda row: -row["resident_bytes"], right=True),
        Column("SINCE", lambda row: _time(row["rung_since"]), lambda row: -row["rung_since"]),
        Column("STATE", lambda row: literal(row["words"]), lambda row: row["words"]),
    )


def nodes() -> tuple[Column, ...]:
    """Return the columns of nodes."""
    return (
        Column("NODE", lambda row: literal(row["name"]), lambda row: row["name"]),
        Column("TAKES", lambda row: literal(row["words"]), lambda row: row["words"]),
        Column("INST", lambda row: _number(row["instances"]), lambda row: -row["instances"], right=True),
        Column("HOST MEMORY", _memory, lambda row: row["memory"]["free"]),
        Column("DEVICES", _devices, lambda row: len(row["devices"])),
        Column("CACHE", _cache, lambda row: -row["cache_bytes"]),
    )


def decisions() -> tuple[Column, ...]:
    """Return the columns of decisions."""
    return (
        Column("AT", lambda row: _time(row["at"]), lambda row: -row["at"]),
        Column("ENDPOINT", lambda row: literal(row["endpoint"]), lambda row: row["endpoint"]),
        Column("ACTION", lambda row: literal(row["action"]), lambda row: row["action"]),
        Column("REASON", lambda row: literal(row["reason"]), lambda row: row["reason"]),
    )


def heading(picture: Picture) -> Text:
    """Return the two lines above the tables."""
    facts = picture.facts
    totals, savings = facts["totals"], facts["savings"]
    rungs = ", ".join(f"{totals['by_rung'][rung]} {rung}" for rung in reversed(RUNGS) if totals["by_rung"].get(rung))
    whose = facts["tenant"] or "all tenants"
    line = literal(f"{whose} at {facts['gateway']}", "bold")
    line.append(f" · {_count(totals['endpoints'], 'endpoint')}, {_count(totals['instances'], 'instance')}")
    line.append(f" ({rungs})" if rungs else "")
    if not facts["bus"]["connected"]:
        line.append(f" · the bus has been away for {facts['bus']['away_s']:.0f} s", style="bold red")
    line.append(
        f"\n{totals['rps']:.1f} requests/s, {totals['in_flight']} running, {totals['queued']} waiting, "
        f"{totals['tokens_per_s']:.0f} tokens/s, {decimal(totals['resident_bytes'])} held · "
        f"saved ${savings['saved_usd']:.4f} since {_time(facts['since'])}"
    )
    return line


def ordered(rows: Iterable[Row], column: Column, *, backwards: bool) -> list[Row]:
    """Return the rows in a column's order."""
    return sorted(rows, key=column.by, reverse=backwards)


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _busy(row: Row) -> Text:
    return Text(f"{row['in_flight']}/{row['slots']}" if row["in_flight"] or row["slots"] else "", justify="right", no_wrap=True)


def _millis(row: Row, share: str) -> Text:
    value = row["ttft_ms"][share]
    return Text("" if value is None else f"{value:.0f} ms", justify="right", no_wrap=True)


def _memory(row: Row) -> Text:
    memory = row["memory"]
    drawn = bar(memory["resident"], memory["reserved"], memory["capacity"])
    return drawn.append(f" {decimal(memory['reserved'])} of {decimal(memory['capacity'])}")


def _devices(row: Row) -> Text:
    drawn = Text(no_wrap=True)
    for at, device in enumerate(row["devices"]):
        drawn.append(" " if at else "")
        drawn.append_text(literal(device["id"][:12], "red" if device["cordoned"] else ""))
        drawn.append(" ")
        drawn.append_text(bar(device["memory_used"], device["memory_reserved"], device["memory_total"], 6))
    return drawn


def _cache(row: Row) -> Text:
    return Text(f"{decimal(row['cache_bytes'])} of {decimal(row['cache_capacity'])}", no_wrap=True)
