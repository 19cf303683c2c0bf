"""What the agent counts as it happens: climbs, and engines that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from standby.domain.model import Model
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

MOST_VERSIONS: Final = 500
_VERSION_DIGITS: Final = 12
# What says that an engine died, stalled, or did not do what it was started for.
_FAULTS: Final = (StartFailed, ProbeFailed, SuspendFailed, ResumeFailed, Exited, Sick)


@dataclass(slots=True)
class Climbs:
    """Counts the climbs of one node."""

    # Those that climbed last stand at the end. A node that meets ever new models must not tell of ever more of them.
    _versions: dict[tuple[str, str], None] = field(default_factory=dict)

    def ended(self, node: str, climb: Climb, model: Model, now: float, *, ready: bool) -> None:
        """Count a climb that has ended; ``now`` is the clock by which it was measured."""
        rung = climb.from_rung.label
        metrics.ACTIVATIONS.labels(node, rung, "ready" if ready else "failed").inc()
        if not ready:
            return
        seconds = climb.seconds(now)
        metrics.ACTIVATION_SECONDS.labels(node, rung).observe(seconds)
        engine, version = self._noted(node, model)
        metrics.VERSION_ACTIVATION_SECONDS.labels(node, rung, engine, version).observe(seconds)
        for phase, ms in climb.phases.items():
            metrics.ACTIVATION_PHASE_SECONDS.labels(node, rung, phase.value).observe(ms / 1000)

    def _noted(self, node: str, model: Model) -> tuple[str, str]:
        key = model.engine.value, model.manifest.digest[:_VERSION_DIGITS]
        self._versions.pop(key, None)
        self._versions[key] = None
        if len(self._versions) > MOST_VERSIONS:
            engine, version = oldest = next(iter(self._versions))
            del self._versions[oldest]
            metrics.VERSION_ACTIVATION_SECONDS.remove_by_labels({"node": node, "engine": engine, "version": version})
        return key


def stepped(managed: Managed, event: Event, before: Lifecycle, after: Lifecycle) -> None:
    """Count an engine's failure; one that was told already, or means an engine that is no more, has changed nothing."""
    if isinstance(event, _FAULTS) and after is not before:
        assignment = managed.assignment
        metrics.ENGINE_FAILURES.labels(assignment.node, assignment.model.engine.value).inc()


def holding(managed: Managed, busy_s: float) -> Holding:
    """Return what an instance holds; ``busy_s``: for how long its door had something in flight."""
    series = Series(managed.assignment.tenant, managed.assignment.endpoint, managed.rung)
    return Holding(series, managed.resident_bytes if managed.has_process else 0, busy_s)
