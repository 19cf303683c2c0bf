"""The route table of the control API: every row is authenticated, and what is in no row is refused."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from standby.domain.errors import NotFound
from standby.gateway.api import (
    access_keys,
    cache,
    credentials,
    endpoints,
    events,
    keys,
    logs,
    models,
    nodes,
    overview,
    prices,
    profile,
    requests,
    reseal,
    tenants,
    why,
)
from standby.gateway.api.context import ApiContext, ApiRoute, Call, guarded

TABLE: Final = (
    *models.ROUTES,
    *credentials.ROUTES,
    *endpoints.ROUTES,
    *why.ROUTES,
    *logs.ROUTES,
    *profile.ROUTES,
    *nodes.ROUTES,
    *prices.ROUTES,
    *overview.ROUTES,
    *cache.ROUTES,
    *keys.ROUTES,
    *access_keys.ROUTES,
    *reseal.ROUTES,
    *tenants.ROUTES,
    *events.ROUTES,
    *requests.ROUTES,
)

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def api_routes(context: ApiContext) -> list[Route]:
    """Return the control routes for the gateway's app; the last ones refuse everything else below ``/api``."""
    return [guarded(context, row) for row in TABLE] + [guarded(context, row) for row in _NOWHERE]


async def _nowhere(call: Call) -> Response:
    raise NotFound(
        f"there is no {call.request.method} {call.request.url.path[:200]}",
        remedy="check the method and the path",
    )


# Without these rows Starlette would tell a caller without a key which paths and methods exist.
_NOWHERE: Final = tuple(ApiRoute(method, "/api/{rest:path}", _nowhere) for method in _METHODS)
