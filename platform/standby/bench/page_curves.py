"""Plots over two axes: curves, dots and columns. Plain SVG: words keep their size on every width, and no program runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from standby.bench.page_bars import colour, legend
from standby.bench.page_markup import Markup, number, tag
from standby.bench.page_scales import amount, log_ticks, ticks

_HEIGHT: Final = 230
_BASE: Final = 24
_LABELS: Final = 6
_UNIT: Final = 1000.0
"""The side of the plot's own square of coordinates, which is stretched to the page."""


@dataclass(frozen=True)
class Series:
    """A name with its points; ``dots``: points that no line joins."""

    name: str
    points: tuple[tuple[float, float], ...]
    dots: bool = False


@dataclass(frozen=True)
class Curves:
    """A figure with one or more series. ``log_y``: for what spans magnitudes, all above zero."""

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_words: Callable[[float], str] = amount
    y_words: Callable[[float], str] = amount
    log_y: bool = False
    x_ticks: tuple[float, ...] = ()
    note: str = ""

    def markup(self) -> Markup:
        """Return the figure; without a single point a sentence that says so."""
        kept = [one for one in (self._cleaned(one) for one in self.series) if one.points]
        if not kept:
            return tag("p", f"{self.title}: nothing was measured.", class_="soft")
        frame = self._frame(kept)
        # Each series keeps the colour of its place, also where a neighbour has no point.
        places = [[one.name for one in self.series].index(one.name) for one in kept]
        drawn = [_drawn(one, frame, place) for one, place in zip(kept, places, strict=True)]
        return tag(
            "figure",
            tag("figcaption", self.title),
            legend([one.name for one in self.series]) if len(self.series) > 1 else None,
            plot(frame, drawn, f"{self.title}: {self.y_label} over {self.x_label}; {_said(kept, self.y_words)}"),
            tag("p", self.note, class_="note") if self.note else None,
        )

    def _cleaned(self, series: Series) -> Series:
        points = tuple((x, y) for x, y in series.points if math.isfinite(x) and math.isfinite(y) and (y > 0 or not self.log_y))
        return Series(series.name, points, series.dots)

    def _frame(self, kept: Sequence[Series]) -> Frame:
        xs = [x for one in kept for x, _ in one.points]
        ys = [y for one in kept for _, y in one.points]
        return Frame(
            x_ticks=self.x_ticks or ticks(max(xs), _LABELS),
            y_ticks=log_ticks(min(ys), max(ys)) if self.log_y else ticks(max(ys), 4),
            x_label=self.x_label,
            y_label=self.y_label,
            x_words=self.x_words,
            y_words=self.y_words,
            log_y=self.log_y,
        )


@dataclass(frozen=True)
class Columns:
    """A histogram: for each bin its lower and upper end and a count for each series, drawn on top of each other."""

    title: str
    x_label: str
    bins: tuple[tuple[float, float, tuple[int, ...]], ...]
    names: tuple[str, ...] = ("requests",)
    x_words: Callable[[float], str] = amount

    def markup(self) -> Markup:
        """Return the figure; without a single count a sentence that says so."""
        highest = max((sum(counts) for _, _, counts in self.bins), default=0)
        if highest == 0:
            return tag("p", f"{self.title}: nothing was measured.", class_="soft")
        frame = Frame(
            x_ticks=ticks(self.bins[-1][1], _LABELS),
            y_ticks=ticks(highest, 4, whole=True),
            x_label=self.x_label,
            y_label="requests",
            x_words=self.x_words,
            y_words=amount,
        )
        said = "; ".join(
            f"{self.x_words(low)} to {self.x_words(high)}: {sum(counts)}" for low, high, counts in self.bins if sum(counts)
        )
        return tag(
            "figure",
            tag("figcaption", self.title),
            legend(self.names) if len(self.names) > 1 else None,
            plot(frame, [self._column(one, frame) for one in self.bins], f"{self.title}: {said}"),
        )

    def _column(self, one: tuple[float, float, tuple[int, ...]], frame: Frame) -> Markup:
        low, high, counts = one
        left, right = frame.x(low), frame.x(high)
        parts, below = [], 0
        for index, count in enumerate(counts):
            if count:
                top, bottom = frame.y(below + count), frame.y(below)
                words = f"{self.x_words(low)} to {self.x_words(high)}: {count} {self.names[index]}"
                parts.append(
                    tag(
                        "rect",
                        tag("title", words),
                        x=left,
                        y=top,
                        width=max(0.5, (right - left) * 0.94),
                        height=bottom - top,
                        class_=f"area {colour(index)}",
                    )
                )
            below += count
        return tag("g", parts)


@dataclass(frozen=True)
class Frame:
    """Two axes, and where a value lies on them in the plot's own coordinates."""

    x_ticks: tuple[float, ...]
    y_ticks: tuple[float, ...]
    x_label: str
    y_label: str
    x_words: Callable[[float], str]
    y_words: Callable[[float], str]
    log_y: bool = False

    def x(self, value: float) -> float:
        """Return how far to the right."""
        low, high = self.x_ticks[0], self.x_ticks[-1]
        return _UNIT * min(1.0, max(0.0, (value - low) / (high - low)))

    def y(self, value: float) -> float:
        """Return how far down; values beyond the axis stay on its end."""
        low, high = self.y_ticks[0], self.y_ticks[-1]
        if self.log_y:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return _UNIT * (1 - min(1.0, max(0.0, (value - low) / (high - low))))


def plot(frame: Frame, drawn: Iterable[Markup], said: str) -> Markup:
    """Return both axes around what is drawn; the picture says ``said`` to whoever cannot see it."""
    rules = [
        tag("line", x1="0", x2="100%", y1=_down(frame, value), y2=_down(frame, value), class_="rule") for value in frame.y_ticks
    ]
    inner = tag(
        "svg", *drawn, width="100%", height=_HEIGHT, viewBox=f"0 0 {number(_UNIT)} {number(_UNIT)}", preserveAspectRatio="none"
    )
    area = tag("svg", rules, inner, width="100%", height=_HEIGHT, role="img", aria_label=said)
    left = tag("svg", _left(frame), width="100%", height=_HEIGHT, aria_hidden="true")
    below = tag("svg", _below(frame), width="100%", height=2 * _BASE, aria_hidden="true")
    return tag("div", left, area, tag("span"), below, class_="plot")


def _left(frame: Frame) -> list[Markup]:
    return [tag("text", frame.y_words(value), x="90%", y=_down(frame, value) + 4, text_anchor="end") for value in frame.y_ticks]


def _below(frame: Frame) -> list[Markup]:
    last = len(frame.x_ticks) - 1
    anchors = {0: "start", last: "end"}
    labels = [
        tag(
            "text",
            frame.x_words(value),
            x=f"{number(frame.x(value) / _UNIT * 100)}%",
            y=17,
            text_anchor=anchors.get(index, "middle"),
        )
        for index, value in enumerate(frame.x_ticks)
    ]
    return [*labels, tag("text", f"{frame.x_label}  ·  upward: {frame.y_label}", x="50%", y=38, text_anchor="middle")]


def _down(frame: Frame, value: float) -> float:
    return frame.y(value) / _UNIT * _HEIGHT


def _drawn(series: Series, frame: Frame, place: int) -> Markup:
    spots = [(frame.x(x), frame.y(y)) for x, y in series.points]
    if series.dots or len(spots) == 1:
        # A line of no length with a round end is a dot that the stretching leaves round.
        path = " ".join(f"M{number(x)} {number(y)}h0" for x, y in spots)
        return tag("path", d=path, class_=f"dots {colour(place)}", vector_effect="non-scaling-stroke")
    path = "M" + "L".join(f"{number(x)} {number(y)}" for x, y in spots)
    return tag("path", tag("title", series.name), d=path, class_=f"curve {colour(place)}", vector_effect="non-scaling-stroke")


def _said(kept: Sequence[Series], words: Callable[[float], str]) -> str:
    return "; ".join(
        f"{one.name}: {len(one.points)} points from {words(min(y for _, y in one.points))} to "
        f"{words(max(y for _, y in one.points))}"
        for one in kept
    )
