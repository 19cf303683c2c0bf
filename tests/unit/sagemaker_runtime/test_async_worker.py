"""Carrying out asynchronous invocations: what is tried again, what ends them, and that one result is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import httpx
import pytest

from standby.artifacts.location import SourceInterrupted
from standby.bus.queue import Verdict, WorkItem
from standby.domain.async_invocation import AsyncInvocation, pack
from standby.domain.errors import (
    ColdWaitExceeded,
    EndpointFailed,
    EngineDied,
    InvocationTimeout,
    PayloadTooLarge,
    QueueFull,
    SourceUnreachable,
    StandbyError,
    Throttled,
)
from standby.domain.events import AsyncInvocationEnded
from standby.domain.model import SourceOptions
from standby.domain.priority import Priority
from standby.sagemaker.runtime.async_context import AsyncContext, Served
from standby.sagemaker.runtime.async_run import Execution
from standby.sagemaker.runtime.async_worker import MAX_DEATHS, MAX_DELIVERIES, AsyncWorker, fetch
from standby.sagemaker.runtime.contract import ContainerAnswered, Job, Target
from standby.sagemaker.runtime.dialects import Declared
from support.builders import TENANT, a_config, an_endpoint

BODY = b'{"messages": []}'
ANSWER = b'{"choices": []}'
WORK = AsyncInvocation(
    tenant=TENANT,
    endpoint="e",
    endpoint_created_at=1.0,
    inference_id="i",
    digest="d",
    accepted_at=0.0,
    ttl_s=100.0,
    limit_s=60.0,
    output_uri="s3://b/i.out",
    failure_uri="s3://b/i-error.out",
)


@dataclass
class Object:
    """One object of the world's store."""

    world: World
    uri: str

    async def read(self, _limit: int) -> bytes:
        self.world.refuse("read", self.uri)
        return self.world.store[self.uri][0]

    async def written_for(self, mark: str) -> bool:
        return self.uri in self.world.store and self.world.store[self.uri][1] == mark

    async def put_once(self, content: bytes, mark: str, _content_type: str) -> bool:
        self.world.refuse("put", self.uri)
        if await self.written_for(mark):
            return False
        self.world.store[self.uri] = (content, mark)
        return True


@dataclass
class World:
    """Context and invoker at once; ``turns`` are what becomes of each execution, the last one for ever."""

    turns: list[BaseException | bytes]
    refusals: dict[tuple[str, str], StandbyError] = field(default_factory=dict)
    store: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    events: list[AsyncInvocationEnded] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    time: float = 0.0
    step: float = 1.0
    created_at: float = 1.0
    body_bytes: int = 1000
    region: str = "us-east-1"
    source: str = "gateway/g"

    # ---- the context ----

    endpoints: Any = None

    def now(self) -> float:
        return self.time

    def served(self, _tenant: str, _name: str) -> Served:
        return Served(an_endpoint(created_at=self.created_at), a_config(), SourceOptions())

    async def open(self, _tenant: str, _options: SourceOptions, uri: str) -> Object:
        return Object(self, uri)

    async def publish(self, event: AsyncInvocationEnded) -> None:
        self.events.append(event)

    def refuse(self, what: str, uri: str) -> None:
        if (error := self.refusals.get((what, uri))) is not None:
            raise error

    # ---- the invoker ----

    def find(self, tenant: str, endpoint: str, _variant: str | None, _session: str | None) -> Target:
        return Target(None, tenant, endpoint, endpoint, "v", "m", serverless=False)

    def arrive(self, _scope: Any) -> Any:
        return None

    async def run(self, _target: Target, _arrival: Any, job: Job, _receive: Any, send: Callable[[Any], Any]) -> str | None:
        self.jobs.append(job)
        self.time += self.step
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, BaseException):
            raise turn
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": turn, "more_body": False})
        return None

    # ---- what tests do ----

    async def handle(self, work: AsyncInvocation = WORK, body: bytes = BODY, attempt: int = 1) -> Verdict:
        execution = Execution(cast("Any", self), Declared(None), "us-east-1", 1000)
        worker = AsyncWorker(cast("AsyncContext", self), execution, store_patience_s=0.02, retry_s=0.001)
        return await worker.handle(WorkItem("d", pack(work, body), attempt))

    @property
    def failure(self) -> dict[str, Any]:
        """The failure object, which must be the only one."""
        assert list(self.store) == [WORK.failure_uri]
        (event,) = self.events
        assert event.status == "Failed"
        content: dict[str, Any] = json.loads(self.store[WORK.failure_uri][0])
        return content


async def test_a_result_is_written_and_told() -> None:
    world = World([ANSWER])
    assert await world.handle() is Verdict.DONE
    assert world.store == {WORK.output_uri: (ANSWER, "d")}
    assert [(event.status, event.location) for event in world.events] == [("Completed", WORK.output_uri)]
    (job,) = world.jobs
    assert job.limit_s == 60.0
    assert dict(job.headers)[b"content-type"] == b"application/json"


@pytest.mark.parametrize("error", [EngineDied("x"), ColdWaitExceeded("x"), Throttled("x"), QueueFull("x"), EndpointFailed("x")])
async def test_what_passes_is_tried_again(error: StandbyError) -> None:
    world = World([error, error, ANSWER])
    assert await world.handle() is Verdict.DONE
    assert list(world.store) == [WORK.output_uri]
    assert len(world.jobs) == 3


@pytest.mark.parametrize("error", [EngineDied("the engine died"), EndpointFailed("no such tensor")])
async def test_engines_that_die_end_it_after_a_few(error: StandbyError) -> None:
    """Field case B34: a request may be what an engine dies of."""
    world = World([error])
    assert await world.handle() is Verdict.DONE
    assert len(world.jobs) == MAX_DEATHS
    assert world.failure["OriginalMessage"] == error.message


async def test_a_wake_may_take_as_long_as_the_request_may_live() -> None:
    world = World([ColdWaitExceeded("not ready within 50 s")], step=30.0)
    assert await world.handle() is Verdict.DONE
    assert len(world.jobs) == 4
    assert world.failure["ErrorCode"] == "RequestExpired"
    assert "not ready within 50 s" in world.failure["Message"]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ContainerAnswered(422, b"no"), "CLIENT_ERROR_FROM_MODEL", 422),
        (ContainerAnswered(500, b"no"), "INTERNAL_FAILURE_FROM_MODEL", 500),
        (InvocationTimeout("x"), "INTERNAL_FAILURE_FROM_MODEL", 0),
    ],
)
async def test_what_a_container_says_is_final(error: Exception, code: str, status: int) -> None:
    world = World([error])
    assert await world.handle() is Verdict.DONE
    assert len(world.jobs) == 1
    assert (world.failure["ErrorCode"], world.failure["OriginalStatusCode"]) == (code, status)


async def test_a_body_that_no_container_takes() -> None:
    world = World([ANSWER])
    assert await world.handle(body=b"no json") is Verdict.DONE
    assert world.failure["OriginalStatusCode"] == 400
    assert world.jobs == []


async def test_a_repeated_delivery_finds_what_is_written() -> None:
    """The worker before was killed after it had written and before it had said so."""
    for uri in (WORK.output_uri, WORK.failure_uri):
        world = World([ANSWER], store={uri: (b"there", "d")})
        assert await world.handle(attempt=2) is Verdict.DONE
        assert world.jobs == []
        assert world.store == {uri: (b"there", "d")}
    again = World([ANSWER], store={WORK.output_uri: (b"there", "d")})
    assert await again.handle(WORK.model_copy(update={"repeated": True})) is Verdict.DONE
    assert again.jobs == []


async def test_somebody_elses_object_is_no_result_of_ours() -> None:
    world = World([ANSWER], store={WORK.output_uri: (b"other", "another request")})
    assert await world.handle(attempt=2) is Verdict.DONE
    assert world.store == {WORK.output_uri: (ANSWER, "d")}


async def test_deliveries_end_some_time() -> None:
    world = World([ANSWER])
    assert await world.handle(attempt=MAX_DELIVERIES + 1) is Verdict.DONE
    assert world.failure["ErrorCode"] == "InternalFailure"
    assert world.jobs == []


async def test_another_endpoint_of_the_same_name_is_not_meant() -> None:
    world = World([ANSWER], created_at=2.0)
    assert await world.handle() is Verdict.DONE
    assert "was deleted" in world.failure["Message"]
    assert world.jobs == []


async def test_a_store_that_is_away_gets_it_later() -> None:
    world = World([ANSWER], refusals={("put", WORK.output_uri): SourceInterrupted("no answer")})
    assert await world.handle() is Verdict.RETRY
    assert (world.store, world.events) == ({}, [])


async def test_a_store_that_refuses_results_is_told_as_a_failure() -> None:
    world = World([ANSWER], refusals={("put", WORK.output_uri): SourceUnreachable("HTTP 403")})
    assert await world.handle() is Verdict.DONE
    assert "HTTP 403" in world.failure["Message"]


async def test_a_store_that_refuses_everything_leaves_an_event() -> None:
    refusal = SourceUnreachable("HTTP 403 AccessDenied")
    world = World([ANSWER], refusals={("put", WORK.output_uri): refusal, ("put", WORK.failure_uri): refusal})
    assert await world.handle() is Verdict.DONE
    assert world.store == {}
    assert [(event.status, event.location) for event in world.events] == [("Failed", "")]
    assert "AccessDenied" in world.events[0].reason


async def test_inputs_are_read_from_their_store() -> None:
    uri = "s3://b/in.json"
    world = World([ANSWER], store={uri: (b'{"prompt": "Once"}', "")})
    assert await world.handle(WORK.model_copy(update={"input_uri": uri}), b"") is Verdict.DONE
    assert world.jobs[0].path == "/v1/completions"
    assert world.jobs[0].body == b'{"prompt": "Once"}'


async def test_a_worker_that_is_cancelled_ends() -> None:
    """The gateway's way takes a cancellation back; it must not be lost with that."""
    began = asyncio.Event()

    class Hanging(World):
        async def run(self, *_: Any, **__: Any) -> str | None:
            began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise Throttled("the gateway is shutting down") from None
            return None

    task = asyncio.create_task(Hanging([ANSWER]).handle())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)


async def test_what_cannot_be_read_is_dropped() -> None:
    worker = AsyncWorker(cast("AsyncContext", None), cast("Execution", None))
    assert await worker.handle(WorkItem("x", b"{}\n", 1)) is Verdict.REJECT


async def test_https_inputs_are_bounded_and_follow_nobody() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/moved":
            return httpx.Response(302, headers={"location": "https://inside.example/"})
        return httpx.Response(200, content=b"0123456789")

    transport = httpx.MockTransport(answer)
    assert await fetch("https://a.example/x", 10, transport) == b"0123456789"
    with pytest.raises(PayloadTooLarge):
        await fetch("https://a.example/x", 9, transport)
    with pytest.raises(SourceUnreachable, match="HTTP 302"):
        await fetch("https://a.example/moved", 10, transport)


async def test_places_are_opened_with_the_keys_for_which_they_were_accepted() -> None:
    """They were let through for the tenant's own keys: the endpoint's model of now may name none, or be gone."""
    own = SourceOptions(credentials="mine")
    opened: list[tuple[str, SourceOptions]] = []

    class Watched(World):
        async def open(self, tenant: str, options: SourceOptions, uri: str) -> Object:
            opened.append((uri, options))
            return await super().open(tenant, options, uri)

    uri = "s3://others/in.json"
    work = WORK.model_copy(update={"input_uri": uri, "options": own})
    assert await Watched([ANSWER], store={uri: (BODY, "")}).handle(work, b"", attempt=2) is Verdict.DONE
    assert await Watched([ANSWER], created_at=2.0).handle(work, b"") is Verdict.DONE

    assert {where for where, _ in opened} == {uri, WORK.output_uri, WORK.failure_uri}
    assert {options for _, options in opened} == {own}


async def test_the_callers_priority_goes_with_it() -> None:
    """What was wished for, and what the caller's key allows, as when it was accepted."""
    world = World([ANSWER])
    work = WORK.model_copy(update={"wished": Priority.URGENT, "key_priority": Priority.BATCH})
    assert await world.handle(work) is Verdict.DONE
    (job,) = world.jobs
    assert (job.ask.wished, job.priority) == (Priority.URGENT, Priority.BATCH)
