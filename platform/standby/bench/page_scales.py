"""Scales of plots: round ticks, and numbers with their unit as people read them."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_LOG_STEPS: Final = (1.0, 2.0, 5.0)
NOT_MEASURED: Final = "not measured"


def ticks(highest: float, wanted: int = 5, *, whole: bool = False) -> tuple[float, ...]:
    """Return round values from 0 up to at least ``highest``; 0 and 1 where there is nothing to show. ``whole``: for counts."""
    if not math.isfinite(highest) or highest <= 0:
        return (0.0, 1.0)
    raw = highest / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in _STEPS if power * factor >= raw * 0.999)
    step = float(math.ceil(step)) if whole else step
    return tuple(step * number for number in range(math.ceil(highest / step - 1e-9) + 1))


def log_ticks(lowest: float, highest: float) -> tuple[float, ...]:
    """Return values 1, 2, 5, 10 … around a positive range."""
    first, last = math.floor(math.log10(lowest)), math.ceil(math.log10(highest))
    every = [10.0**power * step for power in range(first, last + 1) for step in _LOG_STEPS]
    below = max((value for value in every if value <= lowest * 1.0001), default=every[0])
    above = min((value for value in every if value >= highest * 0.9999), default=every[-1])
    found = tuple(value for value in every if below <= value <= above)
    return found if len(found) > 1 else (below, below * 10)


def milliseconds(value: float | None) -> str:
    """Return a time in milliseconds as people read it: ``8.4 ms``, ``231 ms``, ``1.42 s``, ``62.0 s``."""
    if value is None or not math.isfinite(value):
        return NOT_MEASURED
    if value == 0:
        return "0"
    if abs(value) >= 9_999.5:
        return f"{value / 1000:.1f} s"
    if abs(value) >= 999.5:
        return f"{value / 1000:.2f} s"
    return f"{value:.0f} ms" if abs(value) >= 9.95 else f"{value:.1f} ms"


def seconds(value: float | None) -> str:
    """Return a time in seconds as people read it, in milliseconds where it is short."""
    return milliseconds(None if value is None else value * 1000)


def minute(epoch_s: float) -> str:
    """Return a moment as day and time of the world's clock: ``2026-11-30 07:31 UTC``."""
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def mebibytes(count: float | None) -> str:
    """Return bytes as MiB or GiB."""
    if count is None:
        return NOT_MEASURED
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def amount(value: float) -> str:
    """Return any number short: three digits that count, thousands apart."""
    if not math.isfinite(value):
        return NOT_MEASURED
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(part: int, whole: int) -> str:
    """Return ``3 of 120 (2.5%)``; no share of nothing."""
    return f"{part} of {whole} ({part / whole:.1%})" if whole else "0 of 0"
