"""The runtime's operations as one ASGI callable: who asks, which endpoint, what is asked, and how the answer is told.

InvokeEndpoint, InvokeEndpointWithResponseStream and the OpenAI route of an endpoint. What carries a request to an engine
is the gateway, behind ``Invoker``. Every answer has ``x-amzn-requestid``; every error is AWS's, on the OpenAI route OpenAI's.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from standby.domain.errors import StandbyError, Unavailable
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime import answers, forms, routes
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.asking import Asked, Limits, Request, Understanding
from standby.sagemaker.runtime.contract import (
    Answer,
    AsgiScope,
    ContainerAnswered,
    Invoker,
    Job,
    Receive,
    Send,
    Target,
)
from standby.sagemaker.runtime.dialects import Declared
from standby.sagemaker.runtime.joined import MAX_ID, Key, Result, Run, Runs, may_come_again
from standby.sagemaker.runtime.lines import LineWriter
from standby.sagemaker.runtime.openai_outlet import OpenAIOutlet
from standby.sagemaker.runtime.outlets import Captured, Events, Outlet, Translated
from standby.sagemaker.runtime.routes import Operation, RuntimeRoute
from standby.sagemaker.runtime.shadow import shadow_of
from standby.sagemaker.shapes.faults import error_answer
from standby.wire.headers import HEARTBEAT, SHADOW

_ANSWERED: Final = (AwsError, StandbyError, ContainerAnswered)
_JSON: Final = (b"content-type", b"application/json")


@dataclass(frozen=True)
class RuntimeService:
    """``monotonic`` is a clock in seconds; ``heartbeat_s`` is for streams on the OpenAI route, None: no heartbeats."""

    invoker: Invoker
    understanding: Understanding
    declared: Declared
    limits: Limits
    region: str
    runs: Runs
    monotonic: Callable[[], float]
    heartbeat_s: float | None = None

    async def __call__(self, route: RuntimeRoute, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = dict(reversed(scope["headers"]))
        place = Place(self.region, "", route.endpoint)
        request = Request(route, self.invoker.arrive(scope), place, headers, scope, receive, send)
        try:
            asked = await self.understanding.of(request)
        except _ANSWERED as error:
            self.invoker.refused(error.code if not isinstance(error, ContainerAnswered) else "engine_4xx")
            await self._refuse(request, error)
            return
        try:
            await self._carry_out(request, asked)
        except _ANSWERED as error:
            await self._refuse(request, error)

    # ---- how it is answered ------------------------------------------------------------------------------------

    def _carry_out(self, request: Request, asked: Asked) -> Awaitable[None]:
        if request.route.operation is Operation.STREAM:
            return self._stream(request, asked)
        if asked.call.stream and asked.call.form is not forms.Form.INPUTS:
            return self._openai_stream(request, asked)
        client = Outlet(request.send)
        if request.route.operation is Operation.OPENAI:
            return self._direct(request, asked, client, client)
        if asked.call.stream:
            return self._direct(request, asked, self._translated(request, asked, client), client)
        if b"amz-sdk-invocation-id" in request.headers or asked.call.form is forms.Form.INPUTS or asked.target.serverless:
            return self._invoke_whole(request, asked)
        return self._direct(request, asked, client, client)

    async def _invoke_whole(self, request: Request, asked: Asked) -> None:
        """Answer when the answer is whole: it may be shared, has to be translated, or has a limit of its own."""
        invocation = request.headers.get(b"amz-sdk-invocation-id", b"")
        if 0 < len(invocation) <= MAX_ID:
            digest = hashlib.sha256(asked.body).digest()
            answer = await self._once(request, asked, Key(asked.target.tenant, asked.target.endpoint, invocation, digest))
        else:
            answer = await self._whole(request, asked)
        if answer is not None:
            await _send_answer(request, answer)

    async def _openai_stream(self, request: Request, asked: Asked) -> None:
        # An AWS SDK repeats what was refused with a status: InvokeEndpoint's head waits for the engine's.
        heartbeat = self.heartbeat_s if request.route.operation is Operation.OPENAI else None
        headers = [(b"x-request-id", request.arrival.echoed), *_about(request, asked.target)]
        client = OpenAIOutlet(request.send, headers, self.monotonic, heartbeat)
        try:
            await self._direct(request, asked, client, client)
        finally:
            client.close()

    async def _stream(self, request: Request, asked: Asked) -> None:
        tag = self.declared.heartbeat(asked.target.tenant, request.route.endpoint)
        heartbeat = routes.heartbeat_of(request.headers.get(HEARTBEAT), tag)
        client = Events(request.send, _about(request, asked.target), self.monotonic, heartbeat)
        try:
            if heartbeat is not None:
                await client.open()
            if asked.call.form is forms.Form.INPUTS and not asked.call.stream:
                await self._whole_as_events(request, asked, client)
            else:
                await self._direct(request, asked, self._translated(request, asked, client), client)
        finally:
            client.close()

    async def _whole_as_events(self, request: Request, asked: Asked, client: Events) -> None:
        try:
            answer = await self._whole(request, asked)
        except _ANSWERED as error:
            if not client.started:
                raise
            await client.broken(self._aws(request, error))
            return
        await client({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await client({"type": "http.response.body", "body": answer.body, "more_body": False})

    def _translated(self, request: Request, asked: Asked, client: Outlet) -> Outlet:
        if asked.call.form is not forms.Form.INPUTS:
            return client
        prefix = asked.payload["inputs"] if forms.parameter(asked.payload, "return_full_text") else ""
        return Translated(LineWriter(self._dialect(request, asked), self.limits.body_bytes, prefix), client)

    def _dialect(self, request: Request, asked: Asked) -> Any:
        name = b"x-amzn-sagemaker-accept" if request.route.operation is Operation.STREAM else b"accept"
        return self.declared.dialect(asked.target.tenant, asked.target.model, request.headers.get(name))

    async def _direct(self, request: Request, asked: Asked, outlet: Outlet, client: Outlet) -> None:
        """Pass the answer on while it comes; ``client`` is the last of the outlets, which knows what the client has got."""
        error: AwsError | None = None
        try:
            job = self._job(request, asked)
            reason = await self.invoker.run(asked.target, request.arrival, job, request.receive, outlet)
            if reason is not None:
                error = answers.model_error(500, reason, request.place)
        except _ANSWERED as failure:
            error = self._aws(request, failure)
        if error is None:
            return
        if not client.started:
            raise error
        await outlet.broken(error)

    async def _whole(
        self, request: Request, asked: Asked, on_gone: Callable[[Callable[[], None]], None] | None = None
    ) -> Answer:
        """Return the whole answer, in the form that the caller's form has."""
        limit = self.limits.serverless_bytes if asked.target.serverless else self.limits.body_bytes
        kept = Captured(limit, request.place)
        job = self._job(request, asked)._replace(whole=True)
        reason = await self.invoker.run(asked.target, request.arrival, job, request.receive, kept, on_gone=on_gone)
        if reason is not None:
            raise answers.model_error(500, reason, request.place)
        answer = kept.answer()
        if asked.call.form is not forms.Form.INPUTS:
            return answer
        text = forms.generated_text(asked.payload, answer.body, self._dialect(request, asked))
        return Answer(answer.status, [_JSON, *(pair for pair in answer.headers if pair[0] != b"content-type")], text)

    def _job(self, request: Request, asked: Asked) -> Job:
        inputs = asked.call.form is forms.Form.INPUTS
        headers = [_JSON] if inputs else routes.container_headers(request.route, request.scope["headers"])
        limit = self.limits.stream_s if asked.call.stream else self.limits.invocation_s
        shadow, told = shadow_of(request.headers.get(SHADOW), may_shadow=asked.may_shadow)
        extra = [(b"x-amzn-requestid", request.arrival.request_id.encode()), *told]
        return Job(
            asked.call.path,
            headers,
            asked.call.body,
            extra,
            limit,
            aws=True,
            session=asked.session,
            ask=asked.ask,
            priority=asked.priority,
            shadow=shadow,
        )

    # ---- retries -----------------------------------------------------------------------------------------------

    async def _once(self, request: Request, asked: Asked, key: Key) -> Answer | None:
        """Return the answer of the one run of this SDK call; None: the caller has left."""
        found = self.runs.find(key)
        if found is None:
            return await self._run(request, asked, key)
        if not shadow_of(request.headers.get(SHADOW), may_shadow=asked.may_shadow)[0]:
            self.invoker.joined(asked.target)
        if isinstance(found, Run):
            left, result = await self._join(request, found)
            if left:
                return None
        else:
            result = found
        if isinstance(result, AwsError):
            raise result
        if result is None:
            raise Unavailable("the request that this one repeats was given up", remedy="retry", retry_after_s=1.0)
        return result

    async def _run(self, request: Request, asked: Asked, key: Key) -> Answer:
        run = self.runs.begin(key)
        comes_again = may_come_again(request.headers.get(b"amz-sdk-request"))
        result: Result = None
        try:
            result = await self._whole(request, asked, lambda end: run.owner_left(end, comes_again=comes_again))
            return result
        except _ANSWERED as error:
            result = self._aws(request, error)
            raise result from None
        finally:
            self.runs.end(run, result)

    async def _join(self, request: Request, run: Run) -> tuple[bool, Result]:
        """Return (the caller has left, the run's result)."""
        waiting = run.join()
        comes_again = may_come_again(request.headers.get(b"amz-sdk-request"))
        left = False

        def leave() -> None:
            nonlocal left
            left = True
            run.joiner_left(waiting, comes_again=comes_again)
            waiting.cancel()

        watch = self.invoker.watch(request.receive, leave)
        try:
            return False, await waiting
        except asyncio.CancelledError:
            if left:
                return True, None
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            raise Unavailable("the gateway is shutting down", remedy="retry", retry_after_s=1.0) from None
        finally:
            watch.stop()

    # ---- errors ------------------------------------------------------------------------------------------------

    def _aws(self, request: Request, error: AwsError | StandbyError | ContainerAnswered) -> AwsError:
        if isinstance(error, AwsError):
            return error
        if isinstance(error, ContainerAnswered):
            return answers.container_error(error, request.place)
        return answers.aws_error(error, request.place)

    async def _refuse(self, request: Request, error: AwsError | StandbyError | ContainerAnswered) -> None:
        told = self._aws(request, error)
        if request.route.operation is Operation.OPENAI:
            status, headers, body = answers.openai_answer(told)
            headers = [_JSON, (b"x-amzn-requestid", request.arrival.request_id.encode()), *headers]
        else:
            status, headers, body = error_answer(told, protocol="rest-json", request_id=request.arrival.request_id)
        await _send(request, status, headers, body)


def _about(request: Request, target: Target) -> list[tuple[bytes, bytes]]:
    return [
        (b"x-amzn-requestid", request.arrival.request_id.encode()),
        (b"x-amzn-invoked-production-variant", target.variant.encode()),
    ]


async def _send_answer(request: Request, answer: Answer) -> None:
    """Send a whole answer, maybe another request's, under this request's ids."""
    own = (b"x-amzn-requestid", b"x-request-id")
    headers = [pair for pair in answer.headers if pair[0] not in own]
    headers.append((b"x-amzn-requestid", request.arrival.request_id.encode()))
    await _send(request, answer.status, headers, answer.body)


async def _send(request: Request, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    more = [(b"x-request-id", request.arrival.echoed), (b"content-length", b"%d" % len(body))]
    await request.send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await request.send({"type": "http.response.body", "body": body})
