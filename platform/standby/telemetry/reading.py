"""Reads lean metrics back: a gateway's own counts, for its console, without a copy of them and without a scrape.

The library's own way to read, ``collect``, makes an object of each sample of each bucket; a thousand endpoints have fifty
thousand of those. One thread alone writes and reads lean metrics, so that these numbers can be read where they are. None of
these functions makes a child where there is none.
"""

from __future__ import annotations

from typing import cast

from standby.telemetry.lean import LeanCounter, LeanHistogram

Labels = tuple[str, ...]


def value_of(counter: LeanCounter, labels: Labels) -> float:
    """Return one child's value; ``labels`` in the order of the metric's, 0 where there is no such child."""
    child = cast("dict[Labels, LeanCounter]", counter._metrics).get(labels)  # noqa: SLF001 # see above
    return 0.0 if child is None else child._value.get()  # noqa: SLF001


def sum_of(histogram: LeanHistogram, labels: Labels) -> float:
    """Return the sum of all that one child has observed; 0 where there is no such child."""
    child = cast("dict[Labels, LeanHistogram]", histogram._metrics).get(labels)  # noqa: SLF001
    return 0.0 if child is None else child._sum.get()  # noqa: SLF001


def buckets_of(histogram: LeanHistogram, labels: Labels) -> list[float] | None:
    """Return the count of each of one child's buckets, not added up; None where there is no such child."""
    child = cast("dict[Labels, LeanHistogram]", histogram._metrics).get(labels)  # noqa: SLF001
    return None if child is None else [cell.get() for cell in child._buckets]  # noqa: SLF001


def bounds(histogram: LeanHistogram) -> tuple[float, ...]:
    """Return the upper bounds of the buckets; the last one is infinite."""
    return tuple(histogram._upper_bounds)  # noqa: SLF001
