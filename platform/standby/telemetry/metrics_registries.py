"""Which process exposes which metrics: one registry for each kind of process. Buckets are in seconds."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector

WAIT_BUCKETS: Final = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    20,
    30,
    50,
    60,
    120,
    300,
)
TOKEN_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
PLAN_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)


def _of_a_process() -> CollectorRegistry:
    """With the library's own figures of the process, its CPU time and memory among them."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


GATEWAY: Final = _of_a_process()
NODE: Final = _of_a_process()
CONTROLLER: Final = _of_a_process()
PROCESSES: Final = (GATEWAY, NODE, CONTROLLER)
