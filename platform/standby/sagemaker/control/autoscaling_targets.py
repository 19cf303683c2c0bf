"""Scalable targets: what they name, and what their bounds and policies mean to our own scaler.

==========================================  =========================================================================
Application Auto Scaling                    our scaler
==========================================  =========================================================================
DesiredCopyCount, DesiredInstanceCount      MinCapacity instances are kept ready, MaxCapacity is the most
DesiredProvisionedConcurrency               what MinCapacity requests at once need is kept ready; more count as spillover
ConcurrentRequestsPer… TargetValue          another instance is wanted above so many requests at once for each
Invocations…, …Utilization TargetValue      kept and described; instances follow the requests that are under way
ScaleInCooldown                             for how long fewer must have been enough before one is let go
DisableScaleIn                              none is let go, but for the last one, which falls asleep when it is idle
StepScaling                                 kept and described; a request that finds no instance wakes one by itself
==========================================  =========================================================================
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from standby.domain.aws import AwsKind, AwsResource, component_endpoint
from standby.domain.durations import FOREVER
from standby.domain.endpoint import Endpoint, VariantCapacity
from standby.sagemaker.control.owned import is_of
from standby.sagemaker.control.records import Records
from standby.sagemaker.errors import AwsError, validation

TARGET: Final = AwsKind.SCALABLE_TARGET
POLICY: Final = AwsKind.SCALING_POLICY
# In a policy's state: the name of the target that it belongs to.
OF_TARGET: Final = "target"
_MOST: Final = 200
_NAME: Final = r"[a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62}"
_CONCURRENT: Final = "ConcurrentRequests"


@dataclass(frozen=True, slots=True)
class Dimension:
    """What of a resource is scaled. ``word`` begins the names of its targets; ``least`` is the lowest MinCapacity."""

    name: str
    word: str
    form: str
    least: int
    metrics: frozenset[str]

    @property
    def pattern(self) -> str:
        """The regular expression of its resource ids."""
        return self.form.replace("NAME", f"({_NAME})")


_VARIANT: Final = "endpoint/NAME/variant/NAME"
PROVISIONED: Final = Dimension(
    "sagemaker:variant:DesiredProvisionedConcurrency",
    "provisioned",
    _VARIANT,
    1,
    frozenset({"SageMakerVariantProvisionedConcurrencyUtilization"}),
)
COUNT: Final = Dimension(
    "sagemaker:variant:DesiredInstanceCount",
    "count",
    _VARIANT,
    0,
    frozenset({"SageMakerVariantInvocationsPerInstance", "SageMakerVariantConcurrentRequestsPerModelHighResolution"}),
)
COPIES: Final = Dimension(
    "sagemaker:inference-component:DesiredCopyCount",
    "copies",
    "inference-component/NAME",
    0,
    frozenset(
        {
            "SageMakerInferenceComponentInvocationsPerCopy",
            "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution",
        }
    ),
)
DIMENSIONS: Final = {one.name: one for one in (PROVISIONED, COUNT, COPIES)}


class Scaled(NamedTuple):
    """What a resource id names: an endpoint of ours, and a variant of it; without one, its only one."""

    dimension: Dimension
    endpoint: str
    variant: str | None

    @property
    def target(self) -> str:
        """The name under which its scalable target is kept; no two resources share one."""
        return "_".join(part for part in (self.dimension.word, self.endpoint, self.variant) if part is not None)


def scaled_by(resource_id: str, dimension_name: str) -> Scaled:
    """Return what is to be scaled. Raises AwsError ValidationException."""
    dimension = DIMENSIONS.get(dimension_name)
    if dimension is None:
        raise validation(f"Unsupported service namespace, resource type or scalable dimension: {dimension_name}")
    match = re.fullmatch(dimension.pattern, resource_id)
    if match is None:
        raise validation(f"Invalid resource ID {resource_id[:200]} for {dimension_name}: expected {dimension.form}")
    if dimension is COPIES:
        return Scaled(dimension, component_endpoint(match[1]), None)
    return Scaled(dimension, match[1], match[2])


def check_bounds(dimension: Dimension, least: int | None, most: int | None) -> tuple[int, int]:
    """Return MinCapacity and MaxCapacity. Raises AwsError ValidationException."""
    if least is None or most is None:
        raise validation("MinCapacity and MaxCapacity are required when a scalable target is registered for the first time.")
    if least < dimension.least or most > _MOST:
        raise validation(
            f"MinCapacity {least} and MaxCapacity {most} of {dimension.name} must be from {dimension.least} to {_MOST}."
        )
    if most < least:
        raise validation(f"Maximum capacity cannot be less than minimum capacity: {most} is less than {least}.")
    return least, most


def check_policy(dimension: Dimension, request: Mapping[str, Any]) -> None:
    """Raise AwsError for a policy that cannot be followed, or that says nothing."""
    kind = request.get("PolicyType", "StepScaling")
    if kind == "PredictiveScaling":
        raise validation("PredictiveScaling is not supported for the service namespace sagemaker.")
    member = f"{kind}PolicyConfiguration"
    given: Mapping[str, Any] | None = request.get(member)
    if given is None:
        raise validation(f"A policy of type {kind} needs {member}.")
    if kind == "StepScaling":
        _check_steps(given)
    else:
        _check_tracking(dimension, given)


def target_of(records: Records, tenant: str, endpoint: Endpoint, scaled: Scaled | None = None) -> AwsResource | None:
    """Return the scalable target of an inference component's endpoint, or of what is ``scaled``; None: there is none."""
    wanted = scaled or Scaled(COPIES, endpoint.name, None)
    found = records.known_resource(tenant, TARGET, wanted.target)
    return found if found is not None and is_of(found, endpoint) else None


def policies_of(records: Records, target: AwsResource) -> list[AwsResource]:
    """Return the policies of a scalable target."""
    every = records.resources(target.tenant, POLICY)
    mine = {**target.state, OF_TARGET: target.name}
    return [one for one in every if all(one.state.get(name) == value for name, value in mine.items())]


def bounded(
    capacity: VariantCapacity, target: AwsResource, policies: Iterable[AwsResource] = (), slots: int = 1
) -> VariantCapacity:
    """Return the capacity as the target and its policies make it; see the table above. ``slots`` of one instance."""
    least, most = int(target.request["MinCapacity"]), int(target.request["MaxCapacity"])
    if target.request["ScalableDimension"] == PROVISIONED.name:
        return capacity.model_copy(update={"provisioned": least, "min_ready": math.ceil(least / slots)})
    tracking = [one.request.get("TargetTrackingScalingPolicyConfiguration") or {} for one in policies]
    loads = [float(one["TargetValue"]) for one in tracking if _follows_concurrency(one)]
    pauses = [
        FOREVER if one.get("DisableScaleIn") else float(one["ScaleInCooldown"])
        for one in tracking
        if one.get("DisableScaleIn") or "ScaleInCooldown" in one
    ]
    changes = {
        "min_ready": least,
        "max_instances": max(1, most),
        "scale_out_at": min(loads, default=None),
        "scale_in_after": max(pauses, default=None),
    }
    return capacity.model_copy(update=changes)


def unbounded(capacity: VariantCapacity, dimension: Dimension, ready: int) -> VariantCapacity:
    """Return the capacity after the target is gone: as many as there are now, as AWS leaves it."""
    if dimension is PROVISIONED:
        return capacity
    changes = {
        "min_ready": ready if dimension is COPIES else None,
        "max_instances": max(1, ready),
        "scale_out_at": None,
        "scale_in_after": None,
    }
    return capacity.model_copy(update=changes)


def no_target(request: Mapping[str, Any]) -> AwsError:
    """Return the refusal of what needs a scalable target that is not registered."""
    return AwsError("ObjectNotFoundException", f"No scalable target found for {named(request)}")


def named(request: Mapping[str, Any]) -> str:
    """Return how messages name a target."""
    return (
        f"service namespace: {request['ServiceNamespace']}, resource ID: {request['ResourceId']}, "
        f"scalable dimension: {request['ScalableDimension']}"
    )


def _follows_concurrency(tracking: Mapping[str, Any]) -> bool:
    return _CONCURRENT in str((tracking.get("PredefinedMetricSpecification") or {}).get("PredefinedMetricType", ""))


def _check_steps(given: Mapping[str, Any]) -> None:
    steps = given.get("StepAdjustments") or []
    if not steps or given.get("AdjustmentType") is None:
        raise validation("A step scaling policy needs AdjustmentType and at least one of StepAdjustments.")
    if len(steps) > 20:
        raise AwsError("LimitExceededException", f"A step scaling policy has at most 20 step adjustments, not {len(steps)}.")


def _check_tracking(dimension: Dimension, given: Mapping[str, Any]) -> None:
    predefined = (given.get("PredefinedMetricSpecification") or {}).get("PredefinedMetricType")
    if predefined is None:
        raise validation(
            "A target tracking policy needs PredefinedMetricSpecification: customized metrics are not followed here."
        )
    if predefined not in dimension.metrics:
        raise validation(
            f"The predefined metric {predefined} does not fit {dimension.name}: use {' or '.join(sorted(dimension.metrics))}."
        )
    for member in ("ScaleInCooldown", "ScaleOutCooldown"):
        if given.get(member, 0) < 0:
            raise validation(f"{member} {given[member]} must be 0 or more seconds.")
    value = float(given["TargetValue"])
    if not 0 < value < math.inf or (dimension is PROVISIONED and value > 1):
        limit = "above 0 and at most 1" if dimension is PROVISIONED else "above 0"
        raise validation(f"TargetValue {value:g} of {predefined} must be {limit}.")
