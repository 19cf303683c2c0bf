"""What callers are told when a desk does not take their request. Pure."""

from __future__ import annotations

from standby.domain.endpoint import Endpoint, Variant
from standby.domain.errors import (
    ColdWaitExceeded,
    EndpointFailed,
    EndpointNotFound,
    Overloaded,
    QueueFull,
    StandbyError,
    Throttled,
    WaitExceeded,
)
from standby.domain.priority import Priority
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
        case Verdict.OVERLOADED:
            return Overloaded(
                f"endpoint {name!r} is overloaded: {refusal.reason}",
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


def cold_wait_exceeded(endpoint: Endpoint, variant: Variant, climb_s: float | None) -> ColdWaitExceeded:
    """Return the error for a request that has waited for ``max_cold_wait``; ``climb_s``: what is left of the climb."""
    why = f"; last failure: {endpoint.failure.reason}" if endpoint.failure is not None else ""
    limit = variant.policy.max_cold_wait
    return ColdWaitExceeded(
        f"endpoint {endpoint.name!r} was not ready within max_cold_wait ({limit:g} s); the activation goes on{why}",
        remedy="retry in a moment",
        retry_after_s=min(10.0, max(1.0, limit / 5)) if climb_s is None else max(1.0, climb_s),
    )


def wait_exceeded(endpoint: Endpoint, priority: Priority, limit_s: float, limit: str, wait_s: float | None) -> WaitExceeded:
    """Return the error for a request that got no slot of a busy endpoint in time.

    ``limit`` names the setting of ``limit_s``; ``wait_s``: the wait that is predicted for the next one, None: unknown.
    """
    return WaitExceeded(
        f"endpoint {endpoint.name!r}: no slot was free within {limit} ({limit_s:g} s) for priority {priority.value}",
        remedy="retry later, or raise the endpoint's max_instances or slots",
        retry_after_s=1.0 if wait_s is None else max(1.0, wait_s),
    )
