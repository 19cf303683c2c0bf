"""One execution of an asynchronous invocation: the way of a normal one, without a caller who waits or leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from standby.domain.async_invocation import AsyncInvocation
from standby.domain.errors import EngineDied, InvalidInput
from standby.host import tasks as host_tasks
from standby.sagemaker.runtime import asks, forms
from standby.sagemaker.runtime.answers import Place
from standby.sagemaker.runtime.contract import (
    Answer,
    Arrival,
    ContainerAnswered,
    Headers,
    Invoker,
    Job,
    Message,
    Target,
)
from standby.sagemaker.runtime.dialects import Declared
from standby.sagemaker.runtime.lines import LineWriter
from standby.sagemaker.runtime.outlets import Captured, Outlet, Translated

_JSON: Final = (b"content-type", b"application/json")


@dataclass(frozen=True, slots=True)
class Execution:
    """``body_bytes`` bounds the answer."""

    invoker: Invoker
    declared: Declared
    region: str
    body_bytes: int

    async def run(self, work: AsyncInvocation, body: bytes) -> Answer:
        """Wait for a slot, ask an engine, and return the whole answer.

        Raises the domain's errors (EngineDied also where the answer broke off), ContainerAnswered, AwsError.
        """
        target = self.invoker.find(work.tenant, work.endpoint, None, None)
        arrival = self.invoker.arrive({"type": "http", "headers": []})
        try:
            payload = forms.parse_object(body)
            call = forms.engine_call(payload, body, target.served_name)
        except InvalidInput as error:
            # A container would say this.
            raise ContainerAnswered(400, str(error).encode()) from None
        sent, ask = asks.prepared(payload, call.body, target.served_name, work.wished)
        kept = Captured(self.body_bytes, place_of(work, self.region))
        outlet: Outlet = kept
        inputs = call.form is forms.Form.INPUTS
        accept = None if work.accept is None else work.accept.encode("latin-1")
        dialect = self.declared.dialect(work.tenant, target.model, accept)
        if inputs and call.stream:
            prefix = payload["inputs"] if forms.parameter(payload, "return_full_text") else ""
            outlet = Translated(LineWriter(dialect, self.body_bytes, prefix), kept)
        job = Job(
            call.path,
            _headers(work, inputs=inputs),
            sent,
            [],
            work.limit_s,
            aws=True,
            whole=not isinstance(outlet, Translated),
            ask=ask,
            priority=work.key_priority,
        )
        await self._ask(target, arrival, job, outlet)
        answer = kept.answer()
        if inputs and not call.stream:
            return Answer(answer.status, [_JSON], forms.generated_text(payload, answer.body, dialect))
        return answer

    async def _ask(self, target: Target, arrival: Arrival, job: Job, outlet: Outlet) -> None:
        # In a task of its own: the gateway's way ends a request by cancelling its task, and takes that back afterwards;
        # a cancellation of the worker itself must not get lost there.
        asking = asyncio.ensure_future(self.invoker.run(target, arrival, job, _nobody_leaves, outlet))
        try:
            reason = await asyncio.shield(asking)
        except asyncio.CancelledError:
            await host_tasks.end([asking])
            if not asking.cancelled():
                asking.exception()  # looked at, or the loop would report it as lost
            raise
        if reason is not None:
            raise EngineDied(f"the answer of endpoint {target.endpoint!r} broke off: {reason}")


def place_of(work: AsyncInvocation, region: str) -> Place:
    """Return where the request goes, for errors."""
    return Place(region, work.tenant, work.endpoint)


def _headers(work: AsyncInvocation, *, inputs: bool) -> Headers:
    told = {
        b"content-type": "application/json" if inputs else work.content_type or "application/json",
        b"accept": None if inputs else work.accept,
        b"x-amzn-sagemaker-custom-attributes": work.custom_attributes,
        b"x-amzn-sagemaker-inference-id": work.inference_id,
    }
    return [(name, value.encode("latin-1", "replace")) for name, value in told.items() if value is not None]


async def _nobody_leaves() -> Message:
    """Nobody waits at the other end, so nobody hangs up."""
    message: Message = await asyncio.get_running_loop().create_future()
    return message
