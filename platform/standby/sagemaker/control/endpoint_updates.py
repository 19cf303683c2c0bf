"""Changes of a running endpoint: to another config, and of its variants' weights and capacities.

The old config serves until the new one is good; the controller then lets the new one take over, or takes the update back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from standby.domain.aws import AwsKind
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, Variant, VariantCapacity
from standby.domain.serving import variants_now
from standby.sagemaker.control.autoscaling_targets import COUNT, PROVISIONED, Scaled, bounded, policies_of, target_of
from standby.sagemaker.control.config_rules import check_provisioned
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.endpoint_configs import config_name, own_config
from standby.sagemaker.control.endpoints import (
    ENDPOINT,
    change_companion,
    companion,
    models_wait,
    store_config,
    usage_of_tenant,
)
from standby.sagemaker.control.quotas import check_quota, usage_of
from standby.sagemaker.control.status import IN_SERVICE, endpoint_status, moving
from standby.sagemaker.errors import validation

_WEIGHT: Final = "DesiredWeight"
_COUNT: Final = "DesiredInstanceCount"


async def update_endpoint(call: ControlCall, request: Request) -> Request:
    """Begin the move to another config."""
    name = request["EndpointName"]
    endpoint = await _running(call, name)
    said = await companion(call, endpoint)
    config = await own_config(call, request["EndpointConfigName"], name, said.tags)
    if call.context.strict:
        await _check_kind(call, endpoint, config)
    await _check_components(call, endpoint, config)
    kept = _with_targets(call, endpoint, config, await _retained(call, endpoint, config, request))
    coming = usage_of(variants_now(config, kept))
    check_quota(call.context.quotas(call.tenant), usage_of_tenant(call, without=name), coming)
    await models_wait(call, config)
    await store_config(call, config)

    def pending(found: Endpoint) -> Endpoint:
        require_steady(call, found)
        return moving(found, config.name, kept)

    after = await call.records.change_endpoint(call.tenant, name, pending)
    if after is None:
        raise call.missing(ENDPOINT, name)
    if request.get("DeploymentConfig") is not None or not request.get("RetainDeploymentConfig", False):
        await change_companion(call, after, {"state": {"LastDeploymentConfig": request.get("DeploymentConfig")}})
    call.context.background.watch(call.tenant, name)
    await call.records.announce(after, f"moves to endpoint config {request['EndpointConfigName']}")
    return {"EndpointArn": call.arn(ENDPOINT, name)}


async def update_weights(call: ControlCall, request: Request) -> Request:
    """Change weights and capacities of the running config; they hold as soon as this has answered."""
    name = request["EndpointName"]
    endpoint = await _running(call, name)
    entry = await call.records.config(call.tenant, endpoint.config)
    if entry is None:
        raise call.missing(ENDPOINT, name)
    config, wanted = entry.value, request["DesiredWeightsAndCapacities"]
    _check_names(config, wanted)

    def changed(found: Endpoint) -> Endpoint:
        require_steady(call, found)
        if found.config != config.name:
            raise call.busy(name)
        now = {variant.name: variant for variant in variants_now(config, found.capacities)}
        capacities = dict(found.capacities)
        for one in wanted:
            variant = one["VariantName"]
            capacities[variant] = _capacity(capacities.get(variant, VariantCapacity()), now[variant], one)
        coming = variants_now(config, capacities)
        if sum(variant.weight for variant in coming) <= 0:
            raise validation("The weights of the production variants sum to 0, so none of them would get a request.")
        check_quota(call.context.quotas(call.tenant), usage_of_tenant(call, without=name), usage_of(coming))
        return found.model_copy(update={"capacities": capacities, "update_failure": None})

    after = await call.records.change_endpoint(call.tenant, name, changed)
    if after is None:
        raise call.missing(ENDPOINT, name)
    await call.records.announce(after, "weights and capacities changed")
    return {"EndpointArn": call.arn(ENDPOINT, name)}


def require_steady(call: ControlCall, endpoint: Endpoint) -> None:
    """Raise AwsError unless the endpoint is in service and nothing is under way."""
    status = endpoint_status(endpoint)
    if status == EndpointStatus.FAILED.value:
        raise validation(
            f'Cannot update endpoint "{call.arn(ENDPOINT, endpoint.name)}": its status is Failed, and a failed endpoint can '
            "only be deleted."
        )
    if status != IN_SERVICE:
        raise call.busy(endpoint.name)


async def _running(call: ControlCall, name: str) -> Endpoint:
    entry = await call.records.endpoint(call.tenant, name)
    if entry is None:
        raise call.missing(ENDPOINT, name)
    require_steady(call, entry.value)
    return entry.value


async def _retained(
    call: ControlCall, endpoint: Endpoint, config: EndpointConfig, request: Request
) -> dict[str, VariantCapacity]:
    """Return what variants of the same name keep of their present weight and count."""
    if not request.get("RetainAllVariantProperties", False):
        return {}
    excluded = {item["VariantPropertyType"] for item in request.get("ExcludeRetainedVariantProperties", ())}
    entry = await call.records.config(call.tenant, endpoint.config)
    now = {} if entry is None else {v.name: v for v in variants_now(entry.value, endpoint.capacities)}
    kept: dict[str, VariantCapacity] = {}
    for variant in config.variants:
        old = now.get(variant.name)
        if old is None:
            continue
        counted = old.concurrency_limit is None and variant.concurrency_limit is None and _COUNT not in excluded
        kept[variant.name] = VariantCapacity(
            weight=None if _WEIGHT in excluded else old.weight,
            max_instances=old.policy.max_instances if counted else None,
        )
    return kept


def _with_targets(
    call: ControlCall, endpoint: Endpoint, config: EndpointConfig, kept: Mapping[str, VariantCapacity]
) -> dict[str, VariantCapacity]:
    """Return the capacities with the bounds of the variants' scalable targets, which an update leaves as they are."""
    bound = dict(kept)
    for variant in config.variants:
        dimension = COUNT if variant.concurrency_limit is None else PROVISIONED
        target = target_of(call.records, call.tenant, endpoint, Scaled(dimension, endpoint.name, variant.name))
        if target is not None:
            capacity = bound.get(variant.name, VariantCapacity())
            bound[variant.name] = bounded(capacity, target, policies_of(call.records, target), variant.policy.slots)
    return bound


async def _check_components(call: ControlCall, endpoint: Endpoint, config: EndpointConfig) -> None:
    """An endpoint of inference components stays one: nobody could reach them otherwise."""
    entry = await call.records.config(call.tenant, endpoint.config)
    if entry is not None and bool(entry.value.variants) != bool(config.variants):
        raise validation(
            f'Cannot update endpoint "{call.arn(ENDPOINT, endpoint.name)}": an endpoint has either models or inference '
            "components, and an update does not change that. Create a new endpoint."
        )


async def _check_kind(call: ControlCall, endpoint: Endpoint, config: EndpointConfig) -> None:
    """In strict mode an endpoint with instances cannot become a serverless one, and there is no way back from serverless."""
    entry = await call.records.config(call.tenant, endpoint.config)
    if entry is None:
        return
    before, after = (_is_serverless(entry.value), _is_serverless(config))
    if not before and after:
        raise validation(
            f'Cannot update endpoint "{call.arn(ENDPOINT, endpoint.name)}" from instances to the serverless configuration '
            f'"{call.arn(AwsKind.ENDPOINT_CONFIG, config_name(config))}": create a new endpoint.'
        )


def _is_serverless(config: EndpointConfig) -> bool:
    return any(variant.concurrency_limit is not None for variant in config.variants)


def _check_names(config: EndpointConfig, wanted: Sequence[Mapping[str, Any]]) -> None:
    known = {variant.name for variant in config.variants}
    given = [one["VariantName"] for one in wanted]
    unknown = [variant for variant in given if variant not in known]
    if unknown:
        raise validation(
            f'The variant name(s) "{", ".join(unknown)}" is/are not present within endpoint configuration '
            f'"{config_name(config)}".'
        )
    doubles = sorted({variant for variant in given if given.count(variant) > 1})
    if doubles:
        raise validation(f"Production variants are given more than once: {', '.join(doubles)}")


def _capacity(so_far: VariantCapacity, variant: Variant, wanted: Mapping[str, Any]) -> VariantCapacity:
    changes: dict[str, Any] = {}
    if wanted.get(_WEIGHT) is not None:
        changes["weight"] = float(wanted[_WEIGHT])
    if wanted.get(_COUNT) is not None:
        changes["max_instances"] = _count(variant, int(wanted[_COUNT]))
    serverless: Mapping[str, Any] | None = wanted.get("ServerlessUpdateConfig")
    if serverless:
        if variant.concurrency_limit is None:
            raise validation(f"Production variant {variant.name} is not serverless and has no ServerlessUpdateConfig.")
        most = serverless.get("MaxConcurrency", variant.concurrency_limit)
        provisioned = serverless.get("ProvisionedConcurrency", variant.provisioned)
        check_provisioned(variant.name, provisioned, most)
        changes["concurrency_limit"] = most
        if provisioned is not None:
            changes |= {"provisioned": provisioned, "min_ready": max(1, variant.policy.min_ready)}
    return so_far.model_copy(update=changes)


def _count(variant: Variant, count: int) -> int:
    if variant.concurrency_limit is not None:
        raise validation(f"Production variant {variant.name} is serverless and has no DesiredInstanceCount.")
    if not 1 <= count <= 200:
        raise validation(f"DesiredInstanceCount {count} of production variant {variant.name} must be from 1 to 200.")
    return count


HANDLERS: Final[Mapping[str, Handler]] = {
    "UpdateEndpoint": update_endpoint,
    "UpdateEndpointWeightsAndCapacities": update_weights,
}
