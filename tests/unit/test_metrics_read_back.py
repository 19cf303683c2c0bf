"""Lean metrics are read back as the library exposes them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from standby.telemetry import reading
from standby.telemetry.lean import LeanCounter, LeanHistogram


def test_what_is_read_is_what_a_scrape_shows() -> None:
    """A new version of the library that keeps its numbers elsewhere fails here."""
    registry = CollectorRegistry()
    counter = LeanCounter("c", "c", ("tenant", "outcome"), registry=registry)
    histogram = LeanHistogram("h", "h", ("tenant",), buckets=(1, 2), registry=registry)
    counter.labels("t", "ok").inc(3)
    counter.labels("u", "ok").inc()
    for seconds in (0.5, 1.5, 1.6, 9.0):
        histogram.labels("t").observe(seconds)

    assert [reading.value_of(counter, (tenant, "ok")) for tenant in ("t", "u", "nobody")] == [3.0, 1.0, 0.0]
    assert [reading.sum_of(histogram, (tenant,)) for tenant in ("t", "nobody")] == [12.6, 0.0]
    assert reading.buckets_of(histogram, ("t",)) == [1.0, 2.0, 1.0]
    assert reading.buckets_of(histogram, ("nobody",)) is None
    assert reading.bounds(histogram) == (1.0, 2.0, float("inf"))
    assert registry.get_sample_value("h_bucket", {"tenant": "t", "le": "2.0"}) == 3.0
    assert registry.get_sample_value("h_sum", {"tenant": "t"}) == 12.6
