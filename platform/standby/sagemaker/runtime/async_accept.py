"""InvokeEndpointAsync at the door: who asks, what, and whether it may; then it is in the queue, and the answer is 202.

A request is accepted once the queue has stored it. Before that its inference id gets a ticket: who repeats a request under
its id, as SDKs do when they have heard nothing, gets the same answer and no second execution; another request under the
same id is refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from standby.domain.async_invocation import AsyncInvocation, Ticket, pack
from standby.domain.errors import BusUnavailable, EndpointNotFound, RevisionConflict, StandbyError, Unavailable
from standby.sagemaker.errors import AwsError, runtime_validation
from standby.sagemaker.runtime import answers
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.asking import Request, Understanding
from standby.sagemaker.runtime.asks import wished_priority
from standby.sagemaker.runtime.async_context import AsyncContext, Served
from standby.sagemaker.runtime.async_places import Claim, check_place, claims_of
from standby.sagemaker.runtime.async_request import OPERATION, accepted, outputs_of, parse, repeatable_id
from standby.sagemaker.runtime.contract import AsgiScope, Headers, Invoker, Receive, Send
from standby.sagemaker.runtime.joined import MAX_ID
from standby.sagemaker.runtime.routes import RuntimeRoute, check_name
from standby.sagemaker.shapes.answers import rest_body, rest_headers
from standby.sagemaker.shapes.faults import error_answer
from standby.wire.headers import PRIORITY

# How long an id is remembered after everything about its request must be over.
TICKET_S: Final = 24 * 3600.0
CLAIMS_S: Final = 1.0
_PUTS: Final = 3
_AGAIN_S: Final = 0.2
_JSON: Final = (b"content-type", b"application/json")


@dataclass
class AsyncService:
    """Takes the requests of this gateway; ``knock`` hears of each lane into which something was put."""

    context: AsyncContext
    invoker: Invoker
    understanding: Understanding
    knock: Callable[[str], None]
    _claims: list[Claim] = field(default_factory=list)
    _claims_at: float = -CLAIMS_S

    async def __call__(self, route: RuntimeRoute, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        place = Place(self.context.region, "", route.endpoint)
        request = Request(route, self.invoker.arrive(scope), place, dict(reversed(scope["headers"])), scope, receive, send)
        told: Headers = [(b"x-amzn-requestid", request.arrival.request_id.encode())]
        try:
            invocation = await self.accept(request)
        except (AwsError, StandbyError) as error:
            self.invoker.refused(error.code)
            refusal = error if isinstance(error, AwsError) else answers.aws_error(error, place)
            status, told, body = error_answer(refusal, protocol="rest-json", request_id=request.arrival.request_id)
        else:
            output = {
                "InferenceId": invocation.inference_id,
                "OutputLocation": invocation.output_uri,
                "FailureLocation": invocation.failure_uri,
            }
            status, body = 202, rest_body(OPERATION, output)
            told += [_JSON, *rest_headers(OPERATION, output)]
        told += [(b"x-request-id", request.arrival.echoed), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": body})

    async def accept(self, request: Request) -> AsyncInvocation:
        """Return the invocation once nothing can lose it any more. Raises AwsError and the domain's errors."""
        asker, body = await self.understanding.caller(request)
        tenant = asker.tenant
        wished = wished_priority(request.headers.get(PRIORITY))
        served = self._served(request, tenant)
        outputs = outputs_of(served.config, served.endpoint.name)
        if body is None:
            body = await self.invoker.read(request.scope, request.receive, self.understanding.limits.body_bytes)
        headers = request.scope["headers"]
        asked = parse(request.route.endpoint, headers, body, https=self.context.open_sources)
        inference_id = asked.get("InferenceId")
        if inference_id is None:
            sdk = request.headers.get(b"amz-sdk-invocation-id", b"")
            known = 0 < len(sdk) <= MAX_ID
            inference_id = repeatable_id(tenant, served.endpoint.name, sdk, asked, body) if known else str(uuid.uuid4())
        invocation = accepted(
            asked,
            body,
            served.endpoint,
            outputs,
            inference_id=inference_id,
            now=self.context.now(),
            options=served.options,
        ).model_copy(update={"wished": wished, "key_priority": asker.priority})
        self._check_places(invocation, served)
        return await self._queued(invocation, body)

    # ---- inside ------------------------------------------------------------------------------------------------

    def _served(self, request: Request, tenant: str) -> Served:
        name = request.route.endpoint
        served = None
        if name and "." not in name:
            served = self.context.served(tenant, name)
        if served is None:
            check_name(request.route)
            raise EndpointNotFound(f"endpoint {name[:80]!r} does not exist")
        return served

    def _check_places(self, invocation: AsyncInvocation, served: Served) -> None:
        if served.options.credentials is not None:
            return
        now = self.context.now()
        if not self.context.locations and abs(now - self._claims_at) > CLAIMS_S:
            self._claims, self._claims_at = claims_of(self.context.all_served()), now
        places = [invocation.output_uri, invocation.failure_uri]
        if invocation.input_uri is not None and invocation.input_uri.startswith("s3://"):
            places.append(invocation.input_uri)
        for place in places:
            check_place(place, invocation.tenant, self._claims, self.context.locations)

    async def _queued(self, invocation: AsyncInvocation, body: bytes) -> AsyncInvocation:
        ticket = Ticket(
            digest=invocation.digest,
            inference_id=invocation.inference_id,
            output_uri=invocation.output_uri,
            failure_uri=invocation.failure_uri,
            options=invocation.options,
        )
        life = invocation.ttl_s + invocation.limit_s + TICKET_S
        where = f"{invocation.lane}.{hashlib.sha256(invocation.inference_id.encode()).hexdigest()[:32]}"
        try:
            await self.context.tables.tickets.create(where, ticket, life_s=life)
        except RevisionConflict:
            held = await self.context.tables.tickets.get(where)
            if held is None:
                raise Unavailable("the inference id's ticket has just run out", remedy="retry", retry_after_s=1.0) from None
            if held.value.digest != invocation.digest:
                raise runtime_validation(
                    f"InferenceId {invocation.inference_id} was used by another request to endpoint {invocation.endpoint}."
                ) from None
            # The places with the keys for which they were checked, whatever the endpoint has become since.
            first = held.value
            told = {"output_uri": first.output_uri, "failure_uri": first.failure_uri, "options": first.options}
            invocation = invocation.model_copy(update={**told, "repeated": True})
        # Also where the ticket was there: whoever took it may have been killed before this.
        await self._put(invocation, body)
        return invocation

    async def _put(self, invocation: AsyncInvocation, body: bytes) -> None:
        item = pack(invocation, body)
        for attempt in range(1, _PUTS + 1):
            try:
                await self.context.lanes.put(invocation.lane, invocation.digest, item)
                self.knock(invocation.lane)
                return
            except BusUnavailable:
                # Its outcome may be unknown; under the same id it is one item however often it is put.
                if attempt == _PUTS:
                    raise
                await asyncio.sleep(_AGAIN_S)
