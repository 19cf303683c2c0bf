"""How the bus and the local copies of its tables are: the same for every process."""

from __future__ import annotations

from typing import Final

from prometheus_client import Gauge

from standby.telemetry.metrics_registries import PROCESSES

BUS_DISCONNECTED: Final = Gauge(
    "standby_bus_disconnected_seconds", "How long the bus has been away; 0 when connected", registry=None
)
BUS_ERRORS: Final = Gauge("standby_bus_errors", "Errors that the bus connection reported since start", registry=None)
BUS_SLOW_CONSUMER_DROPS: Final = Gauge(
    "standby_bus_slow_consumer_drops", "Messages dropped because a subscriber was too slow", registry=None
)
VIEW_STALENESS: Final = Gauge(
    "standby_view_staleness_seconds",
    "Age of the last confirmation of the local copy",
    ("table",),
    registry=None,
)

for _registry in PROCESSES:
    for _metric in (BUS_DISCONNECTED, BUS_ERRORS, BUS_SLOW_CONSUMER_DROPS, VIEW_STALENESS):
        _registry.register(_metric)
