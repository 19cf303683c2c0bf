"""Carries out what asynchronous callers have put into the queue, in every gateway.

At least once, with one visible result: an item leaves the queue after its result or its failure lies in S3, and an object
is marked with the request that it was written for, so that a second execution writes nothing. Whoever dies meanwhile,
another gateway takes the item after a few seconds. Two executions at once, possible only while a gateway is cut off from
the bus and not from S3, may end differently; the later one finds the earlier one's object first.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from dataclasses import dataclass
from typing import Final

import httpx

from standby.artifacts.location import SourceInterrupted
from standby.artifacts.store_object import ObjectPlace
from standby.bus.queue import Verdict, WorkItem
from standby.domain.async_invocation import AsyncInvocation, unpack
from standby.domain.errors import (
    BusUnavailable,
    ColdWaitExceeded,
    EndpointFailed,
    EngineDied,
    InvalidInput,
    PayloadTooLarge,
    QueueFull,
    SourceUnreachable,
    StandbyError,
    Throttled,
    Unavailable,
)
from standby.sagemaker.errors import AwsError
from standby.sagemaker.runtime.async_context import AsyncContext
from standby.sagemaker.runtime.async_outcome import Outcome, completed, deleted, event_of, expired, failed, gave_up
from standby.sagemaker.runtime.async_run import Execution, place_of
from standby.sagemaker.runtime.contract import Answer, ContainerAnswered

log = logging.getLogger(__name__)

# An engine that dies under a request may have died of it (field case B34): not for ever again.
MAX_DEATHS: Final = 3
MAX_DELIVERIES: Final = 10
MAX_PAUSE_S: Final = 15.0
HTTPS_LIMIT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class AsyncWorker:
    """``store_patience_s``: how long a result waits here for its store; ``retry_s``: usual pause before another attempt."""

    context: AsyncContext
    execution: Execution
    store_patience_s: float = 600.0
    retry_s: float = 1.0

    async def handle(self, item: WorkItem) -> Verdict:
        """Carry out one item; ``DONE`` once its result or failure is stored, or cannot be."""
        try:
            work, body = unpack(item.payload)
        except ValueError:
            log.exception("an asynchronous invocation cannot be read and is dropped", extra={"item": item.id})
            return Verdict.REJECT
        try:
            if (item.attempt > 1 or work.repeated) and await self._written_before(work):
                return Verdict.DONE
        except (SourceUnreachable, BusUnavailable, InvalidInput):
            # Whether it may be reached at all is seen again, and told, when it is to be written.
            log.warning("cannot see whether a result is there", extra={"inference_id": work.inference_id})
        outcome = await self._outcome(work, body, item.attempt)
        return await self._settled(work, outcome)

    # ---- the execution -----------------------------------------------------------------------------------------

    async def _outcome(self, work: AsyncInvocation, body: bytes, attempt: int) -> Outcome:
        try:
            if attempt > MAX_DELIVERIES:
                raise gave_up(attempt - 1)
            if self._gone(work):
                raise deleted(work)
            if work.input_uri is not None:
                body = await self._input(work, work.input_uri)
            return completed(await self._answered(work, body))
        except (AwsError, StandbyError, ContainerAnswered) as error:
            return failed(error, place_of(work, self.context.region))

    async def _answered(self, work: AsyncInvocation, body: bytes) -> Answer:
        """Return the answer, however long the endpoint takes to wake, within the request's own time. Raises what ended it."""
        deaths = failures = 0
        waited_for = ""
        while self.context.now() < work.expires_at:
            if self._gone(work):
                raise deleted(work)
            try:
                return await self.execution.run(work, body)
            except EngineDied as error:
                deaths += 1
                if deaths >= MAX_DEATHS:
                    raise
                waited_for = await self._again(error)
            except EndpointFailed as error:
                failures += 1
                if failures >= MAX_DEATHS:
                    raise
                waited_for = await self._again(error)
            except (ColdWaitExceeded, Throttled, QueueFull, Unavailable) as error:
                waited_for = await self._again(error)
        raise expired(work, waited_for)

    async def _again(self, error: StandbyError) -> str:
        # Who has waited for an engine that is not there yet has waited already.
        wished = 0.0 if isinstance(error, ColdWaitExceeded) else error.retry_after_s or self.retry_s
        await asyncio.sleep(min(MAX_PAUSE_S, max(wished, self.retry_s / 10)))
        return error.message

    async def _input(self, work: AsyncInvocation, uri: str) -> bytes:
        """Return the input. Raises SourceUnreachable, PayloadTooLarge, AwsError where it could not be had in time."""
        while True:
            try:
                if uri.startswith("https://"):
                    return await fetch(uri, self.context.body_bytes)
                place = await self._place(work, uri)
                return await place.read(self.context.body_bytes)
            except (SourceInterrupted, BusUnavailable) as error:
                if self.context.now() >= work.expires_at:
                    raise expired(work, error.message) from None
                await asyncio.sleep(self.retry_s)

    def _gone(self, work: AsyncInvocation) -> bool:
        served = self.context.served(work.tenant, work.endpoint)
        # A record without its config is one that is still arriving here.
        if served is None:
            return f"{work.tenant}.{work.endpoint}" not in self.context.endpoints.entries
        return served.endpoint.created_at != work.endpoint_created_at

    # ---- the result --------------------------------------------------------------------------------------------

    async def _written_before(self, work: AsyncInvocation) -> bool:
        for uri in (work.output_uri, work.failure_uri):
            place = await self._place(work, uri)
            if await place.written_for(work.digest):
                return True
        return False

    async def _settled(self, work: AsyncInvocation, outcome: Outcome) -> Verdict:
        uri = work.output_uri if outcome.good else work.failure_uri
        try:
            await self._write(work, uri, outcome)
        except (SourceInterrupted, BusUnavailable) as error:
            log.warning("a result waits for its store: %s", error, extra={"inference_id": work.inference_id})
            return Verdict.RETRY
        except (SourceUnreachable, InvalidInput) as error:
            log.error("a result cannot be stored: %s", error, extra={"inference_id": work.inference_id})
            refusal = failed(error, place_of(work, self.context.region))
            if outcome.good:
                # A result that nobody may store is told as a failure, where failures may be stored.
                return await self._settled(work, refusal)
            reason = f"{outcome.reason}; and this could not be stored: {error.message}"
            await self._tell(work, Outcome(b"", "", reason), "")
            return Verdict.DONE
        await self._tell(work, outcome, uri)
        return Verdict.DONE

    async def _write(self, work: AsyncInvocation, uri: str, outcome: Outcome) -> None:
        """Write the object unless it is there already, and wait for a store that is away for a while: work lies in it."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.store_patience_s
        while True:
            try:
                place = await self._place(work, uri)
                await place.put_once(outcome.content, work.digest, outcome.content_type)
                return
            except (SourceInterrupted, BusUnavailable):
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(self.retry_s)

    async def _place(self, work: AsyncInvocation, uri: str) -> ObjectPlace:
        # With the options of then, not the endpoint's of now: another model of it may name no keys, and the platform's own
        # must not open what was accepted for the tenant's.
        return await self.context.open(work.tenant, work.options, uri)

    async def _tell(self, work: AsyncInvocation, outcome: Outcome, location: str) -> None:
        context = self.context
        event = event_of(work, outcome, event_id=uuid.uuid4().hex, now=context.now(), source=context.source, location=location)
        await context.publish(event)


async def fetch(uri: str, limit: int, transport: httpx.AsyncBaseTransport | None = None) -> bytes:
    """Return what lies at an https address; follows nobody elsewhere. Raises SourceUnreachable, PayloadTooLarge."""
    try:
        async with (
            httpx.AsyncClient(timeout=HTTPS_LIMIT_S, follow_redirects=False, transport=transport) as client,
            client.stream("GET", uri) as answer,
        ):
            if answer.status_code != httpx.codes.OK:
                raise SourceUnreachable(f"{uri[:200]!r}: HTTP {answer.status_code}", remedy="check the address")
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > limit:
                    raise PayloadTooLarge(f"{uri[:200]!r} has more than {limit} bytes", remedy="send less")
            return bytes(body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceUnreachable(f"{uri[:200]!r}: {type(error).__name__}", remedy="check the address") from None
