"""Endpoint configs: checked and remembered; an endpoint gets a config of its own of it, so that deleting one harms nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import EndpointConfig, Variant
from standby.domain.errors import InvalidInput, RevisionConflict
from standby.domain.names import HIDDEN
from standby.domain.traffic import TrafficPolicy
from standby.sagemaker.control.config_rules import check_config
from standby.sagemaker.control.context import ControlCall, Handler, Request
from standby.sagemaker.control.images import container_of
from standby.sagemaker.control.inspection import check_container
from standby.sagemaker.control.listing import Listed, listed_page
from standby.sagemaker.control.records import aws_key, create, hidden_name, remove
from standby.sagemaker.control.tagging import policy_of, tags_of, traffic_of
from standby.sagemaker.control.traffic import traffic_from
from standby.sagemaker.control.variants import production_variant_of, variant_of
from standby.sagemaker.errors import validation

CONFIG: Final = AwsKind.ENDPOINT_CONFIG
# Where an endpoint's own config keeps the fields of the scale policy that did not come from the endpoint's tags.
OVERRIDES: Final = "StandbyPolicy"
# The same for tags of the traffic policy.
TRAFFIC: Final = "StandbyTraffic"


async def create_endpoint_config(call: ControlCall, request: Request) -> Request:
    """Check the config and remember it."""
    name, records, now = request["EndpointConfigName"], call.records, call.records.moment()
    tags = tags_of(request.pop("Tags", None))
    models = await _models(call, request["ProductionVariants"])
    check_config(request, {model: made.request for model, made in models.items()}, strict=call.context.strict)
    _made(call, request["ProductionVariants"], policy_of(tags), models)
    resource = AwsResource(
        tenant=call.tenant, kind=CONFIG, name=name, request=request, tags=tags, created_at=now, modified_at=now
    )
    if await records.config(call.tenant, name) is not None:
        raise call.existing(CONFIG, name)
    try:
        await create(records.copies.aws, records.tables.aws, aws_key(call.tenant, CONFIG, name), resource)
    except RevisionConflict as error:
        raise call.existing(CONFIG, name) from error
    return {"EndpointConfigArn": call.arn(CONFIG, name)}


async def describe_endpoint_config(call: ControlCall, request: Request) -> Request:
    """Return the request of its creation; for one that came about otherwise, one that would make it."""
    name = request["EndpointConfigName"]
    told, created_at = await _described(call, name)
    variants = [{"InitialVariantWeight": 1.0, **variant} for variant in told["ProductionVariants"]]
    return {
        **told,
        "ProductionVariants": variants,
        "EndpointConfigArn": call.arn(CONFIG, name),
        "CreationTime": created_at,
    }


async def list_endpoint_configs(call: ControlCall, request: Request) -> Request:
    """Return a page of the tenant's configs, whoever made them."""
    records = call.records
    items = {config.name: Listed(config.name, config.created_at, config.created_at) for config in records.configs(call.tenant)}
    for one in records.resources(call.tenant, CONFIG):
        items[one.name] = Listed(one.name, one.created_at, one.modified_at)
    page, more = listed_page(call, "ListEndpointConfigs", request, items.values())
    summaries = [
        {
            "EndpointConfigName": item.name,
            "EndpointConfigArn": call.arn(CONFIG, item.name),
            "CreationTime": item.created_at,
        }
        for item in page
    ]
    return {"EndpointConfigs": summaries, **more}


async def delete_endpoint_config(call: ControlCall, request: Request) -> Request:
    """Forget the config; endpoints that were made of it have their own."""
    name, records = request["EndpointConfigName"], call.records
    where = aws_key(call.tenant, CONFIG, name)
    if await records.tables.aws.get(where) is None:
        if HIDDEN in name or await records.config(call.tenant, name) is None:
            raise call.missing(CONFIG, name)
        raise validation(
            f'Cannot delete endpoint configuration "{call.arn(CONFIG, name)}": it was made with an endpoint and goes with it.'
        )
    await remove(records.copies.aws, records.tables.aws, where)
    return {}


async def own_config(call: ControlCall, name: str, endpoint: str, tags: Mapping[str, str]) -> EndpointConfig:
    """Return a new config for one endpoint alone, made of the config ``name`` and of the endpoint's tags. Raises AwsError."""
    resource = await call.records.resource(call.tenant, CONFIG, name)
    if resource is None:
        return await _copied(call, name, endpoint)
    request, more = dict(resource.value.request), policy_of(resource.value.tags)
    traffic = traffic_of(resource.value.tags)
    models = await _models(call, request["ProductionVariants"])
    overrides = {
        variant["VariantName"]: {**_policy(models.get(variant.get("ModelName", ""))), **more}
        for variant in request["ProductionVariants"]
    }
    return EndpointConfig(
        tenant=call.tenant,
        name=hidden_name(endpoint),
        variants=_variants(call, _with_models(request["ProductionVariants"]), overrides, policy_of(tags)),
        created_at=call.records.moment(),
        traffic=_traffic(traffic, tags),
        request={**request, "EndpointConfigName": name, OVERRIDES: overrides, TRAFFIC: traffic},
    )


def with_tags(call: ControlCall, config: EndpointConfig, tags: Mapping[str, str]) -> EndpointConfig:
    """Return an endpoint's config as other tags of the endpoint make it; its own if it did not come from AWS's clients."""
    overrides = config.request.get(OVERRIDES)
    if overrides is None:
        return config
    # The models' names may have become those of copies: they are the config's.
    names = {variant.name: variant.model for variant in config.variants}
    given = _with_models(config.request["ProductionVariants"])
    variants = [{**one, "ModelName": names[one["VariantName"]]} for one in given]
    endpoint = config.name.partition(HIDDEN)[0]
    made = _variants(call, variants, overrides, policy_of(tags))
    changes = {
        "name": hidden_name(endpoint),
        "variants": made,
        "traffic": _traffic(config.request.get(TRAFFIC, {}), tags),
        "created_at": call.records.moment(),
    }
    return config.model_copy(update=changes)


def _traffic(of_config: Mapping[str, str], of_endpoint: Mapping[str, str]) -> TrafficPolicy:
    """Return the traffic policy: the endpoint's tags win. Raises AwsError where both together cannot be."""
    try:
        return traffic_from(of_config, traffic_of(of_endpoint))
    except InvalidInput as error:
        raise validation(str(error)) from error


def config_name(config: EndpointConfig) -> str:
    """Return the name under which the caller knows a config."""
    return str(config.request.get("EndpointConfigName") or config.name.partition(HIDDEN)[0])


async def _copied(call: ControlCall, name: str, endpoint: str) -> EndpointConfig:
    entry = None if HIDDEN in name else await call.records.config(call.tenant, name)
    if entry is None:
        raise call.missing(CONFIG, name)
    request = {"EndpointConfigName": name, "ProductionVariants": [production_variant_of(v) for v in entry.value.variants]}
    changes = {"name": hidden_name(endpoint), "created_at": call.records.moment(), "request": request}
    return entry.value.model_copy(update=changes)


async def _described(call: ControlCall, name: str) -> tuple[dict[str, Any], float]:
    resource = await call.records.resource(call.tenant, CONFIG, name)
    if resource is not None and resource.value.request:
        return dict(resource.value.request), resource.value.created_at
    entry = None if HIDDEN in name else await call.records.config(call.tenant, name)
    if entry is None:
        raise call.missing(CONFIG, name)
    variants = [production_variant_of(variant) for variant in entry.value.variants]
    return {"EndpointConfigName": name, "ProductionVariants": variants}, entry.value.created_at


async def _models(call: ControlCall, variants: Sequence[Mapping[str, Any]]) -> dict[str, AwsResource]:
    """Return what AWS's clients said of the variants' models. Raises AwsError for a model that does not exist."""
    found: dict[str, AwsResource] = {}
    for variant in variants:
        name = variant.get("ModelName")
        if name is None or name in found:
            continue
        resource = await call.records.resource(call.tenant, AwsKind.MODEL, name)
        if resource is not None:
            found[name] = resource.value
        elif await call.records.model(call.tenant, name) is None:
            raise call.missing(AwsKind.MODEL, name)
    return found


def _policy(model: AwsResource | None) -> dict[str, str]:
    """Return the fields of the scale policy that a model's environment sets, then those of its tags."""
    if model is None or not model.request:
        return {}
    return {**check_container(container_of(model.request)).policy, **policy_of(model.tags)}


def _made(
    call: ControlCall,
    variants: Sequence[Mapping[str, Any]],
    tags: Mapping[str, str],
    models: Mapping[str, AwsResource],
) -> None:
    """Raise AwsError where no endpoint could be made of the variants; those without a model wait for their components."""
    named = _with_models(variants)
    overrides = {v["VariantName"]: {**_policy(models.get(v["ModelName"])), **tags} for v in named}
    _variants(call, named, overrides, {})


def _with_models(variants: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the variants that name a model: the others get theirs as inference components."""
    return [variant for variant in variants if variant.get("ModelName") is not None]


def _variants(
    call: ControlCall,
    variants: Sequence[Mapping[str, Any]],
    overrides: Mapping[str, Mapping[str, str]],
    tags: Mapping[str, str],
) -> tuple[Variant, ...]:
    try:
        return tuple(
            variant_of(given, {**overrides.get(given["VariantName"], {}), **tags}, always_on=call.context.strict)
            for given in variants
        )
    except InvalidInput as error:
        raise validation(str(error)) from error


HANDLERS: Final[Mapping[str, Handler]] = {
    "CreateEndpointConfig": create_endpoint_config,
    "DescribeEndpointConfig": describe_endpoint_config,
    "ListEndpointConfigs": list_endpoint_configs,
    "DeleteEndpointConfig": delete_endpoint_config,
}
