"""What a request to one of the runtime's routes asks for: who asks, which endpoint, in which form. Nothing is carried out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from standby.domain import access
from standby.domain.ask import Ask
from standby.domain.aws import is_component
from standby.domain.errors import EndpointNotFound, InvalidInput
from standby.domain.priority import Priority
from standby.sagemaker.auth import refusals
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime import answers, asks, forms, routes
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.components import Components
from standby.sagemaker.runtime.contract import (
    Arrival,
    AsgiScope,
    Asker,
    Authenticator,
    Caller,
    ContainerAnswered,
    Invoker,
    Receive,
    Send,
    Target,
)
from standby.sagemaker.runtime.routes import Operation, RuntimeRoute
from standby.wire.headers import PRIORITY

_BEARER: Final = b"bearer "
_SAGEMAKER_TOKEN: Final = b"sagemaker-api-key-"
# Media types under which JSON comes too: curl's and the SDKs' defaults.
_UNDECLARED: Final = frozenset({b"", b"application/octet-stream", b"application/x-www-form-urlencoded", b"text/plain", b"*/*"})


@dataclass(frozen=True)
class Limits:
    """Bytes and seconds. ``invocation_s`` and ``stream_s`` count from the moment in which an engine is asked."""

    body_bytes: int
    serverless_bytes: int
    invocation_s: float
    stream_s: float


class Request(NamedTuple):
    """A request as it came; ``place`` learns the tenant once it is known."""

    route: RuntimeRoute
    arrival: Arrival
    place: Place
    headers: dict[bytes, bytes]
    scope: AsgiScope
    receive: Receive
    send: Send


class Asked(NamedTuple):
    """A request that was understood; ``priority`` and ``may_shadow`` are the caller's key's."""

    target: Target
    payload: dict[str, Any]
    call: forms.EngineCall
    body: bytes
    session: str | None
    ask: Ask
    priority: Priority | None
    may_shadow: bool = False


@dataclass(frozen=True)
class Understanding:
    """``wall`` gives seconds since the epoch; without an ``authenticator`` only our own bearer keys are known.

    ``shadow_by_tenants``: keys of tenants may mark requests as tests, too (``standby.domain.access.may_shadow``).
    """

    invoker: Invoker
    components: Components
    limits: Limits
    wall: Callable[[], float]
    authenticator: Authenticator | None
    shadow_by_tenants: bool = False

    async def of(self, request: Request) -> Asked:
        """Return what is asked, with its body read. Raises AwsError, the domain's errors, ContainerAnswered."""
        route = request.route
        asker, body = await self.caller(request)
        wished = routes.wishes(route, request.scope["headers"])
        urgency = asks.wished_priority(request.headers.get(PRIORITY))
        target = self._find(request, asker.tenant, wished)
        if body is None:
            # The endpoint is looked up before the body is read: an unknown name costs nothing.
            body = await self.invoker.read(request.scope, request.receive, self.limits.body_bytes)
        if target.serverless and len(body) > self.limits.serverless_bytes:
            raise answers.too_large(len(body), self.limits.serverless_bytes, "request body")
        payload, call = self._form(request, target, body)
        sent, ask = asks.prepared(payload, call.body, target.served_name, urgency)
        return Asked(target, payload, call._replace(body=sent), body, wished.session, ask, asker.priority, asker.may_shadow)

    async def caller(self, request: Request) -> tuple[Asker, bytes | None]:
        """Return who asks, and the request's body where a signature covers it, else None: it is not read yet.

        Raises AwsError and the domain's errors.
        """
        scope = request.scope
        if scope["method"] != "POST":
            raise InvalidInput(f"{scope['method']} is not possible here", remedy="use POST")
        body: bytes | None = None
        authorization = request.headers.get(b"authorization", b"")
        if authorization[: len(_BEARER)].lower() == _BEARER:
            asker = self._bearer(request, authorization[len(_BEARER) :].strip())
        else:
            self._may_be_signed(request, authorization)
            body = await self.invoker.read(scope, request.receive, self.limits.body_bytes)
            asker = self._signed(request, body)
        request.place.tenant = asker.tenant
        return asker, body

    def _find(self, request: Request, tenant: str, wished: routes.Wishes) -> Target:
        endpoint, component = request.route.endpoint, request.route.component or wished.component
        if is_component(endpoint):
            routes.check_name(request.route)  # refuses it: a component is asked by its own name
        try:
            if component is not None:
                return self.components.find(tenant, endpoint, component, wished.variant, wished.session)
            return self.invoker.find(tenant, endpoint, wished.variant, wished.session)
        except EndpointNotFound:
            routes.check_name(request.route)
            raise

    def _bearer(self, request: Request, token: bytes) -> Asker:
        if not token.startswith(_SAGEMAKER_TOKEN):
            return self.invoker.asker(request.scope)
        if self.authenticator is None:
            raise refusals.unknown_client()
        caller = self.authenticator.authenticate_bearer(token.decode("latin-1"), self.wall())
        self._may_invoke(request, caller.tenant, caller.arn, caller.scopes)
        return self._asker(caller)

    def _asker(self, caller: Caller) -> Asker:
        # What signs is a tenant's key: an administrator's bearer key comes by another way.
        may_shadow = access.may_shadow(admin=False, scopes=caller.scopes, by_tenants=self.shadow_by_tenants)
        return Asker(caller.tenant, caller.priority, may_shadow)

    def _may_be_signed(self, request: Request, authorization: bytes) -> None:
        """Refuse before the body is read what cannot be a signed request of an operation that takes them."""
        if not authorization and b"X-Amz-Signature=" not in request.scope["query_string"]:
            raise refusals.missing_token()
        if request.route.operation is Operation.OPENAI:
            raise AwsError(
                "AccessDeniedException", "This route takes bearer tokens, no signatures: send Authorization: Bearer …", 403
            )

    def _signed(self, request: Request, body: bytes) -> Asker:
        if self.authenticator is None:
            raise refusals.unknown_client()
        scope = request.scope
        caller = self.authenticator.authenticate(
            scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], body, now=self.wall()
        )
        self._may_invoke(request, caller.tenant, caller.arn, caller.scopes)
        return self._asker(caller)

    def _may_invoke(self, request: Request, tenant: str, arn: str, scopes: Any) -> None:
        request.place.tenant = tenant
        if access.Scope.INVOKE not in scopes:
            action = "InvokeEndpoint" if request.route.operation is Operation.OPENAI else request.route.operation.value
            raise refusals.denied(arn, f"sagemaker:{action}", request.place.arn)

    def _form(self, request: Request, target: Target, body: bytes) -> tuple[dict[str, Any], forms.EngineCall]:
        if request.route.operation is Operation.OPENAI:
            payload = forms.parse_object(body)
            named = forms.named(payload, body, target.served_name)
            return payload, forms.EngineCall(forms.Form.MESSAGES, forms.CHAT_PATH, named, payload.get("stream") is True)
        try:
            payload = forms.parse_object(body)
            return payload, forms.engine_call(payload, body, target.served_name)
        except InvalidInput as error:
            # A container would say this: what is in a body is between it and the caller.
            raise _as_container(error, request.headers.get(b"content-type", b"")) from None


def _as_container(error: InvalidInput, content_type: bytes) -> ContainerAnswered:
    media = content_type.partition(b";")[0].strip().lower()
    if media in _UNDECLARED or media.endswith((b"/json", b"+json", b"/jsonlines")):
        return ContainerAnswered(400, str(error).encode())
    text = f"Unsupported Media Type: {media.decode('latin-1')[:100]}; this model takes JSON only (application/json)"
    return ContainerAnswered(415, text.encode())
