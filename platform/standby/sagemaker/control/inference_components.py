"""Inference components: a model and a number of copies on an endpoint whose variant names no model.

Our own endpoint that carries a component decides whether it exists and how it is; beside it lies what AWS's clients said.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standby.domain.aws import AwsKind, AwsResource, component_endpoint
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus, VariantCapacity
from standby.domain.errors import InvalidInput, RevisionConflict
from standby.domain.names import key
from standby.sagemaker.control import inspected
from standby.sagemaker.control.autoscaling_targets import bounded, target_of
from standby.sagemaker.control.component_view import COMPONENT, component_status, described
from standby.sagemaker.control.components import (
    component_variant,
    container_request,
    copies_of,
    specification_of,
    with_copies,
)
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.endpoint_configs import config_name
from standby.sagemaker.control.endpoints import models_wait, store_config, stored, usage_of_tenant, when_settled
from standby.sagemaker.control.images import container_of
from standby.sagemaker.control.inspection import check_container
from standby.sagemaker.control.listing import Listed, listed_page
from standby.sagemaker.control.owned import is_of, remember
from standby.sagemaker.control.quotas import check_quota, usage_of
from standby.sagemaker.control.records import aws_key, create, hidden_name
from standby.sagemaker.control.status import DELETING, FAILED, IN_SERVICE, endpoint_status, moving
from standby.sagemaker.control.tagging import policy_of, tags_of, traffic_of
from standby.sagemaker.control.traffic import traffic_from
from standby.sagemaker.errors import AwsError, validation

ENDPOINT: Final = AwsKind.ENDPOINT
_SPECIFICATION: Final = "Specification"


async def create_inference_component(call: ControlCall, request: Request) -> Request:
    """Create the component: in service at once with no copies, else as soon as all copies answer."""
    name, tags = request["InferenceComponentName"], tags_of(request.pop("Tags", None))
    wanted: Request = {_SPECIFICATION: specification_of(request)}
    wanted |= {member: request[member] for member in ("EndpointName", "RuntimeConfig") if member in request}
    wanted["VariantName"] = await _variant_name(call, request)
    carrier = component_endpoint(name)
    if await call.records.endpoint(call.tenant, carrier) is not None:
        raise call.existing(COMPONENT, name)
    config = await _config(call, name, wanted, tags)
    check_quota(call.context.quotas(call.tenant), usage_of_tenant(call), usage_of(config.variants, endpoints=0))
    waits = await models_wait(call, config)
    try:
        endpoint = await stored(call, carrier, config, waits=waits, served_name=f"{request['EndpointName']}/{name}")
    except RevisionConflict as error:
        raise call.existing(COMPONENT, name) from error
    await remember(call, _fresh(call, endpoint, name), {"request": wanted, "tags": tags, "state": {}})
    call.context.background.watch(call.tenant, carrier)
    await call.records.announce(endpoint, f"inference component {name} of endpoint {request['EndpointName']}")
    return {"InferenceComponentArn": call.arn(COMPONENT, name)}


async def update_inference_component(call: ControlCall, request: Request) -> Request:
    """Begin the move to another specification, other copies, or both; the old ones serve until the new ones do."""
    name = request["InferenceComponentName"]
    component, endpoint = await _steady(call, name)
    if not any(request.get(member) for member in (_SPECIFICATION, "Specifications", "RuntimeConfig")):
        raise validation("Give at least one of Specification, Specifications and RuntimeConfig.")
    wanted = dict(component.request)
    if request.get("RuntimeConfig") is not None:
        wanted["RuntimeConfig"] = request["RuntimeConfig"]
    if request.get(_SPECIFICATION) is None and not request.get("Specifications"):
        await _set_copies(call, name, endpoint, copies_of(wanted))
    else:
        wanted[_SPECIFICATION] = specification_of(request, component.request[_SPECIFICATION])
        await _move(call, name, endpoint, wanted, component.tags)
    changes = {"request": wanted, "state": {"LastDeploymentConfig": request.get("DeploymentConfig")}}
    await _rewrite(call, component, changes)
    return {"InferenceComponentArn": call.arn(COMPONENT, name)}


async def update_runtime_config(call: ControlCall, request: Request) -> Request:
    """Ask for another number of copies; the same ones go on serving."""
    name, wanted = request["InferenceComponentName"], request["DesiredRuntimeConfig"]
    component, endpoint = await _steady(call, name)
    await _set_copies(call, name, endpoint, copies_of(request, "DesiredRuntimeConfig"))
    await _rewrite(call, component, {"request": {**component.request, "RuntimeConfig": wanted}})
    return {"InferenceComponentArn": call.arn(COMPONENT, name)}


async def describe_inference_component(call: ControlCall, request: Request) -> Request:
    """Return the component as it is; where it is about to change, as it is after the change if that takes a moment only."""
    name = request["InferenceComponentName"]
    await when_settled(call, component_endpoint(name))
    component, endpoint = await _found(call, name)
    return described(call, component, endpoint)


async def list_inference_components(call: ControlCall, request: Request) -> Request:
    """Return a page of the tenant's components."""
    endpoint, variant = request.get("EndpointNameEquals"), request.get("VariantNameEquals")
    found: dict[str, AwsResource] = {}
    items = []
    for one in call.records.resources(call.tenant, COMPONENT):
        if endpoint not in (None, one.request["EndpointName"]) or variant not in (None, one.request["VariantName"]):
            continue
        entry = call.records.copies.endpoints.entries.get(key(call.tenant, component_endpoint(one.name)))
        if entry is None or not is_of(one, entry.value):
            continue
        found[one.name] = one
        modified_at = max(one.modified_at, entry.value.updated_at)
        items.append(Listed(one.name, one.created_at, modified_at, component_status(call, one, entry.value)))
    page, more = listed_page(call, "ListInferenceComponents", request, items)
    return {"InferenceComponents": [_summary(call, item, found[item.name].request) for item in page], **more}


async def delete_inference_component(call: ControlCall, request: Request) -> Request:
    """Let the component go, whatever it is about to do; in strict mode not while it does."""
    name = request["InferenceComponentName"]

    def going(endpoint: Endpoint) -> Endpoint:
        status = endpoint_status(endpoint)
        if status == DELETING or (call.context.strict and status not in (IN_SERVICE, FAILED)):
            raise _busy(call, name)
        return endpoint.model_copy(update={"status": EndpointStatus.DELETING, "pending_config": None})

    endpoint = await call.records.change_endpoint(call.tenant, component_endpoint(name), going)
    if endpoint is None:
        raise missing(name)
    await call.records.announce(endpoint)
    return {}


def missing(name: str) -> AwsError:
    """Return the one answer for a component that does not exist and for one that belongs to somebody else."""
    return validation(f'Could not find inference component "{name}"')


# ---- inside --------------------------------------------------------------------------------------------------------------


async def _variant_name(call: ControlCall, request: Request) -> str:
    """Return the variant of the endpoint that the component is for. Raises AwsError."""
    entry = await call.records.endpoint(call.tenant, request["EndpointName"])
    if entry is None:
        raise call.missing(ENDPOINT, request["EndpointName"])
    endpoint = entry.value
    if endpoint_status(endpoint) in (DELETING, FAILED):
        raise call.busy(endpoint.name)
    config = await call.records.config(call.tenant, endpoint.config)
    if config is None:
        raise call.busy(endpoint.name)
    if config.value.variants:
        raise validation(
            f'Inference components cannot be deployed to endpoint "{call.arn(ENDPOINT, endpoint.name)}": the production '
            "variants of its endpoint configuration name models. Use one whose variants have no ModelName."
        )
    known = [variant["VariantName"] for variant in config.value.request["ProductionVariants"]]
    wanted = request.get("VariantName")
    if wanted is None and len(known) == 1:
        return str(known[0])
    if wanted not in known:
        raise validation(
            f'The variant name(s) "{wanted or ""}" is/are not present within endpoint configuration '
            f'"{config_name(config.value)}".'
        )
    return str(wanted)


async def _config(call: ControlCall, name: str, wanted: Mapping[str, Any], tags: Mapping[str, str]) -> EndpointConfig:
    """Return a new config for the component's endpoint; a container of its own becomes a model that nobody else sees."""
    specification = wanted[_SPECIFICATION]
    model = specification.get("ModelName")
    if model is None:
        model, overrides = await _own_model(call, name, specification)
    else:
        overrides = await _policy_of_model(call, model)
    overrides = {**overrides, **policy_of(tags)}
    return EndpointConfig(
        tenant=call.tenant,
        name=hidden_name(component_endpoint(name)),
        variants=(component_variant(wanted["VariantName"], model, specification, copies_of(wanted), overrides),),
        created_at=call.records.moment(),
        traffic=traffic_from(traffic_of(tags)),
        request={"InferenceComponentName": name},
    )


async def _own_model(call: ControlCall, name: str, specification: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    own, records, now = hidden_name(name), call.records, call.records.moment()
    request = container_request(own, specification)
    try:
        policy = check_container(container_of(request)).policy
    except InvalidInput as error:
        raise validation(str(error)) from error
    resource = AwsResource(
        tenant=call.tenant,
        kind=AwsKind.MODEL,
        name=own,
        request=request,
        state=inspected.running(records.source),
        created_at=now,
        modified_at=now,
    )
    await create(records.copies.aws, records.tables.aws, aws_key(call.tenant, AwsKind.MODEL, own), resource)
    call.context.background.look_at(call.tenant, own)
    return own, dict(policy)


async def _policy_of_model(call: ControlCall, model: str) -> dict[str, str]:
    resource = await call.records.resource(call.tenant, AwsKind.MODEL, model)
    if resource is None or not resource.value.request:
        return {}
    return {**check_container(container_of(resource.value.request)).policy, **policy_of(resource.value.tags)}


async def _move(call: ControlCall, name: str, endpoint: Endpoint, wanted: Mapping[str, Any], tags: Mapping[str, str]) -> None:
    config = await _config(call, name, wanted, tags)
    usage = usage_of(config.variants, endpoints=0)
    check_quota(call.context.quotas(call.tenant), usage_of_tenant(call, without=endpoint.name), usage)
    await models_wait(call, config)
    await store_config(call, config)
    target = target_of(call.records, call.tenant, endpoint)
    kept = {} if target is None else {wanted["VariantName"]: bounded(VariantCapacity(), target)}

    def pending(found: Endpoint) -> Endpoint:
        _require_steady(call, name, found)
        return moving(found, config.name, kept)

    after = await call.records.change_endpoint(call.tenant, endpoint.name, pending)
    if after is None:
        raise missing(name)
    call.context.background.watch(call.tenant, endpoint.name)
    await call.records.announce(after, f"inference component {name} moves to another specification")


async def _set_copies(call: ControlCall, name: str, endpoint: Endpoint, copies: int) -> None:
    """Set the number of copies; while a scalable target is registered its bounds hold, and this is for the time after it."""
    if target_of(call.records, call.tenant, endpoint) is not None:
        return
    config = await call.records.config(call.tenant, endpoint.config)
    if config is None:
        raise _busy(call, name)
    (variant,) = config.value.variants

    def changed(found: Endpoint) -> Endpoint:
        _require_steady(call, name, found)
        capacity = with_copies(found.capacities.get(variant.name, VariantCapacity()), copies)
        return found.model_copy(update={"capacities": {variant.name: capacity}, "update_failure": None})

    after = await call.records.change_endpoint(call.tenant, endpoint.name, changed)
    if after is None:
        raise missing(name)
    await call.records.announce(after, f"inference component {name} has {copies} copies")


async def _found(call: ControlCall, name: str) -> tuple[AwsResource, Endpoint]:
    entry = await call.records.endpoint(call.tenant, component_endpoint(name))
    resource = await call.records.resource(call.tenant, COMPONENT, name)
    if entry is None or resource is None or not is_of(resource.value, entry.value):
        raise missing(name)
    return resource.value, entry.value


async def _steady(call: ControlCall, name: str) -> tuple[AwsResource, Endpoint]:
    component, endpoint = await _found(call, name)
    _require_steady(call, name, endpoint)
    return component, endpoint


def _require_steady(call: ControlCall, name: str, endpoint: Endpoint) -> None:
    status = endpoint_status(endpoint)
    if status == FAILED:
        raise validation(
            f'Cannot update inference component "{call.arn(COMPONENT, name)}": its status is Failed, and a failed inference '
            "component can only be deleted."
        )
    if status != IN_SERVICE:
        raise _busy(call, name)


def _busy(call: ControlCall, name: str) -> AwsError:
    return validation(f'Cannot update in-progress inference component "{call.arn(COMPONENT, name)}".')


def _fresh(call: ControlCall, endpoint: Endpoint, name: str) -> AwsResource:
    made = endpoint.created_at
    return AwsResource(tenant=call.tenant, kind=COMPONENT, name=name, created_at=made, modified_at=made)


async def _rewrite(call: ControlCall, component: AwsResource, changes: Mapping[str, Any]) -> None:
    await remember(call, component, {**changes, "modified_at": call.records.moment()})


def _summary(call: ControlCall, item: Listed, request: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "InferenceComponentName": item.name,
        "InferenceComponentArn": call.arn(COMPONENT, item.name),
        "EndpointName": request["EndpointName"],
        "EndpointArn": call.arn(ENDPOINT, request["EndpointName"]),
        "VariantName": request["VariantName"],
        "CreationTime": item.created_at,
        "LastModifiedTime": item.modified_at,
        "InferenceComponentStatus": item.status,
    }


HANDLERS: Final[Mapping[str, Handler]] = {
    "CreateInferenceComponent": create_inference_component,
    "DeleteInferenceComponent": delete_inference_component,
    "DescribeInferenceComponent": describe_inference_component,
    "ListInferenceComponents": list_inference_components,
    "UpdateInferenceComponent": update_inference_component,
    "UpdateInferenceComponentRuntimeConfig": update_runtime_config,
}
