"""vLLM's own spans: how it is told where to send them, and what it needs for that. Pure.

Its span of a request becomes a child of the door's, whose ``traceparent`` it reads. It would also make spans of its own for
requests without one (probes, canaries) and for its start: the sampler keeps those only that somebody else has kept.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from standby.runtime.engines.base import EngineSpec

PACKAGES: Final = (
    "opentelemetry-sdk",
    "opentelemetry-exporter-otlp-proto-grpc",  # imported by vLLM, whichever of the two is used
    "opentelemetry-exporter-otlp-proto-http",
)


def missing(packages: Collection[str]) -> Sequence[str]:
    """Return which packages are not installed beside vLLM."""
    return [name for name in PACKAGES if name not in packages]


def arguments(url: str | None) -> list[str]:
    """Return the arguments for a collector's route for traces; None: no spans."""
    return [] if url is None else ["--otlp-traces-endpoint", url]


def environment(url: str | None, spec: EngineSpec) -> dict[str, str]:
    """Return what must be in its environment."""
    if url is None:
        return {}
    return {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        # A collector that is away must not hold up an engine that is told to end.
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
        "OTEL_SERVICE_NAME": "vllm",
        "OTEL_RESOURCE_ATTRIBUTES": f"standby.instance={spec.instance},standby.epoch={spec.epoch}",
    }
