"""What the commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

SHORT_DIGEST: Final = 12
"""Digits of a version that tables show."""

# Wide enough that a pipe never gets a name cut in two; a table takes only what it needs.
_PIPE_WIDTH: Final = 1000
_RUNG_STYLES: Final = {
    "ready": "green",
    "asleep": "cyan",
    "zygote": "magenta",
    "staged": "blue",
    "cold": "dim",
    "failed": "red",
    "Failed": "red",
}


def console(stream: TextIO | None = None) -> Console:
    """Return a console on ``stream`` (default: standard output); without colour and without a narrow width in a pipe."""
    target = sys.stdout if stream is None else stream
    return Console(file=target, highlight=False, width=None if target.isatty() else _PIPE_WIDTH)


def print_json(content: object) -> None:
    """Print ``content`` as JSON."""
    print(json.dumps(content, indent=2, ensure_ascii=False))


def print_json_line(content: object) -> None:
    """Print one JSON object on a line of its own, at once: of what goes on, each reader gets whole ones."""
    print(json.dumps(content, ensure_ascii=False), flush=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Print a table, or ``empty`` where there is no row."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, style=_RUNG_STYLES.get(cell, "")) for cell in row))
    if table.row_count == 0:
        print(empty)
        return
    console().print(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names with their values, aligned; values that are empty are left out."""
    shown = [(name, value) for name, value in facts if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name:<{width}}  {value}")


def size(count: int | None) -> str:
    """Return bytes as people read them: ``138.5 MB``."""
    return "" if count is None else decimal(count)


def resident(artifact: dict[str, Any]) -> str:
    """Return how much of a cached artifact is in the page cache: ``138.5 MB (100%)``."""
    count, whole = artifact["resident_bytes"], artifact["bytes"]
    if count is None:
        return "not measured yet"
    return f"{size(count)} ({min(1.0, count / whole):.0%})" if whole else size(count)


def moment(at: float | None) -> str:
    """Return seconds since the epoch as UTC time."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def failure_lines(failure: dict[str, Any]) -> list[str]:
    """Return why something failed: the first error line, where it was, when it is tried again, then the end of the log."""
    lines = []
    if failure.get("first_error"):
        lines.append(f"first error: {failure['first_error']}")
    if failure.get("node"):
        lines.append(f"it was: {failure['instance']} on node {failure['node']}")
    if failure.get("next_retry_at"):
        lines.append(f"next try: {moment(failure['next_retry_at'])} UTC")
    tail = failure.get("log_tail") or []
    if tail:
        lines.append("the log ends:")
        lines.extend(f"  {line}" for line in tail)
    return lines
