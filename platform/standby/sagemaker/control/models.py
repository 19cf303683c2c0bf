"""Models: CreateModel, DescribeModel, ListModels, DeleteModel.

CreateModel answers before anybody has looked at the artifact, as AWS does; the look begins at once, in the background.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from standby.bus.copies import visible
from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import Endpoint, EndpointConfig, EndpointStatus
from standby.domain.errors import InvalidInput, RevisionConflict
from standby.domain.model import Model
from standby.domain.names import HIDDEN, key
from standby.sagemaker.control import inspected
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.inspection import check_container
from standby.sagemaker.control.listing import Listed, listed_page
from standby.sagemaker.control.records import aws_key, create, hidden_name, remove
from standby.sagemaker.control.tagging import refuse_traffic, tags_of
from standby.sagemaker.errors import validation

MODEL: Final = AwsKind.MODEL


async def create_model(call: ControlCall, request: Request) -> Request:
    """Remember the model and begin to look at its artifact."""
    name = request["ModelName"]
    try:
        check_container(_container(request))
    except InvalidInput as error:
        raise validation(str(error)) from error
    tags = tags_of(request.pop("Tags", None))
    refuse_traffic(tags)
    records, now = call.records, call.records.moment()
    resource = AwsResource(
        tenant=call.tenant,
        kind=MODEL,
        name=name,
        request=request,
        tags=tags,
        state=inspected.running(records.source),
        created_at=now,
        modified_at=now,
    )
    if await records.model(call.tenant, name) is not None:
        raise call.existing(MODEL, name)
    try:
        await create(records.copies.aws, records.tables.aws, aws_key(call.tenant, MODEL, name), resource)
    except RevisionConflict as error:
        raise call.existing(MODEL, name) from error
    call.context.background.look_at(call.tenant, name)
    return {"ModelArn": call.arn(MODEL, name)}


async def describe_model(call: ControlCall, request: Request) -> Request:
    """Return the request of its creation; for a model that was registered otherwise, one that would make it."""
    name = request["ModelName"]
    resource = await call.records.resource(call.tenant, MODEL, name)
    if resource is not None and resource.value.request:
        told, created_at = dict(resource.value.request), resource.value.created_at
    else:
        model = await call.records.model(call.tenant, name)
        if model is None:
            raise call.missing(MODEL, name)
        told, created_at = _told(model.value), model.value.created_at
    told.setdefault("EnableNetworkIsolation", False)
    return {**told, "ModelArn": call.arn(MODEL, name), "CreationTime": created_at}


async def list_models(call: ControlCall, request: Request) -> Request:
    """Return a page of the tenant's models, whoever made them."""
    records = call.records
    items = {model.name: Listed(model.name, model.created_at, model.created_at) for model in records.models(call.tenant)}
    for one in records.resources(call.tenant, MODEL):
        items[one.name] = Listed(one.name, one.created_at, one.modified_at)
    page, more = listed_page(call, "ListModels", request, items.values())
    summaries = [
        {"ModelName": item.name, "ModelArn": call.arn(MODEL, item.name), "CreationTime": item.created_at} for item in page
    ]
    return {"Models": summaries, **more}


async def delete_model(call: ControlCall, request: Request) -> Request:
    """Forget the model. Endpoints that use it keep a copy of their own and go on."""
    name = request["ModelName"]
    records = call.records
    async with call.context.changing:
        resource = await records.tables.aws.get(aws_key(call.tenant, MODEL, name))
        model = await records.tables.models.get(key(call.tenant, name))
        if resource is None and model is None:
            raise call.missing(MODEL, name)
        if model is not None:
            await _keep_for_endpoints(call, model.value)
        if resource is not None:
            # First: whoever still looks at the artifact must find that nobody wants it any more.
            await remove(records.copies.aws, records.tables.aws, resource.key)
        if model is not None:
            await remove(records.copies.models, records.tables.models, model.key)
    return {}


async def _keep_for_endpoints(call: ControlCall, model: Model) -> None:
    """Give every endpoint that uses the model a config of its own that names a copy of it, under a name that nobody sees."""
    records = call.records
    users = [endpoint for endpoint in records.endpoints(call.tenant) if endpoint.status is not EndpointStatus.DELETING]
    uses: dict[str, EndpointConfig] = {}
    for endpoint in users:
        for name in (endpoint.config, endpoint.pending_config):
            config = None if name is None else await records.config(call.tenant, name)
            if config is not None and any(variant.model == model.name for variant in config.value.variants):
                uses[config.value.name] = config.value
    if not uses:
        return
    kept = await _copy(call, model)
    renamed = {name: await _with_copy(call, config, model.name, kept) for name, config in uses.items()}

    def moved(endpoint: Endpoint) -> Endpoint:
        changes = {
            "config": renamed.get(endpoint.config, endpoint.config),
            "pending_config": renamed.get(endpoint.pending_config or "", endpoint.pending_config),
        }
        return endpoint.model_copy(update=changes)

    for endpoint in users:
        if endpoint.config in renamed or endpoint.pending_config in renamed:
            await records.change_endpoint(call.tenant, endpoint.name, moved)


async def _copy(call: ControlCall, model: Model) -> str:
    digest = hashlib.sha256(model.encode()).hexdigest()[:16]
    name = f"{model.name}{HIDDEN}{digest}"
    records, where = call.records, key(call.tenant, name)
    said = await records.resource(call.tenant, MODEL, model.name)
    if said is not None:
        # The runtime reads in it how to answer.
        kept = said.value.model_copy(update={"name": name})
        with suppress(RevisionConflict):
            await create(records.copies.aws, records.tables.aws, aws_key(call.tenant, MODEL, name), kept)
    try:
        await create(records.copies.models, records.tables.models, where, model.model_copy(update={"name": name}))
    except RevisionConflict:
        await visible(records.copies.models, where, 0)  # of an earlier attempt: it is the same
    return name


async def _with_copy(call: ControlCall, config: EndpointConfig, model: str, kept: str) -> str:
    name = hidden_name(config.name.partition(HIDDEN)[0])
    variants = tuple(
        variant.model_copy(update={"model": kept}) if variant.model == model else variant for variant in config.variants
    )
    records = call.records
    await create(
        records.copies.endpoint_configs,
        records.tables.endpoint_configs,
        key(call.tenant, name),
        config.model_copy(update={"name": name, "variants": variants}),
    )
    return name


def _container(request: Mapping[str, Any]) -> Mapping[str, Any]:
    primary, containers = request.get("PrimaryContainer"), request.get("Containers") or []
    if (primary is None) == (not containers):
        which = "both are there" if containers else "there is neither"
        raise validation(f"Give exactly one of PrimaryContainer and Containers: {which}.")
    if len(containers) > 1:
        raise validation(f"Containers holds {len(containers)} containers: pipelines of several are not there. Give one.")
    found: Mapping[str, Any] = primary if primary is not None else containers[0]
    if found.get("ImageConfig", {}).get("RepositoryAccessMode") == "Vpc":
        raise validation("ImageConfig.RepositoryAccessMode Vpc is not there: no image is pulled.")
    return found


def _told(model: Model) -> dict[str, Any]:
    """Return the request that would make a model of ours."""
    container: dict[str, Any] = {
        "Image": f"standby/{model.engine.value}",
        "Mode": "SingleModel",
        "Environment": {f"STANDBY_OPTION_{name.upper()}": str(value) for name, value in model.engine_options.items()},
    }
    uri = model.manifest.source_uri
    if uri.startswith("s3://") and model.manifest.archive is not None:
        container["ModelDataUrl"] = uri
    elif uri.startswith("s3://"):
        kind = "S3Prefix" if uri.endswith("/") else "S3Object"
        container["ModelDataSource"] = {"S3DataSource": {"S3Uri": uri, "S3DataType": kind, "CompressionType": "None"}}
    return {"ModelName": model.name, "PrimaryContainer": container}


HANDLERS: Final[Mapping[str, Handler]] = {
    "CreateModel": create_model,
    "DescribeModel": describe_model,
    "ListModels": list_models,
    "DeleteModel": delete_model,
}
