"""The data routes: authenticate, resolve, wait for a slot, relay, account. A bare ASGI callable, since each request pays.

Every request goes ``arrival → desk.enter → (desk.acquire → relay → desk.release)* → end``; whatever way it ends, the
context managers give back what it held. A caller who leaves cancels the request's own task, streaming or not
(field case B25).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.types import Receive, Scope, Send

from standby.domain.errors import BusUnavailable, EngineDied, InvalidInput, StandbyError, Unavailable
from standby.domain.instance import Activation, Phase
from standby.gateway import forms
from standby.gateway.accounts import Accounts
from standby.gateway.client_watch import ClientWatch
from standby.gateway.desk import Desk, Grant
from standby.gateway.directory import Directory
from standby.gateway.errors import Headers
from standby.gateway.http import ClientGone, UploadRoom, header, read_body, send_bytes, send_error
from standby.gateway.keys import TENANT_HEADER, acting_tenant, authenticate
from standby.gateway.relay import AnswerCutOff, DoorClient, OutcomeKind, RelayOutcome, RelayRequest
from standby.telemetry import metrics
from standby.wire.headers import Refusal

_log = logging.getLogger(__name__)

MAX_REQUEST_ID = 128
# Longer than a reconnect, shorter than a caller's patience: without the bus nothing at zero can be woken.
BUS_PATIENCE_S = 5.0

_INVOCATIONS: Final = "/invocations"
_ENDPOINTS: Final = "/endpoints/"
_OPENAI: Final = frozenset({forms.CHAT_PATH, forms.COMPLETIONS_PATH})
_PASSED_ON: Final = frozenset({b"content-type", b"accept", b"traceparent", b"tracestate"})


class _Arrival(NamedTuple):
    """What is known of a request before it is resolved."""

    arrived: float
    arrived_at: float
    request_id: str
    echoed: bytes


class _Call(NamedTuple):
    """A resolved request."""

    arrival: _Arrival
    path: str
    body: bytes
    headers: Headers
    payload: Mapping[str, Any]
    buffered: bool
    variant_header: bool


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
    _prefix: str = field(default_factory=lambda: f"{secrets.token_hex(8)}-")
    _count: int = 0

    @staticmethod
    def takes(scope: Scope) -> bool:
        """Return whether this request is on a data route."""
        path: str = scope["path"]
        return path in _OPENAI or (path.startswith(_ENDPOINTS) and path.endswith(_INVOCATIONS))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI)."""
        arrival = self._arrive(scope)
        account = self.accounts.nobody
        try:
            desk, call = await self._resolve(scope, receive, arrival)
            account = self.accounts.of(desk)
            await self._serve(desk, call, receive, send)
        except StandbyError as error:
            account.ended(error.code)
            await send_error(send, error, [(b"x-request-id", arrival.echoed)])
        except ClientGone:
            account.ended("client_gone")

    # ---- before the desk ---------------------------------------------------------------------------------------

    def _tenant(self, scope: Scope) -> str:
        key = authenticate(header(scope, b"authorization"), self.directory.keys, self.pepper)
        named = header(scope, TENANT_HEADER.encode())
        return acting_tenant(key, None if named is None else named.decode("latin-1"))

    def _arrive(self, scope: Scope) -> _Arrival:
        # The engine only ever sees an id of ours: two callers may send the same one at once (field case B34).
        self._count += 1
        request_id = f"{self._prefix}{self._count:x}"
        given = header(scope, b"x-request-id")
        echoed = given[:MAX_REQUEST_ID] if given else request_id.encode()
        return _Arrival(self.monotonic(), self.wall(), request_id, echoed)

    async def _resolve(self, scope: Scope, receive: Receive, arrival: _Arrival) -> tuple[Desk, _Call]:
        tenant = self._tenant(scope)
        if scope["method"] != "POST":
            raise InvalidInput(f"{scope['method']} is not possible here", remedy="use POST")
        path: str = scope["path"]
        if path in _OPENAI:
            body = await read_body(scope, receive, self.max_body_bytes, self.uploads)
            payload = forms.parse_object(body)
            desk = self.directory.desk_serving(tenant, _model_of(payload))
            return desk, self._call(scope, arrival, path, body, payload, forms.Form.MESSAGES, openai=True)
        # The endpoint is looked up before the body is read: an unknown name costs nothing.
        desk = self.directory.desk(tenant, path[len(_ENDPOINTS) : -len(_INVOCATIONS)])
        body = await read_body(scope, receive, self.max_body_bytes, self.uploads)
        payload = forms.parse_object(body)
        engine = forms.engine_call(payload, body)
        return desk, self._call(scope, arrival, engine.path, engine.body, payload, engine.form, openai=False)

    def _call(
        self,
        scope: Scope,
        arrival: _Arrival,
        path: str,
        body: bytes,
        payload: Mapping[str, Any],
        form: forms.Form,
        *,
        openai: bool,
    ) -> _Call:
        headers = [(name, value) for name, value in scope["headers"] if name in _PASSED_ON]
        if form is forms.Form.INPUTS:
            headers = [(b"content-type", b"application/json")]
        return _Call(arrival, path, body, headers, payload, form is forms.Form.INPUTS, not openai)

    # ---- at the desk -------------------------------------------------------------------------------------------

    async def _serve(self, desk: Desk, call: _Call, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        gone = over = False

        def leave() -> None:
            nonlocal gone
            if not over:
                gone = True
                task.cancel()

        # The server calls a caller who has got the whole answer "disconnected", too, in the very turn of the loop in which
        # the task is to be resumed with its outcome: the task goes first, or every success would count as a caller who left.
        watch = ClientWatch(receive, lambda: loop.call_soon(leave))
        try:
            with desk.enter():
                await self._attempts(desk, call, send)
        except asyncio.CancelledError as cancelled:
            task.uncancel()
            if gone:
                raise ClientGone from None
            # The server's grace for open requests is over (field case B18).
            if isinstance(cancelled, AnswerCutOff):
                self.accounts.of(desk).ended("broken_stream")
                return
            raise Unavailable("the gateway is shutting down", remedy="retry", retry_after_s=1.0) from None
        finally:
            over = True
            watch.stop()

    async def _attempts(self, desk: Desk, call: _Call, send: Send) -> None:
        account = self.accounts.of(desk)
        again = False
        while True:
            grant = await self._acquire(desk, call, again=again)
            dispatched = self.monotonic()
            try:
                outcome = await self._attempt(desk, call, grant, send, dispatched)
            finally:
                desk.release(grant)
            if outcome is not None:
                account.waited(dispatched - call.arrival.arrived, grant.rung)
                account.ended(outcome)
                account.lasted(self.monotonic() - call.arrival.arrived, grant.rung)
                return
            again = True

    async def _acquire(self, desk: Desk, call: _Call, *, again: bool) -> Grant:
        if not desk.has_ready and self.bus_away() > BUS_PATIENCE_S:
            raise BusUnavailable(
                f"endpoint {desk.route.endpoint.name!r} is at zero and the control plane is unreachable",
                remedy="retry later",
                retry_after_s=BUS_PATIENCE_S,
            )
        arrival = call.arrival
        return await desk.acquire(
            arrived=arrival.arrived, arrived_at=arrival.arrived_at, body_bytes=len(call.body), again=again
        )

    async def _attempt(self, desk: Desk, call: _Call, grant: Grant, send: Send, dispatched: float) -> str | None:
        """Return how the request ended, or None when it must be queued again."""
        account = self.accounts.of(desk)
        waited = dispatched - call.arrival.arrived
        request = RelayRequest(
            door=grant.address,
            instance=grant.instance,
            epoch=grant.epoch,
            token=self.node_token,
            path=call.path,
            headers=call.headers,
            body=call.body,
            request_id=call.arrival.request_id,
        )
        extra = self._answer_headers(desk, call, grant, waited)
        if call.buffered:
            outcome = await self._buffered(request, call, extra, send)
        else:
            outcome = await self.doors.relay(request, send, extra_headers=extra)
        if outcome.first_byte_at is not None:
            account.first_byte(outcome.first_byte_at - call.arrival.arrived, grant.rung)
        return self._conclude(desk, grant, outcome)

    async def _buffered(self, request: RelayRequest, call: _Call, extra: Headers, send: Send) -> RelayOutcome:
        outcome, answer = await self.doors.fetch(request, limit=self.max_body_bytes)
        if outcome.kind is OutcomeKind.DONE:
            body = forms.generated_text(call.payload, answer) if outcome.status == 200 else answer
            await send_bytes(send, outcome.status, body, extra)
        return outcome

    def _conclude(self, desk: Desk, grant: Grant, outcome: RelayOutcome) -> str | None:
        match outcome.kind:
            case OutcomeKind.DONE:
                return "ok" if outcome.status < 400 else f"engine_{outcome.status // 100}xx"
            case OutcomeKind.REFUSED:
                metrics.REQUEUED.labels(outcome.reason).inc()
                if outcome.reason == Refusal.BAD_TOKEN:
                    _log.error("a door refuses this gateway's STANDBY_NODE_TOKEN", extra={"door": f"{grant.address}"})
                desk.refused(grant, outcome.reason)
                return None
            case OutcomeKind.CONNECT_FAILED:
                metrics.REQUEUED.labels("connect-failed").inc()
                desk.unreachable(grant)
                return None
            case OutcomeKind.ENGINE_FAILED if not outcome.saw:
                metrics.REQUEUED.labels("engine-failed").inc()
                desk.unreachable(grant)
                return None
            case OutcomeKind.ENGINE_FAILED:
                # Not tried elsewhere: a request that was running when an engine died may be its end (field case B34).
                desk.unreachable(grant)
                raise EngineDied(
                    f"the engine of endpoint {desk.route.endpoint.name!r} failed before it answered ({outcome.reason})",
                    remedy=f"see 'standby endpoints show {desk.route.endpoint.name}'; the request was not repeated",
                )
            case OutcomeKind.CLIENT_GONE:
                raise ClientGone
            case OutcomeKind.BROKEN_MID_STREAM:
                return "broken_stream"

    @staticmethod
    def _answer_headers(desk: Desk, call: _Call, grant: Grant, waited: float) -> Headers:
        headers = [
            (b"x-request-id", call.arrival.echoed),
            (b"x-standby-instance", grant.instance.encode()),
            (b"x-standby-rung", grant.rung.label.encode()),
            (b"x-standby-wait-ms", b"%.1f" % (waited * 1000)),
        ]
        if call.variant_header:
            headers.append((b"x-amzn-invoked-production-variant", desk.route.variant.name.encode()))
        if grant.activation is not None:
            headers.append((b"x-standby-activation", grant.activation.id.encode()))
            headers.append((b"x-standby-phases-ms", phases_header(grant.activation, waited)))
        return headers


def phases_header(activation: Activation, waited_s: float) -> bytes:
    """Return ``queued=1.2,placed=3.4,…`` in milliseconds.

    The node's phases are durations by its own clock; what remains of the wait is the time on the bus and in the
    controller, called ``placed``, so that no two machines' clocks are compared.
    """
    phases = {phase: activation.phases_ms[phase] for phase in Phase if phase in activation.phases_ms}
    placed = max(0.0, waited_s * 1000 - sum(phases.values()))
    ordered = {Phase.PLACED: placed, **phases}
    return ",".join(f"{phase.value}={ms:.1f}" for phase, ms in ordered.items()).encode()


def _model_of(payload: Mapping[str, Any]) -> str:
    model = payload.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidInput("the body has no 'model'", remedy="name one of GET /v1/models")
    return model
