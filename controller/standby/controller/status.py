"""The status of an endpoint, as it follows from its instances.

A backend of a variant that has several does not make the endpoint Failed while another one of them can serve: the endpoint
is in service then, and its record says what fails, so that requests can go round it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from standby.controller.actions import MarkEndpoint
from standby.controller.view import EndpointView, Placed
from standby.domain.endpoint import NO_MEMORY, EndpointStatus, Failure

NO_CAPACITY: Final = "no_capacity"
# A variant's name and its backend's label, empty where it has none.
Part: TypeAlias = tuple[str, str]


def mark(endpoint: EndpointView, live: Sequence[Placed], no_fit: Mapping[Part, str], *, complete: bool) -> MarkEndpoint | None:
    """Return the change of status that is due, or None.

    ``live``: assignments of the present generation on living nodes. ``no_fit`` is why nothing can be placed of a
    part although it should be. Failed after the first failure while nothing is ready; in service again when an instance
    becomes ready, when a retry raised the generation, or when room appeared. An endpoint at zero is in service. One that
    is being created is so when ``complete``: each variant has as many ready instances as it is to keep, or cannot have them;
    whoever creates one that keeps none says so himself. The end of an update is marked where that is decided.
    """
    if endpoint.deleting or endpoint.record.pending_config is not None:
        return None
    creating = endpoint.record.status is EndpointStatus.CREATING
    troubles = _troubles(endpoint, live, no_fit)
    aside = _shown({part: failure for part, failure in troubles.items() if _another_can(endpoint, part, troubles, live)})
    if any(placed.ready for placed in live):
        return _in_service(endpoint, "an instance is ready", aside) if complete or not creating else None
    failure = _shown({part: trouble for part, trouble in troubles.items() if not _another_can(endpoint, part, troubles, live)})
    if failure is not None:
        return _failed(endpoint, failure)
    if creating or (endpoint.record.status is EndpointStatus.FAILED and aside is None and not _cleared(endpoint)):
        return None
    reason = "it can be asked; no instance is needed for that"
    return _in_service(endpoint, reason if aside is None else "another backend can serve", aside)


def _troubles(endpoint: EndpointView, live: Sequence[Placed], no_fit: Mapping[Part, str]) -> dict[Part, Failure]:
    """Return by part why it cannot serve: its engine does not start, or nothing has room for it."""
    generation = endpoint.record.generation
    troubles: dict[Part, Failure] = {}
    for part in dict.fromkeys((*(placed.part for placed in live), *no_fit)):
        failure = _worst([placed for placed in live if placed.failed and placed.part == part])
        if failure is not None and failure.code != NO_MEMORY:
            troubles[part] = failure.model_copy(update={"generation": generation})
            continue
        # The node's own ledger knows better than the estimate that chose the node.
        reason = no_fit.get(part) if failure is None else failure.reason
        if reason is not None:
            told = {"variant": part[0], "backend": part[1]} if part[1] else {}
            troubles[part] = Failure(reason=reason, code=NO_CAPACITY, generation=generation, at=0.0, **told)
    return troubles


def _another_can(endpoint: EndpointView, part: Part, troubles: Mapping[Part, Failure], live: Sequence[Placed]) -> bool:
    """Whether the variant has a backend that can serve instead of the one in trouble, as far as anybody knows."""
    name, backend = part
    if not backend or endpoint.config is None:
        return False
    if any(placed.ready and placed.part[0] == name for placed in live):
        return True
    labels = (one.label for variant in endpoint.config.variants if variant.name == name for one in variant.backends)
    return any((name, label) not in troubles for label in labels)


def _shown(troubles: Mapping[Part, Failure]) -> Failure | None:
    """Return the failure to show: of an engine that does not start before want of room, the most frequent one first."""
    failures = troubles.values()
    return max(failures, key=lambda one: (one.code != NO_CAPACITY, one.attempts, one.at), default=None)


def failed_for_good(endpoint: EndpointView, variant: str) -> bool:
    """Whether the endpoint is Failed because the variant's engine does not start, and nobody asked for a retry since."""
    failure = endpoint.record.failure
    others = failure is not None and failure.variant not in ("", variant)
    return endpoint.record.status is EndpointStatus.FAILED and not _cleared(endpoint) and not others


def starved(endpoint: EndpointView, part: Part) -> bool:
    """Whether the endpoint is Failed, or goes without this backend, because no node had room."""
    failure = endpoint.record.failure
    if failure is None or failure.code != NO_CAPACITY:
        return False
    return endpoint.record.status is EndpointStatus.FAILED or (bool(part[1]) and part == (failure.variant, failure.backend))


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


def _in_service(endpoint: EndpointView, reason: str, aside: Failure | None = None) -> MarkEndpoint | None:
    """``aside``: why one backend does not serve while another one can."""
    known = endpoint.record.failure
    if endpoint.record.status is EndpointStatus.IN_SERVICE and _same(known, aside):
        return None
    if aside is not None:
        reason = f"{reason}; backend {aside.backend} cannot serve: {aside.reason}"
    return _change(endpoint, EndpointStatus.IN_SERVICE, aside, reason)


def _same(known: Failure | None, failure: Failure | None) -> bool:
    if known is None or failure is None:
        return known is failure
    if failure.code == NO_CAPACITY and known.code == NO_CAPACITY:
        # the free bytes in its text move with every beat of a node
        return (failure.variant, failure.backend) == (known.variant, known.backend)
    return known == failure


def _failed(endpoint: EndpointView, failure: Failure) -> MarkEndpoint | None:
    if endpoint.record.status is EndpointStatus.FAILED and _same(endpoint.record.failure, failure):
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
