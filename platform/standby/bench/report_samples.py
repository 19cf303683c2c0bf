"""Samples as pictures need them: sorted, binned, by rung. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from standby.bench.page_curves import Columns, Curves, Series
from standby.bench.page_scales import milliseconds
from standby.bench.values import Sample
from standby.domain.instance import Rung

UNKNOWN_RUNG: Final = "rung unknown"
_WARMTH: Final = tuple(rung.label for rung in reversed(Rung))
_SPOTS: Final = 400
_BINS: Final = 30
_PERCENT: Final = (0.0, 25.0, 50.0, 75.0, 90.0, 100.0)


def by_rung(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    """Return the samples by the rung that served them, the warmest first; without any rung known: one group."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.rung or UNKNOWN_RUNG, []).append(sample)
    order = {name: place for place, name in enumerate(_WARMTH)}
    return dict(sorted(found.items(), key=lambda one: (order.get(one[0], len(order)), one[0])))


def percentile_points(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Return (percent, value) of each value by its nearest rank; of very many only so many as a picture can show."""
    ordered = sorted(values)
    count = len(ordered)
    if count <= _SPOTS:
        return tuple((100 * (place + 1) / count, value) for place, value in enumerate(ordered))
    places = sorted({math.ceil(count * share / _SPOTS) - 1 for share in range(1, _SPOTS + 1)})
    return tuple((100 * (place + 1) / count, ordered[place]) for place in places)


def percentile_curves(title: str, groups: Sequence[tuple[str, Sequence[float]]]) -> Curves:
    """Return the figure: for each group, below which time how many percent of its requests were; seconds in."""
    series = tuple(
        Series(f"{name} ({len(values)})", tuple((x, y * 1000) for x, y in percentile_points(values)), dots=len(values) < 5)
        for name, values in groups
    )
    log = _spans([y for one in series for _, y in one.points])
    return Curves(
        title, "percent of requests", "at most this long", series,
        x_words=lambda value: f"{value:.0f}%", y_words=milliseconds, log_y=log, x_ticks=_PERCENT,
        note="The time axis is logarithmic." if log else "",
    )  # fmt: skip


def histogram(title: str, label: str, groups: Sequence[tuple[str, Sequence[float]]]) -> Columns:
    """Return the figure: how many requests took how long; seconds in. The last column holds what lies beyond the 99.5th."""
    values = sorted(value for _, group in groups for value in group)
    if not values:
        return Columns(title, label, ())
    top = values[min(len(values) - 1, math.ceil(0.995 * len(values)) - 1)] * 1000 or 1.0
    width = top / _BINS
    counts = [[0] * len(groups) for _ in range(_BINS)]
    for place, (_, group) in enumerate(groups):
        for value in group:
            counts[min(_BINS - 1, int(value * 1000 / width))][place] += 1
    bins = tuple((width * at, width * (at + 1), tuple(row)) for at, row in enumerate(counts))
    return Columns(title, label, bins, tuple(name for name, _ in groups), x_words=milliseconds)


def timeline(title: str, groups: Sequence[tuple[str, Sequence[Sample]]]) -> Curves:
    """Return the figure: each request as a dot, when it was due and how long it took; failures are a group of their own."""
    good = [(name, [one for one in samples if one.ok]) for name, samples in groups]
    failed = [one for _, samples in groups for one in samples if not one.ok]
    shown = [*good, ("failed", failed)] if failed else good
    series = tuple(Series(f"{name} ({len(samples)})", _dots(samples), dots=True) for name, samples in shown)
    log = _spans([y for one in series for _, y in one.points])
    return Curves(
        title, "seconds from the start", "end to end", series,
        x_words=lambda value: f"{value:g} s", y_words=milliseconds, log_y=log,
        note="The time axis is logarithmic." if log else "",
    )  # fmt: skip


def _dots(samples: Sequence[Sample]) -> tuple[tuple[float, float], ...]:
    """Return the spots; of very many every n-th and the slowest, so that no outlier is lost."""
    step = max(1, len(samples) // (5 * _SPOTS))
    kept = samples[::step]
    if step > 1:
        kept = [*kept, *sorted(samples, key=lambda one: -one.e2e_s)[:20]]
    return tuple((one.due_s, one.e2e_s * 1000) for one in kept)


def _spans(values: Sequence[float]) -> bool:
    """Whether the values span so much that a linear axis would hide most of them."""
    positive = [value for value in values if value > 0]
    return len(positive) > 1 and max(positive) > 20 * min(positive)
