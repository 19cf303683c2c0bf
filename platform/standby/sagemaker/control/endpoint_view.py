"""DescribeEndpoint's answer: what is asked for and what there is, variant by variant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from standby.domain.aws import AwsKind
from standby.domain.endpoint import Endpoint, EndpointConfig, Variant
from standby.domain.instance import Instance
from standby.domain.names import HIDDEN, key
from standby.domain.serving import variants_now
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.endpoint_configs import config_name
from standby.sagemaker.control.images import container_of
from standby.sagemaker.control.status import CREATING, DELETING, UPDATING, endpoint_status, failure_reason
from standby.sagemaker.control.variants import serverless_config

_PASSING: Final = frozenset({CREATING, UPDATING, DELETING})
# Members of a production variant that its description repeats.
_REPEATED: Final = ("ManagedInstanceScaling", "RoutingConfig")


async def described(call: ControlCall, endpoint: Endpoint) -> dict[str, Any]:
    """Return the description; members that there is nothing to say of are left out."""
    entry = await call.records.config(call.tenant, endpoint.config)
    config = None if entry is None else entry.value
    resource = await call.records.resource(call.tenant, AwsKind.ENDPOINT, endpoint.name)
    said = resource.value if resource is not None and resource.value.created_at == endpoint.created_at else None
    told: dict[str, Any] = {
        "EndpointName": endpoint.name,
        "EndpointArn": call.arn(AwsKind.ENDPOINT, endpoint.name),
        "EndpointStatus": endpoint_status(endpoint),
        "FailureReason": failure_reason(endpoint),
        "CreationTime": endpoint.created_at,
        "LastModifiedTime": max(endpoint.updated_at, endpoint.created_at if said is None else said.modified_at),
        "LastDeploymentConfig": None if said is None else said.state.get("LastDeploymentConfig"),
    }
    if config is not None:
        told["EndpointConfigName"] = config_name(config)
        told["ProductionVariants"] = _variants(call, endpoint, config)
        told["AsyncInferenceConfig"] = config.request.get("AsyncInferenceConfig")
    if endpoint.pending_config is not None:
        told["PendingDeploymentSummary"] = await _pending(call, endpoint)
    return {name: value for name, value in told.items() if value is not None}


def _variants(call: ControlCall, endpoint: Endpoint, config: EndpointConfig) -> list[dict[str, Any]]:
    given = {item["VariantName"]: item for item in config.request.get("ProductionVariants", ())}
    instances = call.records.ready(endpoint)
    status = endpoint_status(endpoint)
    told = []
    for variant in variants_now(config, endpoint.capacities):
        one = _summary(variant, given.get(variant.name, {}), instances)
        image = _image(call, variant)
        if image is not None:
            one["DeployedImages"] = [{"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": endpoint.created_at}]
        if status in _PASSING:
            one["VariantStatus"] = [{"Status": status, "StartTime": endpoint.updated_at}]
        told.append(one)
    bare = [item for item in given.values() if item.get("ModelName") is None]
    return [*told, *(_of_components(item) for item in bare)]


def _of_components(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary of a variant whose models are inference components: their copies are counted, not instances."""
    weight = float(given.get("InitialVariantWeight", 1.0))
    told: dict[str, Any] = {"VariantName": given["VariantName"], "CurrentWeight": weight, "DesiredWeight": weight}
    told.update({member: given[member] for member in _REPEATED if given.get(member) is not None})
    return told


def _summary(variant: Variant, given: Mapping[str, Any], ready: Sequence[Instance]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "VariantName": variant.name,
        "CurrentWeight": variant.weight,
        "DesiredWeight": variant.weight,
        "CurrentInstanceCount": sum(instance.variant == variant.name for instance in ready),
        "DesiredInstanceCount": variant.policy.max_instances,
    }
    serverless = serverless_config(variant)
    if serverless is not None:
        # As with AWS, instances of a serverless variant are not the caller's to count.
        told["CurrentInstanceCount"] = told["DesiredInstanceCount"] = 0
        told["CurrentServerlessConfig"] = told["DesiredServerlessConfig"] = serverless
    told.update({member: given[member] for member in _REPEATED if given.get(member) is not None})
    return told


async def _pending(call: ControlCall, endpoint: Endpoint) -> dict[str, Any] | None:
    assert endpoint.pending_config is not None
    entry = await call.records.config(call.tenant, endpoint.pending_config)
    if entry is None:
        return None
    given = {item["VariantName"]: item for item in entry.value.request.get("ProductionVariants", ())}
    coming = variants_now(entry.value, endpoint.pending_capacities)
    variants = [_summary(variant, given.get(variant.name, {}), ()) for variant in coming]
    return {
        "EndpointConfigName": config_name(entry.value),
        "ProductionVariants": variants,
        "StartTime": endpoint.updated_at,
    }


def _image(call: ControlCall, variant: Variant) -> str | None:
    name = variant.model.partition(HIDDEN)[0]
    resource = call.records.known_resource(call.tenant, AwsKind.MODEL, name)
    if resource is not None and resource.request:
        image = container_of(resource.request).get("Image")
        return None if image is None else str(image)
    model = call.records.copies.models.entries.get(key(call.tenant, variant.model))
    return None if model is None else f"standby/{model.value.engine.value}"
