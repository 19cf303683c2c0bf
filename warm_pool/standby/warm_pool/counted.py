"""What the agent counts as it happens: climbs, and engines that failed."""

from __future__ import annotations

from typing import Final

from standby.runtime.lifecycle_values import (
    Event,
    Exited,
    Lifecycle,
    ProbeFailed,
    ResumeFailed,
    Sick,
    StartFailed,
    SuspendFailed,
)
from standby.telemetry import metrics
from standby.warm_pool.byte_seconds import Holding, Series
from standby.warm_pool.climb import Climb
from standby.warm_pool.managed import Managed

# What says that an engine died, stalled, or did not do what it was started for.
_FAULTS: Final = (StartFailed, ProbeFailed, SuspendFailed, ResumeFailed, Exited, Sick)


def climbed(node: str, climb: Climb, now: float, *, ready: bool) -> None:
    """Count a climb that has ended; ``now`` is the clock by which it was measured."""
    rung = climb.from_rung.label
    metrics.ACTIVATIONS.labels(node, rung, "ready" if ready else "failed").inc()
    if not ready:
        return
    metrics.ACTIVATION_SECONDS.labels(node, rung).observe(climb.seconds(now))
    for phase, ms in climb.phases.items():
        metrics.ACTIVATION_PHASE_SECONDS.labels(node, rung, phase.value).observe(ms / 1000)


def stepped(managed: Managed, event: Event, before: Lifecycle, after: Lifecycle) -> None:
    """Count an engine's failure; one that was told already, or means an engine that is no more, has changed nothing."""
    if isinstance(event, _FAULTS) and after is not before:
        assignment = managed.assignment
        metrics.ENGINE_FAILURES.labels(assignment.node, assignment.model.engine.value).inc()


def holding(managed: Managed, busy_s: float) -> Holding:
    """Return what an instance holds; ``busy_s``: for how long its door had something in flight."""
    series = Series(managed.assignment.tenant, managed.assignment.endpoint, managed.rung)
    return Holding(series, managed.resident_bytes if managed.has_process else 0, busy_s)
