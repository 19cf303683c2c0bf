"""What callers are told when a desk does not take their request. Pure."""

from __future__ import annotations

from standby.domain.endpoint import Endpoint, Variant
from standby.domain.errors import ColdWaitExceeded, EndpointFailed, EndpointNotFound, QueueFull, StandbyError, Throttled
from standby.gateway.admission import Admission, Verdict


def refusal_error(endpoint: Endpoint, variant: Variant, refusal: Admission) -> StandbyError:
    """Return the error for a refusal."""
    name = endpoint.name
    match refusal.verdict:
        case Verdict.QUEUE_FULL:
            return QueueFull(
                f"endpoint {name!r}: the waiting room is full: {refusal.reason}",
                remedy="retry later, or raise the endpoint's max_instances or slots",
                retry_after_s=refusal.retry_after_s,
            )
        case Verdict.THROTTLED:
            return Throttled(
                f"endpoint {name!r}, variant {variant.name!r}: {refusal.reason}",
                remedy="retry later, or raise the variant's concurrency limit",
                retry_after_s=refusal.retry_after_s,
            )
        case Verdict.GONE:
            return EndpointNotFound(f"endpoint {name!r} does not exist", remedy="list them with 'standby endpoints list'")
        case _:
            return EndpointFailed(
                f"endpoint {name!r} failed: {refusal.reason}",
                remedy=f"see 'standby endpoints show {name}'; retry with 'standby endpoints retry {name}'",
                retry_after_s=refusal.retry_after_s,
            )


def cold_wait_exceeded(endpoint: Endpoint, variant: Variant) -> ColdWaitExceeded:
    """Return the error for a request that has waited for ``max_cold_wait``."""
    why = f"; last failure: {endpoint.failure.reason}" if endpoint.failure is not None else ""
    limit = variant.policy.max_cold_wait
    return ColdWaitExceeded(
        f"endpoint {endpoint.name!r} was not ready within max_cold_wait ({limit:g} s); the activation goes on{why}",
        remedy="retry in a moment",
        retry_after_s=min(10.0, max(1.0, limit / 5)),
    )
