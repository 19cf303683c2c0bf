"""Reads lean metrics back: a gateway's own counts, for its console, without a copy of them and without a scrape.

The library's own way to read, ``collect``, makes an object of each sample of each bucket; a thousand endpoints have fifty
thousand of those. One thread alone writes and reads lean metrics, so that these numbers can be read where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from standby.telemetry.lean import LeanCounter, LeanHistogram

Labels = tuple[str, ...]


def values(counter: LeanCounter) -> Iterator[tuple[Labels, float]]:
    """Yield each child's labels, in the order of the metric's, and its value."""
    for labels, child in cast("dict[Labels, LeanCounter]", counter._metrics).items():  # noqa: SLF001 # see above
        yield labels, child._value.get()  # noqa: SLF001


def sums(histogram: LeanHistogram) -> Iterator[tuple[Labels, float]]:
    """Yield each child's labels and the sum of all that it has observed."""
    for labels, child in cast("dict[Labels, LeanHistogram]", histogram._metrics).items():  # noqa: SLF001
        yield labels, child._sum.get()  # noqa: SLF001


def buckets(histogram: LeanHistogram) -> Iterator[tuple[Labels, list[float]]]:
    """Yield each child's labels and the count of each of its buckets, not added up; bounds are ``bounds``'."""
    for labels, child in cast("dict[Labels, LeanHistogram]", histogram._metrics).items():  # noqa: SLF001
        yield labels, [cell.get() for cell in child._buckets]  # noqa: SLF001


def bounds(histogram: LeanHistogram) -> tuple[float, ...]:
    """Return the upper bounds of the buckets; the last one is infinite."""
    return tuple(histogram._upper_bounds)  # noqa: SLF001
