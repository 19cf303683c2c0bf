"""Tags of models, endpoint configs and endpoints, by ARN. Those of ours on an endpoint take effect at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from standby.domain.aws import AwsKind, AwsResource
from standby.domain.endpoint import Endpoint, EndpointStatus
from standby.domain.errors import RevisionConflict
from standby.sagemaker.control.context import WORDS, ControlCall, Handler, Request
from standby.sagemaker.control.endpoint_configs import with_tags
from standby.sagemaker.control.endpoint_updates import require_steady
from standby.sagemaker.control.endpoints import change_companion, companion, store_config
from standby.sagemaker.control.records import aws_key, create
from standby.sagemaker.control.tagging import merged, policy_of, refuse_traffic, tags_of, traffic_of
from standby.sagemaker.errors import validation
from standby.sagemaker.shapes.paging import Listing

DEFAULT_SIZE: Final = 50
_ARN: Final = re.compile(r"arn:aws[a-z-]*:sagemaker:([a-z0-9-]*):([0-9]{12}):([a-z-]+)/([a-zA-Z0-9](?:-*[a-zA-Z0-9]){0,62})")

_Tags = Mapping[str, str]
_Change = Callable[[_Tags], _Tags]


async def add_tags(call: ControlCall, request: Request) -> Request:
    """Add or replace tags; return all of them."""
    more = tags_of(request["Tags"])
    tags = await _changed(call, request["ResourceArn"], lambda found: merged(found, more))
    return {"Tags": _told(tags)}


async def delete_tags(call: ControlCall, request: Request) -> Request:
    """Remove tags; one that is not there is no error."""
    keys = set(request["TagKeys"])
    await _changed(call, request["ResourceArn"], lambda found: {k: v for k, v in found.items() if k not in keys})
    return {}


async def list_tags(call: ControlCall, request: Request) -> Request:
    """Return the tags, sorted by name."""
    kind, name = named(call, request["ResourceArn"])
    if kind is AwsKind.ENDPOINT:
        tags = (await companion(call, await _endpoint(call, name))).tags
    else:
        entry = await call.records.resource(call.tenant, kind, name)
        if entry is None:
            await _require(call, kind, name)
        tags = {} if entry is None else entry.value.tags
    page = call.context.pager.page(
        Listing(call.tenant, "ListTags", request),
        _told(tags),
        place=lambda tag: (tag["Key"], tag["Key"]),
        size=int(request.get("MaxResults", DEFAULT_SIZE)),
        token=request.get("NextToken"),
    )
    return {"Tags": page.items, **({} if page.next_token is None else {"NextToken": page.next_token})}


def named(call: ControlCall, arn: str) -> tuple[AwsKind, str]:
    """Return what an ARN names; another account's is not told from one that does not exist. Raises AwsError."""
    match = _ARN.fullmatch(arn)
    if match is None or match[3] not in {kind.value for kind in AwsKind}:
        raise validation(f"Invalid ARN {arn[:256]}: expected arn:aws:sagemaker:region:account:kind/name")
    kind = AwsKind(match[3])
    if match[2] != call.tenant or match[1] != call.context.region:
        raise validation(f'Could not find {WORDS.get(kind, kind.value)} "{arn}".')
    return kind, match[4]


async def _changed(call: ControlCall, arn: str, change: _Change) -> _Tags:
    kind, name = named(call, arn)
    if kind is AwsKind.ENDPOINT:
        return await _changed_of_endpoint(call, name, change)

    def told(found: AwsResource) -> AwsResource:
        if kind is AwsKind.MODEL:
            refuse_traffic(change(found.tags))
        return found.model_copy(update={"tags": dict(change(found.tags)), "modified_at": call.records.moment()})

    after = await call.records.change_resource(call.tenant, kind, name, told)
    if after is None:
        created_at = await _require(call, kind, name)
        bare = AwsResource(tenant=call.tenant, kind=kind, name=name, created_at=created_at, modified_at=created_at)
        after = told(bare)
        try:
            await create(call.records.copies.aws, call.records.tables.aws, aws_key(call.tenant, kind, name), after)
        except RevisionConflict:
            after = await call.records.change_resource(call.tenant, kind, name, told) or after
    return after.tags


async def _changed_of_endpoint(call: ControlCall, name: str, change: _Change) -> _Tags:
    endpoint = await _endpoint(call, name)
    before = (await companion(call, endpoint)).tags
    after = dict(change(before))
    if (policy_of(after), traffic_of(after)) != (policy_of(before), traffic_of(before)):
        await _move(call, endpoint, after)
    await change_companion(call, endpoint, {"tags": after})
    return after


async def _move(call: ControlCall, endpoint: Endpoint, tags: _Tags) -> None:
    """Give the endpoint its config anew, with the policies that its tags make; the models are the same, so nothing restarts."""
    entry = await call.records.config(call.tenant, endpoint.config)
    made = None if entry is None else with_tags(call, entry.value, tags)
    if entry is None or made is None or made is entry.value:
        raise validation(
            f"The policy of endpoint {endpoint.name} cannot be changed by tags: it was not made by a client of AWS's."
        )
    require_steady(call, endpoint)
    await store_config(call, made)

    def moved(found: Endpoint) -> Endpoint:
        require_steady(call, found)
        if found.config != endpoint.config:
            raise call.busy(endpoint.name)
        changes: dict[str, Any] = {
            "pending_config": made.name,
            "pending_capacities": dict(found.capacities),
            "status": EndpointStatus.UPDATING,
        }
        return found.model_copy(update=changes)

    if await call.records.change_endpoint(call.tenant, endpoint.name, moved) is None:
        raise call.missing(AwsKind.ENDPOINT, endpoint.name)


async def _endpoint(call: ControlCall, name: str) -> Endpoint:
    entry = await call.records.endpoint(call.tenant, name)
    if entry is None:
        raise call.missing(AwsKind.ENDPOINT, name)
    return entry.value


async def _require(call: ControlCall, kind: AwsKind, name: str) -> float:
    """Return when a record of ours was made, of which AWS's clients have said nothing yet. Raises AwsError."""
    if kind is AwsKind.MODEL and (model := await call.records.model(call.tenant, name)) is not None:
        return model.value.created_at
    if kind is AwsKind.ENDPOINT_CONFIG and (config := await call.records.config(call.tenant, name)) is not None:
        return config.value.created_at
    if kind in WORDS:
        raise call.missing(kind, name)
    raise validation(f'Could not find {kind.value} "{call.arn(kind, name)}".')


def _told(tags: _Tags) -> list[dict[str, str]]:
    return [{"Key": name, "Value": tags[name]} for name in sorted(tags)]


HANDLERS: Final[Mapping[str, Handler]] = {
    "AddTags": add_tags,
    "DeleteTags": delete_tags,
    "ListTags": list_tags,
}
