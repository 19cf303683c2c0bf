"""What AWS's clients have said of an endpoint of ours, or of an inference component: its endpoint's moment of creation ties
the two together, so that nothing of an earlier one of the same name is taken for this one's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from standby.domain.aws import AwsKind, AwsResource, component_endpoint
from standby.domain.endpoint import Endpoint
from standby.domain.errors import RevisionConflict
from standby.domain.names import key
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.records import Records, aws_key, create

# Where scalable targets and policies keep whose they are.
OWNER: Final = "endpoint"
OWNER_MADE: Final = "endpoint_created_at"


class Owner(NamedTuple):
    """An endpoint of ours, by name and moment of creation in seconds since the epoch."""

    endpoint: str
    created_at: float


def owner_of(resource: AwsResource) -> Owner | None:
    """Return the endpoint without which the resource means nothing; None for kinds that stand alone."""
    match resource.kind:
        case AwsKind.ENDPOINT:
            return Owner(resource.name, resource.created_at)
        case AwsKind.INFERENCE_COMPONENT:
            return Owner(component_endpoint(resource.name), resource.created_at)
        case AwsKind.SCALABLE_TARGET | AwsKind.SCALING_POLICY:
            return Owner(str(resource.state[OWNER]), float(resource.state[OWNER_MADE]))
        case _:
            return None


def told_by(endpoint: Endpoint) -> dict[str, Any]:
    """Return the state that ties a scalable target or a policy to its endpoint."""
    return {OWNER: endpoint.name, OWNER_MADE: endpoint.created_at}


def is_of(resource: AwsResource, endpoint: Endpoint | None) -> bool:
    """Whether the resource belongs to this endpoint, and not to an earlier one of its name."""
    return endpoint is not None and owner_of(resource) == Owner(endpoint.name, endpoint.created_at)


def has_owner(records: Records, resource: AwsResource) -> bool:
    """Whether what it belongs to is there, as far as this process's own copy tells."""
    owner = owner_of(resource)
    entry = None if owner is None else records.copies.endpoints.entries.get(key(resource.tenant, owner.endpoint))
    return is_of(resource, None if entry is None else entry.value)


async def remember(call: ControlCall, fresh: AwsResource, changes: Mapping[str, Any]) -> AwsResource:
    """Write ``changes`` into the resource; into ``fresh`` where there is none, or only one of an earlier owner.

    Raises Conflict.
    """
    records, owner = call.records, owner_of(fresh)
    where = aws_key(call.tenant, fresh.kind, fresh.name)

    def told(found: AwsResource) -> AwsResource:
        return (found if owner_of(found) == owner else fresh).model_copy(update=changes)

    async def rewritten() -> AwsResource | None:
        return await records.change_resource(call.tenant, fresh.kind, fresh.name, told)

    if where in records.copies.aws.entries and (after := await rewritten()) is not None:
        return after
    made = told(fresh)
    try:
        await create(records.copies.aws, records.tables.aws, where, made)
    except RevisionConflict:
        return await rewritten() or made
    return made
