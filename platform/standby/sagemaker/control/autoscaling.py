"""Application Auto Scaling: targets and policies set the bounds of our own scaler, for variants and inference components."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from standby.domain.aws import AwsResource
from standby.domain.endpoint import Endpoint, EndpointStatus, Variant, VariantCapacity
from standby.domain.errors import Conflict
from standby.domain.serving import variants_now
from standby.sagemaker.control.autoscaling_targets import (
    OF_TARGET,
    POLICY,
    PROVISIONED,
    TARGET,
    Scaled,
    bounded,
    check_bounds,
    check_policy,
    named,
    no_target,
    policies_of,
    scaled_by,
    target_of,
    unbounded,
)
from standby.sagemaker.control.config_rules import check_provisioned
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.endpoints import usage_of_tenant
from standby.sagemaker.control.owned import has_owner, remember, told_by
from standby.sagemaker.control.quotas import check_quota, usage_of
from standby.sagemaker.control.records import aws_key, remove
from standby.sagemaker.errors import AwsError, validation
from standby.sagemaker.shapes.paging import Listing

SAGEMAKER: Final = "sagemaker"
MOST_TARGETS: Final = 500
MOST_POLICIES: Final = 50
_PAGE: Final = 50
_TRACKING: Final = "TargetTrackingScalingPolicyConfiguration"

_Change = Callable[[VariantCapacity, Variant], VariantCapacity]


async def register_scalable_target(call: ControlCall, request: Request) -> Request:
    """Bound what is scaled; members that are left out stay as they were registered."""
    scaled, endpoint = await _resolved(call, request)
    known = target_of(call.records, call.tenant, endpoint, scaled)
    if known is None and sum(1 for _ in _living(call, TARGET)) >= MOST_TARGETS:
        raise AwsError("LimitExceededException", f"There are already {MOST_TARGETS} scalable targets in this account.")
    tags = request.pop("Tags", None)
    before: Mapping[str, Any] = {} if known is None else known.request
    wanted = {**before, **request}
    check_bounds(scaled.dimension, wanted.get("MinCapacity"), wanted.get("MaxCapacity"))
    _check_suspended(wanted)
    target = _target(call, scaled, endpoint, wanted) if known is None else known.model_copy(update={"request": wanted})
    await _apply(call, scaled, endpoint, _bounds(call, target))
    changes = {"request": wanted, "modified_at": call.records.moment(), **({} if tags is None else {"tags": tags})}
    stored = await remember(call, target, changes)
    return {"ScalableTargetARN": _target_arn(call, stored)}


async def describe_scalable_targets(call: ControlCall, request: Request) -> Request:
    """Return a page of the targets of what still exists."""
    wanted, dimension = request.get("ResourceIds"), request.get("ScalableDimension")
    found = [
        one
        for one in _living(call, TARGET)
        if request["ServiceNamespace"] == SAGEMAKER
        and (not wanted or one.request["ResourceId"] in wanted)
        and dimension in (None, one.request["ScalableDimension"])
    ]
    page, more = _page(call, "DescribeScalableTargets", request, found)
    return {"ScalableTargets": [_told_target(call, one) for one in page], **more}


async def deregister_scalable_target(call: ControlCall, request: Request) -> Request:
    """Forget the target and its policies; there stay as many as there are."""
    scaled, endpoint = await _resolved(call, request)
    target = target_of(call.records, call.tenant, endpoint, scaled)
    if target is None:
        raise no_target(request)
    ready = len(call.records.ready(endpoint))
    await _apply(call, scaled, endpoint, lambda capacity, _variant: unbounded(capacity, scaled.dimension, ready))
    for one in (*policies_of(call.records, target), target):
        await _forget(call, one)
    return {}


async def put_scaling_policy(call: ControlCall, request: Request) -> Request:
    """Create or replace a policy of a registered target."""
    scaled, endpoint = await _resolved(call, request)
    target = target_of(call.records, call.tenant, endpoint, scaled)
    if target is None:
        raise no_target(request)
    check_policy(scaled.dimension, request)
    policy = _policy(call, target, request)
    others = [one for one in policies_of(call.records, target) if one.name != policy.name]
    _check_others(request, others)
    await _apply(call, scaled, endpoint, _bounds(call, target, [*others, policy]))
    stored = await remember(call, policy, {"request": policy.request, "modified_at": call.records.moment()})
    return {"PolicyARN": _policy_arn(call, stored), "Alarms": []}


async def describe_scaling_policies(call: ControlCall, request: Request) -> Request:
    """Return a page of the policies of what still exists."""
    names, resource, dimension = (request.get(name) for name in ("PolicyNames", "ResourceId", "ScalableDimension"))
    found = [
        one
        for one in _living(call, POLICY)
        if request["ServiceNamespace"] == SAGEMAKER
        and (not names or one.request["PolicyName"] in names)
        and resource in (None, one.request["ResourceId"])
        and dimension in (None, one.request["ScalableDimension"])
    ]
    page, more = _page(call, "DescribeScalingPolicies", request, found)
    return {"ScalingPolicies": [_told_policy(call, one) for one in page], **more}


async def delete_scaling_policy(call: ControlCall, request: Request) -> Request:
    """Forget a policy; the target's bounds stay."""
    scaled, endpoint = await _resolved(call, request)
    target = target_of(call.records, call.tenant, endpoint, scaled)
    policies = [] if target is None else policies_of(call.records, target)
    gone = [one for one in policies if one.request["PolicyName"] == request["PolicyName"]]
    if target is None or not gone:
        told = f"{named(request)}, policy name: {request['PolicyName']}"
        raise AwsError("ObjectNotFoundException", f"No scaling policy found for {told}")
    await _apply(call, scaled, endpoint, _bounds(call, target, [one for one in policies if one not in gone]))
    await _forget(call, gone[0])
    return {}


# ---- what is scaled ------------------------------------------------------------------------------------------------------


async def _resolved(call: ControlCall, request: Request) -> tuple[Scaled, Endpoint]:
    """Return what a request names. Raises AwsError where it does not exist."""
    if request["ServiceNamespace"] != SAGEMAKER:
        raise validation(f"The service namespace {request['ServiceNamespace']} is not there: only {SAGEMAKER} is.")
    scaled = scaled_by(request["ResourceId"], request["ScalableDimension"])
    entry = await call.records.endpoint(call.tenant, scaled.endpoint)
    if entry is None or entry.value.status is EndpointStatus.DELETING:
        raise validation(f"The resource {request['ResourceId']} does not exist.")
    return scaled, entry.value


async def _apply(call: ControlCall, scaled: Scaled, endpoint: Endpoint, change: _Change) -> None:
    """Change the capacity of what is scaled. Raises AwsError ConcurrentUpdateException while an update is under way."""
    entry = await call.records.config(call.tenant, endpoint.config)
    if entry is None:
        raise _concurrent(scaled)
    config = entry.value
    name = scaled.variant or config.variants[0].name
    if name not in {variant.name for variant in config.variants}:
        raise validation(f"The variant {name} is not present within endpoint {endpoint.name}.")

    def changed(found: Endpoint) -> Endpoint:
        if found.config != config.name or found.pending_config is not None:
            raise _concurrent(scaled)
        now = {variant.name: variant for variant in variants_now(config, found.capacities)}[name]
        capacity = change(found.capacities.get(name, VariantCapacity()), now)
        capacities = {**found.capacities, name: capacity}
        coming = variants_now(config, capacities)
        usage = usage_of(coming, endpoints=0)
        check_quota(call.context.quotas(call.tenant), usage_of_tenant(call, without=endpoint.name), usage)
        return found.model_copy(update={"capacities": capacities})

    try:
        after = await call.records.change_endpoint(call.tenant, endpoint.name, changed)
    except Conflict as error:
        raise _concurrent(scaled) from error
    if after is None:
        raise validation(f"The resource of {scaled.dimension.name} does not exist any more.")
    await call.records.announce(after, f"the bounds of {scaled.dimension.name} changed")


def _bounds(call: ControlCall, target: AwsResource, policies: Iterable[AwsResource] | None = None) -> _Change:
    """Return the change that a target and its policies make, by what is stored unless ``policies`` are given."""
    followed = list(policies_of(call.records, target) if policies is None else policies)

    def change(capacity: VariantCapacity, variant: Variant) -> VariantCapacity:
        if target.request["ScalableDimension"] == PROVISIONED.name:
            if variant.concurrency_limit is None:
                raise validation(f"Production variant {variant.name} is not serverless and has no provisioned concurrency.")
            check_provisioned(variant.name, int(target.request["MinCapacity"]), variant.concurrency_limit)
        elif variant.concurrency_limit is not None:
            raise validation(f"Production variant {variant.name} is serverless and has no instances to count.")
        return bounded(capacity, target, followed, variant.policy.slots)

    return change


def _concurrent(scaled: Scaled) -> AwsError:
    told = f"An update of what {scaled.dimension.name} scales is under way; try again when it has ended."
    return AwsError("ConcurrentUpdateException", told)


# ---- records -------------------------------------------------------------------------------------------------------------


def _target(call: ControlCall, scaled: Scaled, endpoint: Endpoint, request: Mapping[str, Any]) -> AwsResource:
    now = call.records.moment()
    return AwsResource(
        tenant=call.tenant,
        kind=TARGET,
        name=scaled.target,
        request=dict(request),
        state=told_by(endpoint),
        created_at=now,
        modified_at=now,
    )


def _policy(call: ControlCall, target: AwsResource, request: Mapping[str, Any]) -> AwsResource:
    now = call.records.moment()
    return AwsResource(
        tenant=call.tenant,
        kind=POLICY,
        name=f"{target.name}_{hashlib.sha256(request['PolicyName'].encode()).hexdigest()[:16]}",
        request={"PolicyType": "StepScaling", **request},
        state={**target.state, OF_TARGET: target.name},
        created_at=now,
        modified_at=now,
    )


def _check_others(request: Mapping[str, Any], others: list[AwsResource]) -> None:
    if len(others) >= MOST_POLICIES:
        raise AwsError("LimitExceededException", f"There are already {MOST_POLICIES} scaling policies of this target.")
    metric = _metric(request)
    if metric is not None and any(_metric(one.request) == metric for one in others):
        raise validation("Only one TargetTrackingScaling policy for a given metric specification is allowed.")


def _metric(request: Mapping[str, Any]) -> str | None:
    specification = (request.get(_TRACKING) or {}).get("PredefinedMetricSpecification") or {}
    return specification.get("PredefinedMetricType")


def _check_suspended(request: Mapping[str, Any]) -> None:
    suspended = sorted(name for name, value in (request.get("SuspendedState") or {}).items() if value)
    if suspended:
        raise validation(f"{', '.join(suspended)}: scaling cannot be suspended here. Set MinCapacity and MaxCapacity instead.")


def _living(call: ControlCall, kind: Any) -> Iterable[AwsResource]:
    return (one for one in call.records.resources(call.tenant, kind) if has_owner(call.records, one))


async def _forget(call: ControlCall, resource: AwsResource) -> None:
    await remove(call.records.copies.aws, call.records.tables.aws, aws_key(call.tenant, resource.kind, resource.name))


# ---- answers -------------------------------------------------------------------------------------------------------------


def _page(
    call: ControlCall, operation: str, request: Request, found: list[AwsResource]
) -> tuple[list[AwsResource], dict[str, Any]]:
    size = int(request.get("MaxResults", _PAGE))
    if not 1 <= size <= _PAGE:
        raise validation(f"MaxResults {size} must be from 1 to {_PAGE}.")
    listing = Listing(call.tenant, operation, request)
    try:
        page = call.context.pager.page(
            listing, found, place=lambda one: (one.created_at, one.name), size=size, token=request.get("NextToken")
        )
    except AwsError as error:
        raise AwsError("InvalidNextTokenException", error.message) from error
    return page.items, {} if page.next_token is None else {"NextToken": page.next_token}


def _told_target(call: ControlCall, target: AwsResource) -> dict[str, Any]:
    role = (
        f"arn:aws:iam::{call.tenant}:role/aws-service-role/sagemaker.application-autoscaling.amazonaws.com/"
        "AWSServiceRoleForApplicationAutoScaling_SageMakerEndpoint"
    )
    off = {f"{name}Suspended": False for name in ("DynamicScalingIn", "DynamicScalingOut", "ScheduledScaling")}
    return {
        "RoleARN": role,
        "SuspendedState": off,
        **{name: value for name, value in target.request.items() if name != "SuspendedState"},
        "CreationTime": target.created_at,
        "ScalableTargetARN": _target_arn(call, target),
    }


def _told_policy(call: ControlCall, policy: AwsResource) -> dict[str, Any]:
    return {**policy.request, "PolicyARN": _policy_arn(call, policy), "CreationTime": policy.created_at, "Alarms": []}


def _target_arn(call: ControlCall, target: AwsResource) -> str:
    short = hashlib.sha256(f"{target.tenant}/{target.name}".encode()).hexdigest()[:32]
    return f"arn:aws:application-autoscaling:{call.context.region}:{call.tenant}:scalable-target/{short}"


def _policy_arn(call: ControlCall, policy: AwsResource) -> str:
    request, one = policy.request, uuid.uuid5(uuid.NAMESPACE_OID, f"{policy.tenant}/{policy.name}")
    return (
        f"arn:aws:autoscaling:{call.context.region}:{call.tenant}:scalingPolicy:{one}:resource/{SAGEMAKER}/"
        f"{request['ResourceId']}:policyName/{request['PolicyName']}"
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    "DeleteScalingPolicy": delete_scaling_policy,
    "DeregisterScalableTarget": deregister_scalable_target,
    "DescribeScalableTargets": describe_scalable_targets,
    "DescribeScalingPolicies": describe_scaling_policies,
    "PutScalingPolicy": put_scaling_policy,
    "RegisterScalableTarget": register_scalable_target,
}
