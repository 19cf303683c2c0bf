"""The data routes: OpenAI's below ``/v1`` here, an endpoint's own in standby.sagemaker.runtime. A bare ASGI callable.

It is bare, since each request pays. On ``/v1`` the body comes first, for it names the model.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from standby.domain import access
from standby.domain.errors import InvalidInput, ModelNotFound, StandbyError, Unavailable
from standby.domain.priority import Priority
from standby.gateway.accounts import Accounts
from standby.gateway.client_watch import ClientWatch
from standby.gateway.desk import Desk
from standby.gateway.directory import Directory
from standby.gateway.dispatch import Dispatcher, OnGone
from standby.gateway.http import ClientGone, UploadRoom, body_at_hand, first_headers, read_body, send_error
from standby.gateway.keys import TENANT_HEADER, Proofs, acting_tenant, authenticate
from standby.gateway.openai_stream import break_off, outlet_of, refuse, tell_engines_error
from standby.gateway.relay import DoorClient
from standby.sagemaker.runtime import asks, contract, forms
from standby.sagemaker.runtime.asking import Limits, Understanding
from standby.sagemaker.runtime.async_context import AsyncContext
from standby.sagemaker.runtime.async_side import AsyncSide
from standby.sagemaker.runtime.components import Components
from standby.sagemaker.runtime.contract import Arrival, Asker, Authenticator, ContainerAnswered, Job, Resources, Target
from standby.sagemaker.runtime.dialects import Declared
from standby.sagemaker.runtime.joined import Runs
from standby.sagemaker.runtime.routes import PREFIX, Operation, RuntimeRoute, route_of
from standby.sagemaker.runtime.service import RuntimeService
from standby.sagemaker.runtime.shadow import shadow_of
from standby.telemetry.trace_context import TRACEPARENT, Head
from standby.telemetry.tracing import Tracing
from standby.wire.headers import PRIORITY, REQUEST_ID, SHADOW

MAX_REQUEST_ID = 128

# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_INVOKE: Final = access.Scope.INVOKE
_ADMIN: Final = access.Role.ADMIN
_TENANT: Final = TENANT_HEADER.encode()
_OPENAI: Final = frozenset({forms.CHAT_PATH, forms.COMPLETIONS_PATH})
_PASSED_ON: Final = frozenset({b"content-type", b"accept", b"traceparent", b"tracestate"})


@dataclass(frozen=True)
class RuntimeOptions:
    """What the endpoints' own routes need beyond the data plane's: sizes in bytes, times in seconds.

    ``linger_s``: how long a run goes on after its SDK has left; ``kept_s``, ``kept_bytes``: bounds of missed answers.
    ``shadow_by_tenants``: tenants may mark requests as tests, which no metering counts.
    ``heartbeat_s``: silence after which a stream for OpenAI's clients gets a comment, ``/v1`` included; None: never.
    """

    region: str = "us-east-1"
    serverless_body_bytes: int = 4 * 1024 * 1024
    invocation_limit_s: float = 60.0
    stream_limit_s: float = 480.0
    linger_s: float = 5.0
    kept_s: float = 20.0
    kept_bytes: int = 32 * 1024 * 1024
    authenticator: Authenticator | None = None
    resources: Resources | None = None
    strict: bool = False
    asynchronous: AsyncContext | None = None
    heartbeat_s: float | None = 10.0
    shadow_by_tenants: bool = False


@dataclass
class DataPlane:
    """``monotonic`` and ``wall`` are clocks in seconds; ``bus_away`` says for how long the bus has been unreachable."""

    directory: Directory
    doors: DoorClient
    accounts: Accounts
    node_token: str = field(repr=False)
    pepper: bytes = field(repr=False)
    max_body_bytes: int
    monotonic: Callable[[], float]
    wall: Callable[[], float]
    bus_away: Callable[[], float] = field(default=lambda: 0.0)
    uploads: UploadRoom = field(default_factory=UploadRoom)
    runtime: RuntimeOptions = field(default_factory=RuntimeOptions)
    tracing: Tracing | None = None
    _prefix: str = field(default_factory=lambda: f"{secrets.token_hex(8)}-")
    _count: int = 0
    _proofs: Proofs = field(default_factory=Proofs)

    def __post_init__(self) -> None:
        self.dispatcher = Dispatcher(self.doors, self.accounts, self.node_token, self.monotonic, self.bus_away)
        options = self.runtime
        limits = Limits(
            body_bytes=self.max_body_bytes,
            serverless_bytes=min(self.max_body_bytes, options.serverless_body_bytes),
            invocation_s=options.invocation_limit_s,
            stream_s=options.stream_limit_s,
        )
        self.runs = Runs(self.monotonic, options.linger_s, options.kept_s, options.kept_bytes)
        declared = Declared(options.resources)
        understanding = Understanding(
            self,
            Components(self, options.resources, options.strict),
            limits,
            self.wall,
            options.authenticator,
            options.shadow_by_tenants,
        )
        self.asynchronous = (
            None if options.asynchronous is None else AsyncSide(options.asynchronous, self, understanding, declared)
        )
        self.endpoints = RuntimeService(
            invoker=self,
            understanding=understanding,
            declared=declared,
            limits=limits,
            region=options.region,
            runs=self.runs,
            monotonic=self.monotonic,
            heartbeat_s=options.heartbeat_s,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request on a data route (ASGI)."""
        served = self.served(scope, receive, send)
        assert served is not None, f"{scope['path']} is none of its routes"
        await served

    def served(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None] | None:
        """Return what serves one request, None for one that is not on a data route."""
        path: str = scope["path"]
        if path in _OPENAI:
            return self._openai(scope, receive, send)
        route = route_of(path) if path.startswith(PREFIX) else None
        return None if route is None else self._of_endpoint(route, scope, receive, send)

    async def _of_endpoint(self, route: RuntimeRoute, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if route.operation is not Operation.ASYNC:
                await self.endpoints(route, scope, receive, send)
            elif self.asynchronous is not None:
                await self.asynchronous(route, scope, receive, send)
            else:
                await send_error(send, Unavailable("this gateway takes no asynchronous invocations"))
        except ClientGone:
            return

    # ---- OpenAI's routes ---------------------------------------------------------------------------------------

    async def _openai(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = first_headers(scope)
        arrival = self._arrival(scope, given)
        try:
            asker, wished, mark = self._introduced(scope, given)
            body = body_at_hand(receive, self.max_body_bytes)
            if body is None:
                body = await self.read(scope, receive, self.max_body_bytes)
            desk, job = self._resolve(scope, asker, body, wished, mark)
        except StandbyError as error:
            self.refused(error.code)
            await send_error(send, error, [(b"x-request-id", arrival.echoed)])
            return
        except ClientGone:
            self.refused("client_gone")
            return
        if job.ask.stream:
            await self._stream(desk, arrival, job, receive, send)
            return
        try:
            await self.dispatcher.run(desk, arrival, job, receive, send)
        except StandbyError as error:
            await refuse(error, arrival, send, None)
        except ClientGone:
            return

    async def _stream(self, desk: Desk, arrival: Arrival, job: Job, receive: Receive, send: Send) -> None:
        outlet = outlet_of(arrival, send, self.monotonic, self.runtime.heartbeat_s)
        try:
            reason = await self.dispatcher.run(desk, arrival, job, receive, outlet)
            if reason is not None:
                await break_off(reason, outlet)
        except StandbyError as error:
            await refuse(error, arrival, send, outlet)
        except ContainerAnswered as answered:
            await tell_engines_error(answered, outlet)
        except ClientGone:
            return
        finally:
            outlet.close()

    def _introduced(self, scope: Scope, given: Mapping[bytes, bytes]) -> tuple[Asker, Priority | None, bytes | None]:
        """Return who asks, the priority that he wishes for, and his mark of a test; all before the body is read."""
        asker = self._asker(given)
        if scope["method"] != "POST":
            raise InvalidInput(f"{scope['method']} is not possible here", remedy="use POST")
        wished = mark = None
        if PRIORITY in given or SHADOW in given:
            for name, value in scope["headers"]:
                if name == PRIORITY:
                    wished = asks.wished_priority(value)
                elif name == SHADOW:
                    mark = value
        return asker, wished, mark

    def _resolve(
        self, scope: Scope, asker: Asker, body: bytes, wished: Priority | None, mark: bytes | None
    ) -> tuple[Desk, Job]:
        payload = forms.parse_object(body)
        desk = self._serving(asker.tenant, _model_of(payload))
        served_name = desk.route.endpoint.served_name
        body, ask = asks.prepared(payload, forms.named(payload, body, served_name), served_name, wished)
        shadow, told = shadow_of(mark, may_shadow=asker.may_shadow)
        headers = [header for header in scope["headers"] if header[0] in _PASSED_ON]
        return desk, Job(scope["path"], headers, body, told, ask=ask, priority=asker.priority, shadow=shadow)

    def _serving(self, tenant: str, model: str) -> Desk:
        """Return a desk that serves a name, also one that is no endpoint's but ``served name:ADAPTER``."""
        try:
            return self.directory.desk_serving(tenant, model)
        except ModelNotFound:
            served, colon, adapter = model.rpartition(":")
            if not colon or not adapter:
                raise
            try:
                return self.directory.desk_serving(tenant, served)
            except ModelNotFound:
                pass  # what was asked for is what the refusal names
            raise

    # ---- what the endpoints' routes need (standby.sagemaker.runtime.contract.Invoker) ---------------------------

    def arrive(self, scope: Scope) -> Arrival:
        """Note a request's arrival."""
        return self._arrival(scope, first_headers(scope))

    def _arrival(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Arrival:
        # The engine only ever sees an id of ours: two callers may send the same one at once (field case B34).
        self._count += 1
        request_id = f"{self._prefix}{self._count:x}"
        given = headers.get(REQUEST_ID)
        echoed = given[:MAX_REQUEST_ID] if given else request_id.encode()
        return Arrival(self.monotonic(), self.wall(), request_id, echoed, self._trace(scope, headers))

    def _trace(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Head | None:
        tracing, path = self.tracing, scope.get("path", "")
        if tracing is None:
            return None
        return tracing.head(scope["headers"], path) if TRACEPARENT in headers else tracing.begin(path)

    def refused(self, code: str) -> None:
        """Count a request that ended before its endpoint was known."""
        self.accounts.nobody.ended(code)

    def asker(self, scope: Scope) -> Asker:
        """Return for whom a bearer key of ours acts. Raises NotAuthenticated, Forbidden."""
        return self._asker(first_headers(scope))

    def _asker(self, headers: Mapping[bytes, bytes]) -> Asker:
        key = authenticate(headers.get(b"authorization"), self.directory.keys, self.pepper, _INVOKE, self._proofs)
        named = headers.get(_TENANT)
        tenant = key.tenant if named is None else acting_tenant(key, named.decode("latin-1"))
        admin = key.role is _ADMIN
        may_shadow = access.may_shadow(admin=admin, scopes=key.scopes, by_tenants=self.runtime.shadow_by_tenants)
        return Asker(tenant, key.priority, may_shadow)

    def read(self, scope: Scope, receive: Receive, limit: int) -> Awaitable[bytes]:
        """Return the body. Raises PayloadTooLarge, QueueFull, ClientGone."""
        return read_body(scope, receive, limit, self.uploads)

    def find(self, tenant: str, endpoint: str, variant: str | None, session: str | None) -> Target:
        """Return the endpoint's variant. Raises EndpointNotFound, VariantNotFound."""
        desk = self.directory.desk(tenant, endpoint, variant, session)
        there, chosen = desk.route.endpoint, desk.route.variant
        serverless = chosen.concurrency_limit is not None
        return Target(desk, tenant, there.name, there.served_name, chosen.name, chosen.model, serverless)

    def has_ready(self, target: Target) -> bool:
        """Whether an instance of the variant is ready, as far as this gateway knows."""
        desk: Desk = target.desk
        return desk.has_ready

    def wake(self, target: Target) -> None:
        """Ask for an instance of the variant without waiting for it."""
        desk: Desk = target.desk
        desk.want()

    def run(
        self,
        target: Target,
        arrival: Arrival,
        job: Job,
        receive: contract.Receive,
        send: contract.Send,
        *,
        on_gone: OnGone | None = None,
    ) -> Awaitable[str | None]:
        """Ask an engine and pass its answer on."""
        return self.dispatcher.run(target.desk, arrival, job, receive, send, on_gone)

    def joined(self, target: Target) -> None:
        """Count a request that was answered by another one's run."""
        self.accounts.of(target.desk).ended("joined")

    def watch(self, receive: contract.Receive, on_gone: Callable[[], object]) -> ClientWatch:
        """Call ``on_gone`` when the caller leaves."""
        return ClientWatch(receive, on_gone)


def _model_of(payload: Mapping[str, Any]) -> str:
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("the body has no 'model'", remedy="name one of GET /v1/models")
    return model
