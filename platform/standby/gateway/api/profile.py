"""Profiles of an endpoint's engines: started on the nodes that hold its ready instances, looked at, and stopped."""

from __future__ import annotations

import re
import uuid
from typing import Any, Final

from pydantic import Field
from starlette.responses import Response

from standby.bus.subjects import profile_subject
from standby.domain.endpoint import Endpoint
from standby.domain.errors import InvalidInput, Unavailable
from standby.domain.instance import Instance, InstanceState
from standby.domain.profiles import DEFAULT_SECONDS, ID, MOST_SECONDS, ProfileAction, ProfileAnswer, ProfileOrder
from standby.domain.values import Value
from standby.gateway.api.context import ApiRoute, Call
from standby.gateway.api.endpoints import instances_of, require_endpoint
from standby.gateway.api.node_answers import answer_of, answers_of, failures_view
from standby.gateway.api.nodes import require_node
from standby.gateway.api.responses import json_response, read_body


class StartBody(Value):
    """Body of an order; the same ``id`` again starts nothing new."""

    seconds: int = Field(default=DEFAULT_SECONDS, ge=1, le=MOST_SECONDS)
    node: bool = False
    native: bool = False
    id: str = Field(default_factory=lambda: uuid.uuid4().hex, pattern=f"^{ID}$")


async def start(call: Call) -> Response:
    """Begin to profile the endpoint's ready instances: 202 with how each node's part stands.

    Raises EndpointNotFound, Unavailable where none is ready, and what the nodes say where none of them begins.
    """
    endpoint = require_endpoint(call)
    name = endpoint.name
    body = await read_body(call.request, StartBody)
    call.about(name)
    order = ProfileOrder(
        id=body.id,
        action=ProfileAction.START,
        tenant=call.tenant,
        endpoint=name,
        seconds=body.seconds,
        node_too=body.node,
        native=body.native,
        by=f"{call.key.name} ({call.key.id})",
    )
    answers, failures = await answers_of(_holding(call, endpoint), lambda node: _ask(call, node, order))
    if not answers:
        raise failures[0][1]
    told = {"id": order.id, "endpoint": name, "nodes": [_view(one) for one in answers], "failures": failures_view(failures)}
    return json_response(told, 202)


async def look(call: Call) -> Response:
    """How a node's part of a profile stands; a node ends one that nobody looks at. Raises NotFound, Unavailable."""
    return await _about(call, ProfileAction.LOOK)


async def stop(call: Call) -> Response:
    """End a node's part before its time; what has been recorded is kept. Raises NotFound, Unavailable."""
    return await _about(call, ProfileAction.STOP)


async def _about(call: Call, action: ProfileAction) -> Response:
    node, identity = require_node(call, str(call.request.path_params["name"])), str(call.request.path_params["id"])
    if not re.fullmatch(ID, identity):
        raise InvalidInput(f"{identity[:80]!r} is no id of a profile", remedy="it has 8 to 32 hexadecimal digits")
    order = ProfileOrder(id=identity, action=action, by=f"{call.key.name} ({call.key.id})")
    return json_response(_view(await _ask(call, node, order)))


def _holding(call: Call, endpoint: Endpoint) -> list[str]:
    """Return the nodes that hold a ready instance. Raises Unavailable where there is none."""
    mine = instances_of(call, endpoint)
    ready = sorted({one.node for one in mine if one.state is InstanceState.READY})
    if not ready:
        raise Unavailable(
            f"endpoint {endpoint.name!r} has no ready instance to profile: {_states(mine)}",
            remedy=f"let it work: `standby invoke {endpoint.name}`, or put load on it with `standby bench`",
        )
    return ready


def _states(instances: list[Instance]) -> str:
    return ", ".join(f"{one.id} is {one.state.value}" for one in instances[:8]) or "nothing runs"


async def _ask(call: Call, node: str, order: ProfileOrder) -> ProfileAnswer:
    raw = await answer_of(call, node, profile_subject(node), order.encode(), again="ask again")
    return ProfileAnswer.model_validate_json(raw)


def _view(answer: ProfileAnswer) -> dict[str, Any]:
    return answer.model_dump(exclude={"schema_version"})


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/endpoints/{name}/profiles", start, admin=True, audit="profiles.start"),
    ApiRoute("GET", "/api/v1/nodes/{name}/profiles/{id}", look, admin=True),
    ApiRoute("DELETE", "/api/v1/nodes/{name}/profiles/{id}", stop, admin=True),
)
