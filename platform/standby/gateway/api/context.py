"""What every control route is given, and the one door through which each of them is entered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standby.artifacts.credentials import Credentials
from standby.artifacts.data_source import SourceHint
from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.tables import Entry, R
from standby.bus.tables_set import Tables
from standby.domain.access import ApiKey, Role
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.errors import Forbidden, InvalidInput, NotFound, StandbyError
from standby.domain.instance import Instance
from standby.domain.model import Manifest, Model, SourceOptions
from standby.domain.names import check_name, key
from standby.domain.node import Node
from standby.domain.prices import NodePrices
from standby.gateway.api.responses import error_response
from standby.gateway.keys import TENANT_HEADER, KeyRing, acting_tenant, authenticate
from standby.host.sealing import SealingKey

_VISIBLE_WITHIN_S: Final = 1.0
_VISIBLE_STEP_S: Final = 0.005


class Copy(Protocol[R]):
    """A watched local copy of a table, as standby.bus.mirror.Mirror is one."""

    @property
    def entries(self) -> Mapping[str, Entry[R]]:
        """The records by key."""

    def staleness(self, now: float) -> float:
        """Return the seconds since the copy was last confirmed."""


@dataclass(frozen=True, slots=True)
class Copies:
    """The gateway's local copies that the control routes read."""

    keys: Copy[ApiKey]
    models: Copy[Model]
    endpoint_configs: Copy[EndpointConfig]
    endpoints: Copy[Endpoint]
    instances: Copy[Instance]
    nodes: Copy[Node]
    prices: Copy[NodePrices]


class Inspect(Protocol):
    """The shape of standby.artifacts.inspection.inspect."""

    def __call__(
        self, uri: str, options: SourceOptions, *, credentials: Credentials | None = None, hint: SourceHint | None = None
    ) -> Awaitable[Manifest]:
        """Return the manifest of what lies at ``uri`` now."""


@dataclass(frozen=True, slots=True)
class ApiContext:
    """Everything that the control routes need; the gateway's app makes one.

    ``now`` is seconds since the epoch, ``clock`` is the monotonic clock of the copies' staleness; ``stopping`` ends the
    event streams, which would otherwise keep the server from closing.
    """

    bus: Bus
    tables: Tables
    events: EventLog
    copies: Copies
    pepper: bytes = field(repr=False)
    source: str
    now: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    inspect: Inspect = inspect
    # Opens and seals the tenants' keys for stores; without it none can be stored.
    sealing: SealingKey | None = None
    heartbeat_s: float = 10.0
    # Whether tenants, too, may register file:// sources and other stores; administrators always may.
    open_sources: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    # Checks over several tables ("is the served name free, is the model still there") and the write that follows are
    # one step inside this gateway; between gateways the writer looks again after its write.
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def authenticate(self, authorization_header: bytes | None) -> ApiKey:
        """Return the caller's key. Raises NotAuthenticated."""
        return authenticate(authorization_header, KeyRing(self.copies.keys), self.pepper)


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated control request; ``tenant`` is whose names it means."""

    context: ApiContext
    request: Request
    key: ApiKey
    tenant: str

    @property
    def is_admin(self) -> bool:
        """May it make keys and see nodes?"""
        return self.key.role is Role.ADMIN

    def record_key(self, error: type[NotFound], kind: str) -> str:
        """Return the table key of the name in the path. Raises ``error``: a name that cannot exist does not exist."""
        name = str(self.request.path_params["name"])
        try:
            return key(self.tenant, check_name(kind, name))
        except InvalidInput:
            raise missing(error, kind, name) from None

    def number(self, parameter: str, default: int, most: int) -> int:
        """Return a whole number from the query string, from 0 to ``most``. Raises InvalidInput."""
        text = self.request.query_params.get(parameter)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or int(text) > most:
            raise InvalidInput(
                f"{parameter}={text[:40]!r} is not a number from 0 to {most}", remedy=f"e.g. ?{parameter}={default}"
            )
        return int(text)


Handler = Callable[[Call], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One row of the route table; ``admin`` rows refuse tenant keys."""

    method: str
    path: str
    handler: Handler
    admin: bool = False


def guarded(context: ApiContext, row: ApiRoute) -> Route:
    """Return the Starlette route of ``row``: nothing behind it runs before the key was accepted."""

    async def serve(request: Request) -> Response:
        try:
            call = _enter(context, row, request)
            return await row.handler(call)
        except StandbyError as error:
            return error_response(error)

    return Route(row.path, serve, methods=[row.method], name=f"{row.method} {row.path}")


def missing(error: type[NotFound], kind: str, name: str) -> NotFound:
    """Return the one answer for what does not exist and for what belongs to somebody else."""
    return error(f"there is no {kind} {name[:80]!r}", remedy=f"list yours with `standby {kind}s list`")


async def visible(copy: Copy[R], record_key: str, revision: int | None) -> None:
    """Wait until this gateway's own copy holds what was just written, so that the caller's next request sees it.

    ``revision`` None waits for the record to be gone. Gives up after 1 s: the write itself has happened.
    """
    for _ in range(int(_VISIBLE_WITHIN_S / _VISIBLE_STEP_S)):
        entry = copy.entries.get(record_key)
        if (entry is None) if revision is None else (entry is not None and entry.revision >= revision):
            return
        await asyncio.sleep(_VISIBLE_STEP_S)


def _enter(context: ApiContext, row: ApiRoute, request: Request) -> Call:
    header = request.headers.get("authorization")
    caller = context.authenticate(None if header is None else header.encode("latin-1"))
    if row.admin and caller.role is not Role.ADMIN:
        raise Forbidden(f"{row.method} {row.path} needs an administrator's key", remedy="use a key of role admin")
    return Call(context, request, caller, acting_tenant(caller, request.headers.get(TENANT_HEADER)))
