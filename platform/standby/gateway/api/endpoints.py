"""Endpoints: created at zero, shown with their rungs, retried by hand, deleted through the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from starlette.responses import Response

from standby.bus.copies import updated
from standby.domain.endpoint import Endpoint, EndpointStatus
from standby.domain.errors import Conflict, EndpointNotFound
from standby.domain.instance import Instance
from standby.domain.names import key
from standby.gateway.api.context import ApiRoute, Call, missing
from standby.gateway.api.creation import announce, create
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import by_name, endpoint_view
from standby.gateway.api.why import outlook_of

_CAS_ATTEMPTS: Final = 8


async def list_endpoints(call: Call) -> Response:
    """All of the tenant's endpoints."""
    mine = [entry.value for entry in call.context.copies.endpoints.entries.values() if entry.value.tenant == call.tenant]
    return json_response({"endpoints": [_view(call, endpoint) for endpoint in sorted(mine, key=lambda item: item.name)]})


async def show(call: Call) -> Response:
    """One endpoint with its instances; with ``?outlook=1`` also what the controller means to do with them."""
    endpoint = require_endpoint(call)
    view = _view(call, endpoint)
    if call.number("outlook", 0, 1):
        view["outlook"], view["outlook_missing"] = await outlook_of(call, endpoint.name)
    return json_response(view)


async def delete(call: Call) -> Response:
    """Mark the endpoint Deleting: 202. The controller drains its instances and removes it."""
    endpoint = await _change(call, _deleting)
    return json_response(_view(call, endpoint), 202)


async def retry(call: Call) -> Response:
    """Forget the failure and count a new generation, so that the controller tries again at once."""
    endpoint = await _change(call, _retried)
    return json_response(_view(call, endpoint))


def _deleting(found: Endpoint) -> Endpoint:
    return found.model_copy(update={"status": EndpointStatus.DELETING})


def _retried(found: Endpoint) -> Endpoint:
    if found.status is EndpointStatus.DELETING:
        raise Conflict(f"endpoint {found.name!r} is being deleted", remedy="wait until it is gone and create it again")
    changes = {"status": EndpointStatus.IN_SERVICE, "failure": None, "generation": found.generation + 1}
    return found.model_copy(update=changes)


async def _change(call: Call, change: Callable[[Endpoint], Endpoint]) -> Endpoint:
    """Write what ``change`` makes of the endpoint, deciding anew whenever somebody else wrote in between."""
    record_key = call.record_key(EndpointNotFound, "endpoint")
    table = call.context.tables.endpoints
    for _ in range(_CAS_ATTEMPTS):
        entry = await table.get(record_key)
        if entry is None:
            raise missing(EndpointNotFound, "endpoint", call.request.path_params["name"])
        wanted = change(entry.value)
        if wanted == entry.value:
            return wanted
        wanted = wanted.model_copy(update={"updated_at": call.context.now()})
        if await updated(call.context.copies.endpoints, table, entry, wanted):
            await announce(call.context, wanted)
            return wanted
    raise Conflict(
        f"endpoint {call.request.path_params['name']!r} changed {_CAS_ATTEMPTS} times while it was being changed",
        remedy="try again in a moment",
    )


def _view(call: Call, endpoint: Endpoint) -> dict[str, object]:
    copies = call.context.copies
    config = copies.endpoint_configs.entries.get(key(endpoint.tenant, endpoint.config))
    nodes = by_name(entry.value for entry in copies.nodes.entries.values())
    found = None if config is None else config.value
    return endpoint_view(endpoint, found, instances_of(call, endpoint), call.context.now(), nodes)


def require_endpoint(call: Call) -> Endpoint:
    """Return the tenant's endpoint that the path names. Raises EndpointNotFound."""
    entry = call.context.copies.endpoints.entries.get(call.record_key(EndpointNotFound, "endpoint"))
    if entry is None:
        raise missing(EndpointNotFound, "endpoint", call.request.path_params["name"])
    return entry.value


def instances_of(call: Call, endpoint: Endpoint) -> list[Instance]:
    """Return an endpoint's instances, by id."""
    held = (entry.value for entry in call.context.copies.instances.entries.values())
    mine = (one for one in held if (one.tenant, one.endpoint) == (endpoint.tenant, endpoint.name))
    return sorted(mine, key=lambda one: one.id)


async def create_endpoint(call: Call) -> Response:
    """Create an endpoint at zero: 201, InService at once, since its model is registered."""
    endpoint = await create(call)
    return json_response(_view(call, endpoint), 201)


ROUTES: Final = (
    ApiRoute("POST", "/api/v1/endpoints", create_endpoint),
    ApiRoute("GET", "/api/v1/endpoints", list_endpoints),
    ApiRoute("GET", "/api/v1/endpoints/{name}", show),
    ApiRoute("DELETE", "/api/v1/endpoints/{name}", delete),
    ApiRoute("POST", "/api/v1/endpoints/{name}/retry", retry),
)
