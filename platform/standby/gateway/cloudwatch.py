"""A variant's requests under the names and in the units that CloudWatch has for them; children looked up once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter

from standby.domain import errors
from standby.domain.aws import component_name
from standby.domain.endpoint import Endpoint
from standby.gateway.desk import Desk, Grant
from standby.telemetry import metrics
from standby.telemetry.lean import LeanSummary

_CLIENTS: Final = frozenset(
    {
        "engine_4xx",
        "ValidationError",
        *(
            kind.code
            for kind in (
                errors.ColdWaitExceeded,
                errors.EndpointNotFound,
                errors.InvalidInput,
                errors.MalformedJson,
                errors.PayloadTooLarge,
                errors.QueueFull,
                errors.Throttled,
            )
        ),
    }
)
_NO_ERROR: Final = frozenset({"ok", "client_gone"})
# A retry that shared another attempt's run is not counted: it was one invocation.
_NO_INVOCATION: Final = frozenset({"joined"})
_MICROSECONDS: Final = 1_000_000
_LABELS: Final = ("tenant", "EndpointName", "VariantName", "InferenceComponentName")
_GAUGES: Final = (
    metrics.AWS_CONCURRENT_UTILIZATION,
    metrics.AWS_PROVISIONED_EXECUTIONS,
    metrics.AWS_PROVISIONED_UTILIZATION,
)

Dimensions = tuple[str, str, str, str]


def counted_as(outcome: str) -> tuple[Counter, ...]:
    """Return the counters in which a request with this outcome counts."""
    if outcome in _NO_INVOCATION:
        return ()
    if outcome in _NO_ERROR:
        return (metrics.AWS_INVOCATIONS,)
    failed = metrics.AWS_4XX if outcome in _CLIENTS else metrics.AWS_5XX
    return (metrics.AWS_INVOCATIONS, failed)


def dimensions_of(endpoint: Endpoint, variant: str) -> Dimensions:
    """Return tenant, EndpointName, VariantName and InferenceComponentName; the last is empty where there is none."""
    component = component_name(endpoint.name)
    if component is None:
        return endpoint.tenant, endpoint.name, variant, ""
    # What carries a component serves by the name endpoint/component.
    return endpoint.tenant, endpoint.served_name.partition("/")[0], variant, component


@dataclass(slots=True)
class VariantSeries:
    """The series of one variant."""

    dimensions: Dimensions
    _latency: LeanSummary | None = None
    _overhead: LeanSummary | None = None
    _activation: str = ""

    def counters(self, outcome: str) -> list[Counter]:
        """Return the children that count a request with this outcome."""
        return [metric.labels(*self.dimensions) for metric in counted_as(outcome)]

    def told(self, waited: Sequence[float], lasted: Sequence[float]) -> None:
        """Add answered requests: the seconds until they were sent to the engine, and until they were answered."""
        latency, overhead = self._latency, self._overhead
        if latency is None or overhead is None:
            latency = self._latency = metrics.AWS_MODEL_LATENCY.labels(*self.dimensions)
            overhead = self._overhead = metrics.AWS_OVERHEAD_LATENCY.labels(*self.dimensions)
        waited_s = max(0.0, sum(waited))
        latency.add(len(lasted), max(0.0, sum(lasted) - waited_s) * _MICROSECONDS)
        overhead.add(len(waited), waited_s * _MICROSECONDS)

    def served(self, grant: Grant) -> None:
        """Note an answered request, but for its times."""
        if grant.activation is not None and grant.activation.id != self._activation:
            self._activation = grant.activation.id
            setup_s = sum(grant.activation.phases_ms.values()) / 1000
            metrics.AWS_MODEL_SETUP_TIME.labels(*self.dimensions).observe(setup_s * _MICROSECONDS)
        if grant.desk.route.variant.provisioned is not None:
            counter = metrics.AWS_SPILLOVER_INVOCATIONS if grant.spillover else metrics.AWS_PROVISIONED_INVOCATIONS
            counter.labels(*self.dimensions).inc()


def refresh(desks: Iterable[Desk], before: Set[Dimensions]) -> frozenset[Dimensions]:
    """Set the gauges of serverless variants; called when somebody scrapes. Each gateway tells its own part.

    Returns what it has set; gauges of ``before``, what it had set the last time, that are not among them are removed.
    """
    present: set[Dimensions] = set()
    for desk in desks:
        variant = desk.route.variant
        limit, provisioned = variant.limit, variant.provisioned
        if desk.closed or limit is None:
            continue
        labels = dimensions_of(desk.route.endpoint, variant.name)
        present.add(labels)
        metrics.AWS_CONCURRENT_UTILIZATION.labels(*labels).set(desk.granted / limit)
        if provisioned is not None:
            kept = min(desk.granted, provisioned)
            metrics.AWS_PROVISIONED_EXECUTIONS.labels(*labels).set(kept)
            metrics.AWS_PROVISIONED_UTILIZATION.labels(*labels).set(kept / provisioned)
    for gone in before - present:
        for gauge in _GAUGES:
            gauge.remove_by_labels(dict(zip(_LABELS, gone, strict=True)))
    return frozenset(present)


def forget(endpoint: Endpoint) -> None:
    """Remove all series of a deleted endpoint."""
    tenant, name, _, component = dimensions_of(endpoint, "")
    labels: dict[str, Any] = {"tenant": tenant, "EndpointName": name, "InferenceComponentName": component}
    for metric in metrics.AWS:
        metric.remove_by_labels(labels)
