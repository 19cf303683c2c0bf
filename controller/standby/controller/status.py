"""The status of an endpoint, as it follows from its instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standby.controller.actions import MarkEndpoint
from standby.controller.view import EndpointView, Placed
from standby.domain.endpoint import NO_MEMORY, EndpointStatus, Failure

NO_CAPACITY: Final = "no_capacity"


def mark(endpoint: EndpointView, live: Sequence[Placed], no_fit: str | None, *, complete: bool) -> MarkEndpoint | None:
    """Return the change of status that is due, or None.

    ``live``: assignments of the present generation on living nodes. ``no_fit`` is why nothing can be placed although it
    should be. Failed after the first failure while nothing is ready; in service again when an instance
    becomes ready, when a retry raised the generation, or when room appeared. An endpoint at zero is in service. One that
    is being created is so when ``complete``: each variant has as many ready instances as it is to keep, or cannot have them;
    whoever creates one that keeps none says so himself. The end of an update is marked where that is decided.
    """
    if endpoint.deleting or endpoint.record.pending_config is not None:
        return None
    creating = endpoint.record.status is EndpointStatus.CREATING
    if any(placed.ready for placed in live):
        return _in_service(endpoint, "an instance is ready") if complete or not creating else None
    failure = _worst([placed for placed in live if placed.failed])
    if failure is not None and failure.code == NO_MEMORY:
        no_fit = failure.reason  # of the node's own ledger, which knows better than the estimate that chose the node
    elif failure is not None:
        return _failed(endpoint, failure.model_copy(update={"generation": endpoint.record.generation}))
    if no_fit is not None:
        return _failed(endpoint, Failure(reason=no_fit, code=NO_CAPACITY, generation=endpoint.record.generation, at=0.0))
    if creating or (endpoint.record.status is EndpointStatus.FAILED and not _cleared(endpoint)):
        return None
    return _in_service(endpoint, "it can be asked; no instance is needed for that")


def failed_for_good(endpoint: EndpointView, variant: str) -> bool:
    """Whether the endpoint is Failed because the variant's engine does not start, and nobody asked for a retry since."""
    failure = endpoint.record.failure
    others = failure is not None and failure.variant not in ("", variant)
    return endpoint.record.status is EndpointStatus.FAILED and not _cleared(endpoint) and not others


def starved(endpoint: EndpointView) -> bool:
    """Whether the endpoint is Failed because no node had room."""
    failure = endpoint.record.failure
    return endpoint.record.status is EndpointStatus.FAILED and failure is not None and failure.code == NO_CAPACITY


def _cleared(endpoint: EndpointView) -> bool:
    failure = endpoint.record.failure
    if failure is None or failure.code == NO_CAPACITY:
        return True
    return failure.generation is not None and failure.generation < endpoint.record.generation


def _worst(failed: Sequence[Placed]) -> Failure | None:
    failures = [failure for placed in failed if (failure := placed.failure) is not None]
    if failures:
        return max(failures, key=lambda failure: (failure.attempts, failure.at))
    return Failure(reason="the instance failed without saying why") if failed else None


def _in_service(endpoint: EndpointView, reason: str) -> MarkEndpoint | None:
    if endpoint.record.status is EndpointStatus.IN_SERVICE and endpoint.record.failure is None:
        return None
    return _change(endpoint, EndpointStatus.IN_SERVICE, None, reason)


def _failed(endpoint: EndpointView, failure: Failure) -> MarkEndpoint | None:
    known = endpoint.record.failure
    if endpoint.record.status is EndpointStatus.FAILED and known is not None:
        if failure.code == NO_CAPACITY and known.code == NO_CAPACITY:
            return None  # the free bytes in its text move with every beat of a node
        if known == failure:
            return None
    return _change(endpoint, EndpointStatus.FAILED, failure, failure.reason)


def _change(endpoint: EndpointView, status: EndpointStatus, failure: Failure | None, reason: str) -> MarkEndpoint:
    return MarkEndpoint(
        key=endpoint.key,
        revision=endpoint.revision,
        tenant=endpoint.record.tenant,
        endpoint=endpoint.record.name,
        status=status,
        failure=failure,
        reason=reason,
    )
