"""One trace through gateway, node and door as processes of their own, told to a collector (field case B58)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from standby.telemetry.trace_context import of_activation
from support.deployment import Deployment, deployment
from support.otlp_receiver import Received, Receiver, otlp_receiver
from support.raw_http import RawAnswer, RawClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOP = "POST /v1/chat/completions"
PARENT = "00f067aa0ba902b7"
MARKER = "xyzzy-the-secret-of-the-prompt"
CLOCKS_NS = 20_000_000  # two processes read the time of day one after the other
LATE_NS = 2_000_000_000  # the door may be held up after its last byte, when the gateway has already said that this was it


@dataclass
class Place:
    """A deployment, and where its spans go."""

    there: Deployment
    collector: Receiver

    async def begin(self, endpoint: str, trace: str | None, **body: Any) -> RawClient:
        """Send a chat request; one without a trace of its own names none."""
        client = await self.there.connect()
        headers = {**self.there.stack.headers(), "content-type": "application/json", "user-agent": MARKER}
        if trace is not None:
            headers["traceparent"] = f"00-{trace}-{PARENT}-01"
        asked = {"model": endpoint, "messages": [{"role": "user", "content": MARKER}], "user": MARKER, **body}
        client.send("POST", "/v1/chat/completions", headers, json.dumps(asked).encode())
        return client

    async def ask(self, endpoint: str, trace: str | None, **body: Any) -> RawAnswer:
        return await (await self.begin(endpoint, trace, **body)).answer()

    async def told(self, trace: str, attempts: int = 1) -> tuple[Received, list[Received], list[Received], list[Received]]:
        """The request's span, and those of its waits, attempts and doors, once all of them have arrived."""

        async def complete() -> bool:
            whole = len(self.collector.of(trace, TOP)) == 1
            return whole and all(len(self.collector.of(trace, name)) == attempts for name in ("attempt", "door"))

        await self.there.until(complete, f"{trace} is complete")
        (top,) = self.collector.of(trace, TOP)
        queues, tried, doors = (self.collector.of(trace, name) for name in ("queue", "attempt", "door"))
        return top, queues, tried, doors


@pytest.fixture(scope="module")
def collector() -> Iterator[Receiver]:
    with otlp_receiver() as receiver:
        yield receiver


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory, collector: Receiver) -> AsyncIterator[Place]:
    environment = {"STANDBY_OTLP_ENDPOINT": collector.url, "STANDBY_TRACE_RATIO": "0", "STANDBY_LOG_FORMAT": "json"}
    async with deployment(tmp_path_factory.mktemp("traces"), environment=environment) as running:
        yield Place(running, collector)
    # What was written until the very end has arrived, too, and nothing of it is a caller's.
    exported = b"".join(collector.raw)
    for secret in (MARKER, running.stack.secrets.admin_key, running.stack.secrets.node_token):
        assert secret.encode() not in exported


async def test_a_streamed_cold_start_is_one_trace(place: Place) -> None:
    """From the caller's span to the engine's, linked to the climb it waited for, until the last byte."""
    await place.there.endpoint("cold", knobs={"token_delay_ms": 200})
    trace = "a" * 31 + "1"
    answer = await place.ask("cold", trace, stream=True)
    assert answer.complete
    assert answer.headers["x-standby-trace-id"] == trace
    top, (queue,), (attempt,), (door,) = await place.told(trace)
    assert [span.parent for span in (top, queue, attempt, door)] == [PARENT, top.id, top.id, attempt.id]
    assert [span.service for span in (top, queue, attempt, door)] == ["standby-gateway"] * 3 + ["standby-node"]
    assert top.holds(queue)
    assert top.holds(attempt)
    assert attempt.began_ns - CLOCKS_NS <= door.began_ns <= door.ended_ns <= attempt.ended_ns + LATE_NS
    assert queue.ended_ns <= attempt.began_ns
    assert attempt.began_ns < top.events["first token"] < top.ended_ns
    assert top.attributes["gen_ai.usage.output_tokens"] > 1
    # Six tokens, one each 200 ms: the span lasts until the last one, although the first may be seen late.
    assert top.ended_ns - top.events["first token"] > 250_000_000
    climb = of_activation(answer.headers["x-standby-activation"])
    assert queue.links == [(f"{climb.trace:032x}", f"{climb.span:016x}")]
    activation, *phases = await place.collector.until_told(f"{climb.trace:032x}", "activation", "probed")
    assert (activation.id, activation.parent, activation.service) == (f"{climb.span:016x}", "", "standby-node")
    assert {span.parent for span in phases} == {activation.id}
    assert all(activation.holds(span, slack_ns=1_000_000) for span in phases)
    assert {"forked", "loaded", "probed"} <= {span.name for span in phases}
    assert attempt.attributes["standby.instance"] == activation.attributes["standby.instance"]
    assert not any(span.failed for span in (top, queue, attempt, door, activation))


async def test_a_cold_start_is_kept_that_nobody_had_chosen(place: Place) -> None:
    await place.there.endpoint("unasked")
    answer = await place.ask("unasked", None)
    warm = await place.ask("unasked", None)
    assert (answer.status, warm.status) == (200, 200)
    top, (queue,), _, _ = await place.told(answer.headers["x-standby-trace-id"])
    assert top.parent == ""
    assert len(queue.links) == 1
    assert "x-standby-trace-id" not in warm.headers


async def test_a_caller_who_leaves(place: Place) -> None:
    await place.there.endpoint("left", knobs={"token_delay_ms": 20})
    await place.there.warm("left")
    trace = "a" * 31 + "2"
    client = await place.begin("left", trace, stream=True, ignore_eos=True, max_tokens=10_000)
    await client.reader.readuntil(b"data: ")
    client.abort()
    top, _, (attempt,), (door,) = await place.told(trace)
    assert [span.attributes["error.type"] for span in (top, attempt, door)] == ["client_gone", "caller", "gateway_gone"]


async def test_an_engine_that_is_killed_in_the_middle(place: Place) -> None:
    await place.there.endpoint("killed", knobs={"token_delay_ms": 20})
    await place.there.warm("killed")
    instance = await place.there.instance("killed")
    assert instance is not None
    trace = "a" * 31 + "3"
    client = await place.begin("killed", trace, stream=True, ignore_eos=True, max_tokens=10_000)
    await client.reader.readuntil(b"data: ")
    place.there.engine_of(instance["id"]).kill()
    top, _, (attempt,), (door,) = await place.told(trace)
    assert (top.attributes["error.type"], top.failed) == ("broken_stream", True)
    # The door sees its socket close, or hears from the agent, who has seen the process end: whichever is first.
    assert (attempt.attributes["error.type"], door.attributes["error.type"]) in {("engine", "died"), ("cut", "aborted")}
    assert "first token" in top.events


async def test_a_request_that_was_tried_twice(place: Place) -> None:
    await place.there.endpoint("twice")
    await place.there.warm("twice")
    trace = "a" * 31 + "4"
    answer = await place.ask("twice", trace, fail_with=503)
    top, _, attempts, doors = await place.told(trace, attempts=2)
    assert [span.attributes["standby.attempt"] for span in attempts] == [1, 2]
    assert [span.parent for span in doors] == [span.id for span in attempts]
    assert top.attributes["http.response.status_code"] == answer.status == 503
    assert top.attributes["standby.attempts"] == 2


async def test_errors_have_a_line_in_the_log_with_their_trace(place: Place) -> None:
    await place.there.endpoint("failing")
    await place.there.warm("failing")
    trace = "a" * 31 + "5"
    await place.ask("failing", trace, fail_with=500)
    log = place.there.stack.options.state.logs / "gateway.log"

    def lines() -> list[dict[str, Any]]:
        whole, _, _ = log.read_text().rpartition("\n")
        found = [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
        return [line for line in found if line["logger"] == "standby.requests"]

    async def written() -> bool:
        return any(line["trace_id"] == trace for line in lines())

    await place.there.until(written, "the line is there")
    (line,) = (line for line in lines() if line["trace_id"] == trace)
    assert (line["outcome"], line["status"], line["endpoint"], line["level"]) == ("engine_5xx", 500, "failing", "warning")
    assert line["instance"]
    assert MARKER not in log.read_text()
    assert all(line["outcome"] != "ok" for line in lines())
