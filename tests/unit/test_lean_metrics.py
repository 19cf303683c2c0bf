"""Metrics without locks expose what the library's own do, number by number."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest

from standby.telemetry.lean import LeanCounter, LeanHistogram, LeanSummary

BUCKETS = (0.1, 1, 2.5)


def exposed(counter: type[Counter], summary: type[Summary], histogram: type[Histogram]) -> list[bytes]:
    """Return the lines that one of each gives after the same events; creation times without their moment."""
    registry = CollectorRegistry()
    requests = counter("requests", "Requests", ("name",), registry=registry)
    latency = summary("latency", "Latency", ("name",), registry=registry)
    seconds = histogram("seconds", "Seconds", ("name",), buckets=BUCKETS, registry=registry)
    for name in ("a", "b", "gone"):
        requests.labels(name).inc()
        requests.labels(name).inc(2.5)
        for amount in (0.0, 0.1, 0.11, 1.0, 2.5, 7.0):
            latency.labels(name).observe(amount)
            seconds.labels(name).observe(amount)
    for metric in (requests, latency, seconds):
        metric.remove_by_labels({"name": "gone"})
        metric.labels("untouched")
    lines = generate_latest(registry).splitlines()
    return [line.rpartition(b" ")[0] if b"_created{" in line else line for line in lines]


def test_what_is_exposed_is_the_librarys() -> None:
    lean = exposed(LeanCounter, LeanSummary, LeanHistogram)
    assert lean == exposed(Counter, Summary, Histogram)
    assert b'seconds_bucket{le="0.1",name="a"} 2.0' in lean
    assert not [line for line in lean if b"gone" in line]


def test_a_counter_only_grows() -> None:
    counter = LeanCounter("falling", "Never", ("name",), registry=CollectorRegistry()).labels("a")
    with pytest.raises(ValueError, match="negative"):
        counter.inc(-1)
