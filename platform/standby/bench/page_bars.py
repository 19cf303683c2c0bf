"""Stacked bars: one row for each thing, its parts one behind the other, on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from standby.bench.page_markup import Markup, number, tag
from standby.bench.page_scales import milliseconds
from standby.bench.page_style import SERIES

_HEIGHT = 20


@dataclass(frozen=True)
class Bar:
    """One row; ``parts``: names with amounts in the order in which they are drawn. ``note``: small, below the label.

    ``start``: where the first part begins, for rows that happen one after the other.
    """

    label: str
    parts: tuple[tuple[str, float], ...]
    note: str = ""
    start: float = 0.0


@dataclass(frozen=True)
class Bars:
    """A figure of stacked bars; amounts are milliseconds."""

    title: str
    rows: tuple[Bar, ...]
    note: str = ""

    def markup(self) -> Markup:
        """Return the figure; each bar says its parts in words to whoever cannot see it."""
        names = self._names()
        highest = max((row.start + sum(_size(amount) for _, amount in row.parts) for row in self.rows), default=0.0)
        body = tag("tbody", (self._row(row, names, highest) for row in self.rows))
        return tag(
            "figure",
            tag("figcaption", self.title),
            legend(names) if len(names) > 1 else None,
            tag("div", tag("table", body, class_="bars", aria_label=self.title), class_="scroll"),
            tag("p", self.note, class_="note") if self.note else None,
        )

    def _names(self) -> list[str]:
        """All parts' names, each once; one kind of part has one colour in all rows."""
        return list(dict.fromkeys(name for row in self.rows for name, _ in row.parts))

    def _row(self, row: Bar, names: Sequence[str], highest: float) -> Markup:
        parts, at = [], 100 * row.start / highest if highest > 0 else 0.0
        for name, amount in row.parts:
            width = 100 * _size(amount) / highest if highest > 0 else 0.0
            words = f"{name}: {milliseconds(amount)}"
            parts.append(
                tag(
                    "rect",
                    tag("title", words),
                    x=f"{number(at)}%",
                    width=f"{number(width)}%",
                    height=_HEIGHT,
                    class_=f"area {colour(names.index(name))}",
                )
            )
            at += width
        total = sum(_size(amount) for _, amount in row.parts)
        said = ", ".join(f"{name} {milliseconds(amount)}" for name, amount in row.parts) or "nothing measured"
        picture = tag(
            "svg",
            tag("rect", width="100%", height=_HEIGHT, class_="area track"),
            parts,
            width="100%",
            height=_HEIGHT,
            role="img",
            aria_label=said,
        )
        label = tag("th", row.label, tag("span", row.note, class_="note") if row.note else None, scope="row")
        return tag("tr", label, tag("td", picture), tag("td", milliseconds(total) if row.parts else "not measured", class_="n"))


def colour(index: int) -> str:
    """Return the class of the colour number ``index``."""
    return f"s{index % SERIES + 1}"


def legend(names: Sequence[str]) -> Markup:
    """Return the names beside their colours."""
    return tag(
        "ul",
        (
            tag(
                "li",
                tag(
                    "svg", tag("rect", width=12, height=12, rx=2, class_=colour(index)), width=12, height=12, aria_hidden="true"
                ),
                name,
            )
            for index, name in enumerate(names)
        ),
        class_="legend",
    )


def _size(amount: float) -> float:
    return amount if amount > 0 else 0.0
