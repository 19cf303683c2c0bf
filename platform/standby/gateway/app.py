"""The gateway as one ASGI application: data routes first, then AWS's control plane, all else by a table, default deny."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from standby.bus import figures as bus_figures
from standby.bus.connection import Bus
from standby.console.files import console_routes
from standby.domain.access import ApiKey, Role
from standby.domain.endpoint import Endpoint
from standby.domain.errors import Forbidden, ModelNotFound, NotFound, StandbyError
from standby.gateway.api.responses import error_response
from standby.gateway.aws import AwsSide
from standby.gateway.dataplane import DataPlane
from standby.gateway.drain import cut_off
from standby.gateway.keys import TENANT_HEADER, acting_tenant, authenticate
from standby.telemetry import metrics


@dataclass(frozen=True)
class Surroundings:
    """What the public routes read. ``lost_nodes`` are those of which nothing is heard any more."""

    bus: Bus
    data: DataPlane
    aws: AwsSide
    max_staleness_s: float
    stopping: asyncio.Event
    lost_nodes: Callable[[], Set[str]]

    def staleness(self) -> dict[str, float]:
        """Return the ages of all local copies in seconds, by table."""
        return {**self.data.directory.staleness(), **self.aws.staleness()}


def build_app(surroundings: Surroundings, api: list[Route]) -> ASGIApp:
    """Return the gateway's application; ``api`` are the control routes, each of which authenticates by itself."""
    routes = PublicRoutes(surroundings)
    table = [
        Route("/healthz", routes.healthz, methods=["GET"]),
        Route("/readyz", routes.readyz, methods=["GET"]),
        Route("/metrics", routes.metrics, methods=["GET"]),
        Route("/v1/models", routes.models, methods=["GET"]),
        Route("/v1/models/{name:path}", routes.model, methods=["GET"]),
        *console_routes(),
        *api,
    ]
    starlette = Starlette(routes=table, exception_handlers={404: _nothing_there, 405: _nothing_there})
    starlette.router.redirect_slashes = False
    data = surroundings.data
    control = surroundings.aws.control_plane(data.uploads)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            served = data.served(scope, receive, send) if scope["type"] == "http" else None
            if served is not None:
                await served
            elif scope["type"] == "http" and control.takes(scope):
                await control(scope, receive, send)
            else:
                await starlette(scope, receive, send)
        except asyncio.CancelledError:
            # Only the gateway's own end cancels a request that is not an engine's yet.
            await cut_off(scope, send)

    return app


@dataclass(frozen=True)
class PublicRoutes:
    """Health, metrics and the catalogue."""

    around: Surroundings
    scraping: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def healthz(self, _request: Request) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """The local copies of the tables are recent enough to serve from; 503 with their ages otherwise, and while it ends."""
        ages = {name: round(age, 3) for name, age in self.around.staleness().items()}
        draining = self.around.stopping.is_set()
        fresh = max(ages.values()) <= self.around.max_staleness_s
        body = {
            "status": "draining" if draining else "ready" if fresh else "stale",
            "staleness_s": ages,
            "bus_connected": self.around.bus.connected,
        }
        return JSONResponse(body, status_code=200 if fresh and not draining else 503)

    async def metrics(self, request: Request) -> Response:
        """Prometheus text; for callers on this machine and for administrators, since names of tenants are in it."""
        if not _is_local(request):
            try:
                if self._key(request).role is not Role.ADMIN:
                    raise Forbidden(
                        "/metrics needs an administrator's key",
                        remedy="scrape it locally or with an admin key",
                    )
            except StandbyError as error:
                return error_response(error)
        self._refresh()
        # A thousand busy endpoints have 8 MB of text, which takes half a second: not in the loop that serves requests.
        async with self.scraping:
            text = await asyncio.to_thread(generate_latest, metrics.GATEWAY)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        """The tenant's endpoints as OpenAI models, those at zero included."""
        try:
            tenant = self._tenant(request)
        except StandbyError as error:
            return error_response(error)
        listed = sorted(self.around.data.directory.served_models(tenant), key=lambda endpoint: endpoint.served_name)
        return JSONResponse({"object": "list", "data": [_as_model(endpoint) for endpoint in listed]})

    async def model(self, request: Request) -> Response:
        """One model; its id may hold slashes, encoded or not."""
        name = request.path_params["name"]
        try:
            tenant = self._tenant(request)
            for endpoint in self.around.data.directory.served_models(tenant):
                if endpoint.served_name == name:
                    return JSONResponse(_as_model(endpoint))
            raise ModelNotFound(
                f"the model {name[:140]!r} does not exist or you do not have access to it",
                remedy="list the models with GET /v1/models",
            )
        except StandbyError as error:
            return error_response(error)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _key(self, request: Request) -> ApiKey:
        given = request.headers.get("authorization")
        data = self.around.data
        return authenticate(given.encode("latin-1") if given else None, data.directory.keys, data.pepper)

    def _tenant(self, request: Request) -> str:
        return acting_tenant(self._key(request), request.headers.get(TENANT_HEADER))

    def _refresh(self) -> None:
        data, bus = self.around.data, self.around.bus
        data.accounts.refresh(data.directory.desks(), data.directory.slots(self.around.lost_nodes()))
        bus_figures.refresh(bus, self.around.staleness())


_PROXIES_SAY: Final = frozenset({"forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "x-envoy-external-address"})


def _is_local(request: Request) -> bool:
    """A caller on the loopback interface, unless a proxy on this machine forwards for somebody else.

    A proxy that says nothing at all of its caller cannot be told from a local one, except that nginx speaks HTTP/1.0 then.
    """
    if request.client is None or request.scope["http_version"] == "1.0":
        return False
    if any(name in _PROXIES_SAY or name.startswith("x-forwarded-") for name in request.headers):
        return False
    return ipaddress.ip_address(request.client.host).is_loopback


def _as_model(endpoint: Endpoint) -> dict[str, str | int]:
    return {
        "id": endpoint.served_name,
        "object": "model",
        "created": int(endpoint.created_at),
        "owned_by": endpoint.tenant,
    }


async def _nothing_there(request: Request, _error: Exception) -> Response:
    return error_response(
        NotFound(f"there is no {request.method} {request.url.path[:200]}", remedy="see the README for the routes")
    )
