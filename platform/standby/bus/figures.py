"""Figures of the bus and of the local copies, set the same way by every process when somebody scrapes."""

from __future__ import annotations

from collections.abc import Mapping

from standby.bus.connection import Bus
from standby.telemetry import metrics


def refresh(bus: Bus, staleness_s: Mapping[str, float]) -> None:
    """Set them; ``staleness_s``: how old the confirmation of each table's copy is."""
    counted = bus.statistics()
    metrics.BUS_DISCONNECTED.set(bus.disconnected_for())
    metrics.BUS_ERRORS.set(counted.errors)
    metrics.BUS_SLOW_CONSUMER_DROPS.set(counted.slow_consumer_drops)
    for table, age in staleness_s.items():
        metrics.VIEW_STALENESS.labels(table).set(age)
