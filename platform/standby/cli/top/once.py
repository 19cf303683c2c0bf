"""One screen of ``standby top``, printed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table

from standby.cli.output import console
from standby.cli.top import cells
from standby.cli.top.cells import Column
from standby.cli.top.picture import Picture, Row

_DECISIONS: Final = 10


def show(picture: Picture) -> None:
    """Print heading, endpoints, instances, nodes and the last decisions."""
    out = console()
    out.print(cells.heading(picture))
    several = not picture.facts["tenant"]
    tables: Sequence[tuple[Sequence[Column], Iterable[Row]]] = (
        (cells.endpoints(with_tenant=several), picture.endpoints.values()),
        (cells.instances(), picture.instances.values()),
        (cells.nodes(), picture.nodes.values()),
        (cells.decisions(), picture.decisions[:_DECISIONS]),
    )
    for columns, rows in tables:
        shown = cells.ordered(rows, columns[0], backwards=False)
        if shown:
            out.print()
            out.print(_table(columns, shown))


def _table(columns: Sequence[Column], rows: Iterable[Row]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(column.head, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(column.cell(row) for column in columns))
    return table
