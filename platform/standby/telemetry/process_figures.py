"""Figures of the bus and of the local copies, set the same way by every process when somebody scrapes."""

from __future__ import annotations

from collections.abc import Mapping

from standby.telemetry import metrics


def bus_is(*, away_s: float, errors: int, slow_consumer_drops: int, staleness_s: Mapping[str, float]) -> None:
    """Set them; ``staleness_s``: how old the confirmation of each table's copy is."""
    metrics.BUS_DISCONNECTED.set(away_s)
    metrics.BUS_ERRORS.set(errors)
    metrics.BUS_SLOW_CONSUMER_DROPS.set(slow_consumer_drops)
    for table, age in staleness_s.items():
        metrics.VIEW_STALENESS.labels(table).set(age)
