"""What every control route is given, and the one door through which each of them is entered."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standby.artifacts.credentials import Credentials
from standby.artifacts.data_source import SourceHint
from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.copies import Copy
from standby.bus.events import EventLog
from standby.bus.tables_set import Tables
from standby.console.feed import Feed
from standby.domain.access import AccessKey, ApiKey, Quotas, Role, Scope, Tenant
from standby.domain.endpoint import Endpoint, EndpointConfig
from standby.domain.errors import Forbidden, InvalidInput, NotFound, StandbyError, Unavailable
from standby.domain.instance import Instance
from standby.domain.model import Manifest, Model, SourceOptions
from standby.domain.names import check_name, key
from standby.domain.node import Node
from standby.domain.prices import NodePrices
from standby.gateway.api.responses import error_response
from standby.gateway.audit import Audit
from standby.gateway.keys import TENANT_HEADER, KeyRing, acting_tenant, authenticate
from standby.gateway.neighbours import Neighbours
from standby.gateway.traces import Traces
from standby.host.sealing import SealingKey
from standby.sagemaker.auth.caller import DEFAULT_REGION

_LONGEST_TARGET: Final = 128


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
    tenants: Copy[Tenant]
    access_keys: Copy[AccessKey]


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
    # Copies of keys and tenants that are older let nobody in any more.
    key_trust_s: float = math.inf
    # Stands in ARNs, and is what the tenants' AWS tools are told to sign for.
    region: str = DEFAULT_REGION
    # Whether tenants, too, may register file:// sources and other stores; administrators always may.
    open_sources: bool = False
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    # What became of this gateway's last requests, and whom to ask about the others'.
    traces: Traces = field(default_factory=Traces)
    neighbours: Neighbours | None = None
    # What the console shows; None: this gateway keeps none.
    feed: Feed | None = None
    # Checks over several tables ("is the served name free, is the model still there") and the write that follows are
    # one step inside this gateway; between gateways the writer looks again after its write.
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def audit(self) -> Audit:
        """Where changes of who may do what are told."""
        return Audit(self.events.publish, self.source, self.now)

    def quotas(self, tenant: str) -> Quotas:
        """Return a tenant's limits."""
        entry = self.copies.tenants.entries.get(tenant)
        return Quotas() if entry is None else entry.value.quotas

    def sealing_for(self, what: str) -> SealingKey:
        """Return the key that seals ``what``. Raises Unavailable where this gateway has none."""
        if self.sealing is None:
            raise Unavailable(
                f"this gateway cannot keep {what}: it has no STANDBY_SECRETS_KEY",
                remedy="set it to 32 random bytes in URL-safe base64, the same on every gateway and node",
            )
        return self.sealing

    def key_age(self) -> float:
        """Return the seconds since the copies of keys and tenants were last confirmed, the older one's."""
        now = self.clock()
        return max(self.copies.keys.staleness(now), self.copies.tenants.staleness(now))

    def authenticate(self, authorization_header: bytes | None, scope: Scope | None = Scope.CONTROL) -> ApiKey:
        """Return the caller's key. Raises NotAuthenticated, Forbidden where it is not for ``scope``, Unavailable."""
        return authenticate(authorization_header, self._key_ring(), self.pepper, scope)

    def still_lets_in(self, key_id: str) -> bool:
        """Whether a key that was let in before would be again."""
        try:
            found = self._key_ring().get(key_id)
        except Unavailable:
            return False
        return found is not None and found.revoked_at is None

    def _key_ring(self) -> KeyRing:
        return KeyRing(self.copies.keys, self.copies.tenants, now=self.now, staleness=self.key_age, trust_s=self.key_trust_s)


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

    def about(self, target: str) -> None:
        """Say what an audited request was about, where its path does not."""
        self.request.state.audited = target

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
    """One row of the route table; ``admin`` rows refuse tenant keys; rows with an ``audit`` word are told of."""

    method: str
    path: str
    handler: Handler
    admin: bool = False
    audit: str = ""


def guarded(context: ApiContext, row: ApiRoute) -> Route:
    """Return the Starlette route of ``row``: nothing behind it runs before the key was accepted."""

    async def serve(request: Request) -> Response:
        try:
            caller = _caller(context, request)
        except StandbyError as error:
            return error_response(error)
        try:
            answer = await row.handler(_enter(context, row, request, caller))
        except StandbyError as error:
            await _tell(context, row, request, caller, error.code)
            return error_response(error)
        await _tell(context, row, request, caller)
        return answer

    return Route(row.path, serve, methods=[row.method], name=f"{row.method} {row.path}")


def missing(error: type[NotFound], kind: str, name: str) -> NotFound:
    """Return the one answer for what does not exist and for what belongs to somebody else."""
    return error(f"there is no {kind} {name[:80]!r}", remedy=f"list yours with `standby {kind}s list`")


def _caller(context: ApiContext, request: Request) -> ApiKey:
    header = request.headers.get("authorization")
    return context.authenticate(None if header is None else header.encode("latin-1"))


def _enter(context: ApiContext, row: ApiRoute, request: Request, caller: ApiKey) -> Call:
    if row.admin and caller.role is not Role.ADMIN:
        raise Forbidden(f"{row.method} {row.path} needs an administrator's key", remedy="use a key of role admin")
    return Call(context, request, caller, acting_tenant(caller, request.headers.get(TENANT_HEADER)))


async def _tell(context: ApiContext, row: ApiRoute, request: Request, caller: ApiKey, refusal: str = "") -> None:
    if not row.audit:
        return
    target = getattr(request.state, "audited", None) or str(request.path_params.get("id", ""))
    await context.audit.tell(
        tenant=caller.tenant,
        who=caller.id,
        action=row.audit,
        target=target[:_LONGEST_TARGET],
        outcome="refused" if refusal else "done",
        reason=refusal,
    )
