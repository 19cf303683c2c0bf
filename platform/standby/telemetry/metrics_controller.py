"""What a controller counts of its decisions."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from standby.telemetry.metrics_registries import CONTROLLER, PLAN_BUCKETS

DECISIONS: Final = Counter(
    "standby_decisions", "What the leading controller ordered, and why it held back", ("action",), registry=CONTROLLER
)
PLAN_SECONDS: Final = Histogram("standby_plan_seconds", "Time that one plan takes", buckets=PLAN_BUCKETS, registry=CONTROLLER)
LEADER: Final = Gauge("standby_leader", "1 while this controller holds the lease, else 0", ("controller",), registry=CONTROLLER)
