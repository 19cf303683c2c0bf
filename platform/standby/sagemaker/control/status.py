"""Our records in AWS's words: an endpoint's status, and why it failed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from standby.domain.endpoint import DEFAULT_VARIANT, Endpoint, EndpointStatus, Failure, Variant, VariantCapacity
from standby.sagemaker.control.inspected import Servable, Verdict

LONGEST_REASON: Final = 1024
# Codes of failures: the artifact cannot be served; no node has room (as the controller says it).
ARTIFACT: Final = "artifact"

# What people search for in their logs; our own cause follows.
_PING: Final = (
    "The primary container for production variant {variant} did not pass the ping health check. "
    "Please check CloudWatch logs for this endpoint."
)
_CAPACITY: Final = (
    "Unable to provision requested ML compute capacity for production variant {variant} due to "
    "InsufficientInstanceCapacity error. Please retry using a different ML instance type or after some time."
)
_ARTIFACT: Final = "The model of production variant {variant} cannot be served."

_TEXTS: Final = {ARTIFACT: _ARTIFACT, "no_capacity": _CAPACITY, "no_memory": _CAPACITY}

FAILED: Final = "Failed"
UPDATING: Final = "Updating"
CREATING: Final = "Creating"
DELETING: Final = "Deleting"
IN_SERVICE: Final = "InService"


def endpoint_status(endpoint: Endpoint) -> str:
    """Return SageMaker's EndpointStatus.

    ==========================================  ==========
    our record                                  AWS's word
    ==========================================  ==========
    Deleting                                    Deleting
    a config is pending, or Updating            Updating
    Creating, InService, Failed                 the same
    ==========================================  ==========
    """
    if endpoint.status is EndpointStatus.DELETING:
        return DELETING
    if endpoint.pending_config is not None:
        return UPDATING
    return endpoint.status.value


def failure_reason(endpoint: Endpoint) -> str | None:
    """Return SageMaker's FailureReason: of the endpoint, or of its last update that was rolled back; None without one."""
    failure = endpoint.failure if endpoint.status is EndpointStatus.FAILED else endpoint.update_failure
    if failure is None:
        return None
    text = _TEXTS.get(failure.code, _PING)
    told = [text.format(variant=failure.variant or DEFAULT_VARIANT), f"Cause: {failure.reason}"]
    if failure.first_error and failure.first_error not in failure.reason:
        told.append(f"First error: {failure.first_error}")
    return " ".join(told)[:LONGEST_REASON]


def moving(endpoint: Endpoint, config: str, capacities: Mapping[str, VariantCapacity]) -> Endpoint:
    """Return the endpoint on its way to another config; how its last update failed is forgotten."""
    changes: dict[str, Any] = {
        "pending_config": config,
        "pending_capacities": dict(capacities),
        "update_failure": None,
        "status": EndpointStatus.UPDATING,
    }
    return endpoint.model_copy(update=changes)


class Settled(NamedTuple):
    """What follows from the verdicts on the models of an endpoint's next config; ``failure`` None: they are good."""

    failure: Failure | None


def settled(variants: Iterable[Variant], verdicts: Iterable[Verdict], now: float) -> Settled | None:
    """Return what is known for certain; None while a model is still being looked at."""
    waits = False
    for variant, verdict in zip(variants, verdicts, strict=True):
        if verdict.servable in (Servable.FAILED, Servable.MISSING):
            return Settled(Failure(reason=verdict.reason, code=ARTIFACT, at=now, variant=variant.name))
        waits = waits or verdict.servable is Servable.WAITING
    return None if waits else Settled(None)


def concluded(endpoint: Endpoint, variants: Iterable[Variant], verdict: Settled) -> Endpoint | None:
    """Return the endpoint after ``verdict`` on the config that it waits for; None where there is nothing to change.

    A failed creation is Failed; a failed update is taken back, and what served goes on. What is good is in service, except
    where instances are to be kept ready: then the controller says when they are, and it also completes updates.
    """
    changes: dict[str, Any] = {}
    if endpoint.status is EndpointStatus.DELETING:
        return None
    failure = verdict.failure
    if endpoint.pending_config is not None and failure is not None:
        changes = {"pending_config": None, "pending_capacities": {}, "update_failure": failure}
        changes["status"] = EndpointStatus.IN_SERVICE if endpoint.status is EndpointStatus.UPDATING else endpoint.status
    elif endpoint.pending_config is None and endpoint.status is EndpointStatus.CREATING:
        if failure is not None:
            told = failure.model_copy(update={"generation": endpoint.generation})
            changes = {"status": EndpointStatus.FAILED, "failure": told}
        elif not any(variant.policy.min_ready for variant in variants):
            changes = {"status": EndpointStatus.IN_SERVICE}
    return endpoint.model_copy(update=changes) if changes else None
