"""Endpoints: created, described, listed, deleted.

Our own record decides whether an endpoint exists and how it is; beside it lies what only AWS's clients know: tags and the
deployment's settings. The two belong together by the moment of creation, so that nothing of an earlier endpoint of the
same name is taken for this one's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from standby.bus.copies import visible
from standby.bus.tables import Entry
from standby.domain.aws import AwsKind, AwsResource, component_endpoint, is_component
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus
from standby.domain.errors import RevisionConflict
from standby.domain.names import HIDDEN, key
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.endpoint_configs import own_config
from standby.sagemaker.control.endpoint_view import described
from standby.sagemaker.control.listing import Listed, listed_page
from standby.sagemaker.control.owned import is_of, remember
from standby.sagemaker.control.quotas import Usage, check_quota, usage_of
from standby.sagemaker.control.records import aws_key, remove
from standby.sagemaker.control.status import CREATING, DELETING, UPDATING, endpoint_status
from standby.sagemaker.control.tagging import tags_of
from standby.sagemaker.errors import AwsError, validation

ENDPOINT: Final = AwsKind.ENDPOINT
_STEP_S: Final = 0.02
_PASSING: Final = frozenset({CREATING, UPDATING, DELETING})


async def create_endpoint(call: ControlCall, request: Request) -> Request:
    """Create the endpoint at zero: in service at once where its models are known to be good, else as soon as they are."""
    name, tags = request["EndpointName"], tags_of(request.pop("Tags", None))
    if key(call.tenant, name) in call.records.copies.endpoints.entries:
        raise call.existing(ENDPOINT, name)
    config = await own_config(call, request["EndpointConfigName"], name, tags)
    check_quota(call.context.quotas(call.tenant), usage_of_tenant(call), usage_of(config.variants))
    waits = await models_wait(call, config)
    try:
        endpoint = await stored(call, name, config, waits=waits)
    except RevisionConflict as error:
        raise call.existing(ENDPOINT, name) from error
    await change_companion(call, endpoint, {"request": request, "tags": tags})
    call.context.background.watch(call.tenant, name)
    await call.records.announce(endpoint)
    return {"EndpointArn": call.arn(ENDPOINT, name)}


async def describe_endpoint(call: ControlCall, request: Request) -> Request:
    """Return the endpoint as it is; where it is about to change, as it is after the change if that takes a moment only."""
    name = request["EndpointName"]
    entry = await when_settled(call, name)
    if entry is None:
        raise call.missing(ENDPOINT, name)
    return await described(call, entry.value)


async def list_endpoints(call: ControlCall, request: Request) -> Request:
    """Return a page of the tenant's endpoints, whoever made them."""
    items = (
        Listed(endpoint.name, endpoint.created_at, endpoint.updated_at, endpoint_status(endpoint))
        for endpoint in call.records.endpoints(call.tenant)
        if not is_component(endpoint.name)
    )
    page, more = listed_page(call, "ListEndpoints", request, items)
    summaries = [
        {
            "EndpointName": item.name,
            "EndpointArn": call.arn(ENDPOINT, item.name),
            "CreationTime": item.created_at,
            "LastModifiedTime": item.modified_at,
            "EndpointStatus": item.status,
        }
        for item in page
    ]
    return {"Endpoints": summaries, **more}


async def delete_endpoint(call: ControlCall, request: Request) -> Request:
    """Let the endpoint go, whatever it is about to do; in strict mode not while it does.

    A second time while its instances still end is refused: it is not there to be deleted any more.
    """
    name = request["EndpointName"]
    held = components_of(call, name)
    if held:
        raise validation(
            f'Cannot delete endpoint "{call.arn(ENDPOINT, name)}": it has the inference components {", ".join(held)}. '
            "Delete them first."
        )

    def going(endpoint: Endpoint) -> Endpoint:
        status = endpoint_status(endpoint)
        if status == DELETING or (call.context.strict and status in _PASSING):
            raise call.busy(name)
        return endpoint.model_copy(update={"status": EndpointStatus.DELETING, "pending_config": None})

    endpoint = await call.records.change_endpoint(call.tenant, name, going)
    if endpoint is None:
        raise call.missing(ENDPOINT, name)
    await call.records.announce(endpoint)
    return {}


# ---- shared with the updates ---------------------------------------------------------------------------------------------


def components_of(call: ControlCall, endpoint: str) -> list[str]:
    """Return the names of the inference components that are on an endpoint, those that end not among them."""
    held = []
    for one in call.records.resources(call.tenant, AwsKind.INFERENCE_COMPONENT):
        carrier = call.records.copies.endpoints.entries.get(key(call.tenant, component_endpoint(one.name)))
        if one.request.get("EndpointName") != endpoint or carrier is None or not is_of(one, carrier.value):
            continue
        if carrier.value.status is not EndpointStatus.DELETING:
            held.append(one.name)
    return sorted(held)


async def models_wait(call: ControlCall, config: EndpointConfig) -> bool:
    """Whether a model of the config is still to be looked at; those that failed are looked at again.

    Raises AwsError for a model that does not exist.
    """
    waits = False
    for model in {variant.model for variant in config.variants}:
        if await call.records.model(call.tenant, model) is not None:
            continue
        waits = True
        if await call.records.resource(call.tenant, AwsKind.MODEL, model) is None:
            raise call.missing(AwsKind.MODEL, model)
        await call.context.background.look_again(call.tenant, model)
    return waits


def usage_of_tenant(call: ControlCall, *, without: str | None = None) -> Usage:
    """Return what the tenant's endpoints take now, leaving one out if it is going to be another one."""
    return call.context.usages.of_tenant(call.records, call.tenant, without=without)


async def store_config(call: ControlCall, config: EndpointConfig) -> None:
    """Store an endpoint's own config, before anything refers to it; nobody else knows its name, so nobody waits to see it."""
    await call.records.tables.endpoint_configs.create(key(call.tenant, config.name), config)


async def companion(call: ControlCall, endpoint: Endpoint) -> AwsResource:
    """Return what AWS's clients said of this endpoint, and not of an earlier one of its name; empty where they did not."""
    entry = await call.records.resource(call.tenant, ENDPOINT, endpoint.name)
    return entry.value if entry is not None and is_of(entry.value, endpoint) else _empty_companion(endpoint)


async def change_companion(call: ControlCall, endpoint: Endpoint, changes: Mapping[str, Any]) -> None:
    """Write what is said of an endpoint, over whatever an earlier endpoint of its name has left."""
    await remember(call, _empty_companion(endpoint), {**changes, "modified_at": call.records.moment()})


# ---- inside --------------------------------------------------------------------------------------------------------------


def _empty_companion(endpoint: Endpoint) -> AwsResource:
    """Return the record of an endpoint of which AWS's clients have said nothing yet."""
    return AwsResource(
        tenant=endpoint.tenant,
        kind=ENDPOINT,
        name=endpoint.name,
        created_at=endpoint.created_at,
        modified_at=endpoint.created_at,
    )


async def stored(
    call: ControlCall, name: str, config: EndpointConfig, *, waits: bool, served_name: str | None = None
) -> Endpoint:
    """Store the config, then the endpoint, then look once more for what another gateway did meanwhile.

    Raises AwsError; RevisionConflict where there is an endpoint of that name.
    """
    records, now = call.records, call.records.moment()
    kept_ready = any(variant.policy.min_ready for variant in config.variants)
    endpoint = Endpoint(
        tenant=call.tenant,
        name=name,
        config=config.name,
        served_name=served_name or name,
        status=EndpointStatus.CREATING if waits or kept_ready else EndpointStatus.IN_SERVICE,
        created_at=now,
        updated_at=now,
        # Higher than that of any earlier endpoint of this name, without a record of those.
        generation=max(1, int(now * 1000)),
    )
    await store_config(call, config)
    where = key(call.tenant, name)
    try:
        revision = await records.tables.endpoints.create(where, endpoint)
    except RevisionConflict:
        await _drop_config(call, config)
        raise
    await visible(records.copies.endpoints, where, revision)
    refusal = await _second_look(call, endpoint, config)
    if refusal is None:
        return endpoint
    try:
        await remove(records.copies.endpoints, records.tables.endpoints, where, revision)
    except RevisionConflict:
        await records.change_endpoint(
            call.tenant, name, lambda found: found.model_copy(update={"status": EndpointStatus.DELETING})
        )
    await _drop_config(call, config)
    raise refusal


async def _second_look(call: ControlCall, endpoint: Endpoint, config: EndpointConfig) -> AwsError | None:
    """Return why the endpoint must be withdrawn after all.

    The copy shows our own write by now, so it shows whatever was written before it: of two that pass the first look at the
    same moment at least one sees the other.
    """
    for other in call.records.endpoints(call.tenant):
        if other.served_name == endpoint.served_name and other.name != endpoint.name:
            taken = endpoint.served_name
            return validation(f"The name {taken} is taken: by it the OpenAI routes serve endpoint {other.name}.")
    try:
        others = usage_of_tenant(call, without=endpoint.name)
        check_quota(call.context.quotas(call.tenant), others, usage_of(config.variants))
    except AwsError as error:
        return error
    for variant in config.variants:
        # Asked from the tables: a copy of another bucket may be behind.
        if HIDDEN in variant.model or await call.records.tables.models.get(key(call.tenant, variant.model)) is not None:
            continue
        if await call.records.tables.aws.get(aws_key(call.tenant, AwsKind.MODEL, variant.model)) is None:
            return call.missing(AwsKind.MODEL, variant.model)
    return None


async def _drop_config(call: ControlCall, config: EndpointConfig) -> None:
    await call.records.tables.endpoint_configs.delete(key(call.tenant, config.name))


async def when_settled(call: ControlCall, name: str) -> Entry[Endpoint] | None:
    """Return the endpoint, waiting a moment where it is on its way to another status.

    Waiters of AWS's clients look at once and then only every 30 seconds: what is decided in a second must not cost them 30.
    """
    entry = await call.records.endpoint(call.tenant, name)
    waited = 0.0
    while entry is not None and waited < call.context.settle_s and _passing(call, entry.value):
        await asyncio.sleep(_STEP_S)
        waited += _STEP_S
        entry = call.records.copies.endpoints.entries.get(key(call.tenant, name))
    return entry


def _passing(call: ControlCall, endpoint: Endpoint) -> bool:
    """Whether its status will change in a moment: it waits for an artifact's look, for engines to end, or for nothing."""
    status = endpoint_status(endpoint)
    if status not in _PASSING:
        return False
    if status == DELETING or endpoint.pending_config is not None:
        return True
    return next(call.records.instances(endpoint), None) is None


HANDLERS: Final[Mapping[str, Handler]] = {
    "CreateEndpoint": create_endpoint,
    "DescribeEndpoint": describe_endpoint,
    "ListEndpoints": list_endpoints,
    "DeleteEndpoint": delete_endpoint,
}
