"""DescribeInferenceComponent's answer: what was asked for, and how many copies there are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import Endpoint, EndpointConfig, Variant
from standby.domain.serving import variants_now
from standby.sagemaker.control.autoscaling_targets import target_of
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.status import IN_SERVICE, UPDATING, endpoint_status, failure_reason

COMPONENT: Final = AwsKind.INFERENCE_COMPONENT


def described(call: ControlCall, component: AwsResource, carrier: Endpoint) -> dict[str, Any]:
    """Return the description; members that there is nothing to say of are left out."""
    request = component.request
    desired, current = copies(call, component, carrier)
    told = {
        "InferenceComponentName": component.name,
        "InferenceComponentArn": call.arn(COMPONENT, component.name),
        "EndpointName": request["EndpointName"],
        "EndpointArn": call.arn(AwsKind.ENDPOINT, request["EndpointName"]),
        "VariantName": request["VariantName"],
        "FailureReason": failure_reason(carrier),
        "Specification": _specification(request["Specification"], component.created_at),
        "RuntimeConfig": {"DesiredCopyCount": desired, "CurrentCopyCount": current},
        "CreationTime": component.created_at,
        "LastModifiedTime": max(component.modified_at, carrier.updated_at),
        "InferenceComponentStatus": component_status(call, component, carrier),
        "LastDeploymentConfig": component.state.get("LastDeploymentConfig"),
    }
    return {name: value for name, value in told.items() if value is not None}


def component_status(call: ControlCall, component: AwsResource, carrier: Endpoint) -> str:
    """Return the status: that of its endpoint; Updating, too, while copies that were asked for are still on their way."""
    status = endpoint_status(carrier)
    if status != IN_SERVICE:
        return status
    desired, current = copies(call, component, carrier)
    return UPDATING if current < desired else status


def copies(call: ControlCall, component: AwsResource, carrier: Endpoint) -> tuple[int, int]:
    """Return how many copies there should be and how many answer.

    Where a scalable target is registered, the number follows demand within its bounds; else it is the CopyCount, and a copy
    that was woken beyond it counts only among those that answer.
    """
    ready = len(call.records.ready(carrier))
    variant = variant_now(call, carrier)
    least = 0 if variant is None else variant.policy.min_ready
    if variant is None or target_of(call.records, component.tenant, carrier) is None:
        return least, ready
    return min(variant.policy.max_instances, max(least, ready)), ready


def variant_now(call: ControlCall, carrier: Endpoint) -> Variant | None:
    """Return the one variant of a component's endpoint; None while its config is not here."""
    config: EndpointConfig | None = call.records.known_config(carrier)
    return None if config is None else variants_now(config, carrier.capacities)[0]


def _specification(given: Mapping[str, Any], made_at: float) -> dict[str, Any]:
    """Return the summary, which tells of a container's image otherwise than the request does."""
    told = dict(given)
    if (container := given.get("Container")) is not None:
        shown = {name: value for name, value in container.items() if name != "Image"}
        if (image := container.get("Image")) is not None:
            shown["DeployedImage"] = {"SpecifiedImage": image, "ResolvedImage": image, "ResolutionTime": made_at}
        told["Container"] = shown
    return told
