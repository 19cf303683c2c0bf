"""Answers that break after their first token (field case B26): never a success, and one error in the caller's dialect."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from botocore.eventstream import EventStreamBuffer

from support.door_rig import Rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.openai_streams import CHAT, DONE, WORDS, event, openai_client, read_to_the_end, streamed, tokens_then
from support.upstream import Call
from support.waiting import until

BARE = b'{"error": {"message": "out of memory"}}\n'


async def reset(call: Call) -> None:
    call.reset()


async def clean_close(call: Call) -> None:
    await call.end_stream()


async def bare_line(call: Call) -> None:
    await call.chunk(BARE)
    await call.end_stream()


async def framed_error_and_done(call: Call) -> None:
    await call.chunk(b"data: " + BARE + b"\n" + DONE)
    await call.end_stream()


async def half_an_event(call: Call) -> None:
    await call.chunk(event(call.path, "x")[:20])
    call.close()


ENDS = [reset, clean_close, bare_line, framed_error_and_done, half_an_event]


@pytest_asyncio.fixture
async def gateway(rig: Rig) -> AsyncIterator[GatewayRig]:
    async with gateway_rig(rig) as made:
        yield made


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("route", ["v1", "endpoints/e/openai/v1"])
async def test_openais_client_raises(gateway: GatewayRig, route: str, end: Any) -> None:
    gateway.behind.engine.handler = tokens_then(end)
    async with openai_client(gateway, route) as client:
        got, error = await read_to_the_end(await streamed(client))
    assert isinstance(error, openai.APIError)
    # A reset may overtake what was sent just before it.
    assert got == list(WORDS[: len(got)])
    assert len(got) == 3 or end is reset
    if end in (bare_line, framed_error_and_done):
        assert "out of memory" in error.message
    await until(lambda: gateway.accounts.used)
    assert gateway.accounts.outcomes == ["broken_stream"]
    ((usage, whole),) = gateway.accounts.used
    assert (usage.completion, usage.estimated, whole) == (len(got), True, False)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("path", [CHAT, "/endpoints/e/openai/v1/chat/completions", "/endpoints/e/invocations"])
async def test_the_last_event_is_the_error(gateway: GatewayRig, path: str, end: Any) -> None:
    """One event with ``error`` and its code, no [DONE], no finish reason; the answer itself is complete HTTP."""
    gateway.behind.engine.handler = tokens_then(end)
    client = await gateway.connect()
    answer = await client.request("POST", path, gateway.headers(), json.dumps(body()).encode())
    assert answer.complete
    assert answer.status == 200
    events = [json.loads(part.removeprefix(b"data: ")) for part in answer.body.strip().split(b"\n\n") if part.strip()]
    assert ["error" in told for told in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["error"]["message"]
    assert events[-1]["error"]["code"]


@pytest.mark.parametrize("end", ENDS)
async def test_an_event_stream_ends_with_an_exception(gateway: GatewayRig, end: Any) -> None:
    gateway.behind.engine.handler = tokens_then(end)
    client = await gateway.connect()
    path = "/endpoints/e/invocations-response-stream"
    answer = await client.request("POST", path, gateway.headers(), json.dumps(body()).encode())
    frames = EventStreamBuffer()
    frames.add_data(answer.body)
    kinds = [frame.headers[":message-type"] for frame in frames]
    assert kinds.count("exception") == 1
    assert kinds[-1] == "exception"
    assert DONE not in answer.body


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_headers_and_then_nothing(gateway: GatewayRig, stream: bool, how: str) -> None:
    async def handler(call: Call) -> None:
        await call.begin_stream("text/event-stream" if stream else "application/json")
        (call.close if how == "close" else call.reset)()

    gateway.behind.engine.handler = handler
    async with openai_client(gateway) as client:
        messages: Any = body()["messages"]
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="e", messages=messages, stream=stream)
    assert raised.value.status_code == 502


def body() -> dict[str, Any]:
    return {"model": "e", "messages": [{"role": "user", "content": "?"}], "stream": True}
