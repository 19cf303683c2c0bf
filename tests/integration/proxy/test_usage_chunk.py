"""The usage of streams (field case B51): asked for by us, told to who asked, and metered in every ending."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from standby.gateway.metering import Usage
from support.door_rig import Rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.openai_streams import (
    CHAT,
    COMPLETIONS,
    USAGE,
    WORDS,
    openai_client,
    read_to_the_end,
    streamed,
    text_of,
    tokens_then,
    whole_stream,
)
from support.upstream import Call
from support.waiting import until

PROMPT = "What is it?"
ESTIMATED = Usage(-(-len(PROMPT) // 4), 3, estimated=True)
CHOICES: list[Any] = [{}, {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": True}}]


@pytest_asyncio.fixture
async def gateway(rig: Rig) -> AsyncIterator[GatewayRig]:
    async with gateway_rig(rig) as made:
        yield made


async def metered(gateway: GatewayRig) -> tuple[str, Usage, bool]:
    """Wait for the end of the only request; return its outcome, its usage, and whether the answer was whole."""
    await until(lambda: gateway.accounts.used)
    ((usage, whole),) = gateway.accounts.used
    (outcome,) = gateway.accounts.outcomes
    return outcome, usage, whole


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_normal_end(gateway: GatewayRig, path: str, options: dict[str, Any]) -> None:
    gateway.behind.engine.handler = whole_stream
    wants = options == CHOICES[2]
    async with openai_client(gateway) as client:
        chunks = [chunk async for chunk in await streamed(client, path, **options)]
    assert "".join(map(text_of, chunks)) == "".join(WORDS)
    assert [chunk.usage.completion_tokens for chunk in chunks if chunk.usage] == ([len(WORDS)] if wants else [])
    assert [bool(chunk.choices) for chunk in chunks] == [True] * (len(WORDS) + 1) + [False] * wants
    assert json.loads(gateway.behind.engine.calls[0].body)["stream_options"] == {"include_usage": True}
    assert await metered(gateway) == ("ok", Usage(USAGE["prompt_tokens"], len(WORDS), estimated=False), True)


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_caller_who_leaves(gateway: GatewayRig, path: str, options: dict[str, Any]) -> None:
    async def wait(call: Call) -> None:
        await call.gone.wait()

    gateway.behind.engine.handler = tokens_then(wait)
    async with openai_client(gateway) as client:
        stream = await streamed(client, path, **options)
        got = [await anext(stream) for _ in range(3)]
        await stream.close()
    assert all(chunk.usage is None for chunk in got)
    assert await metered(gateway) == ("client_gone", ESTIMATED, False)


@pytest.mark.parametrize("options", CHOICES)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_an_engine_that_dies(gateway: GatewayRig, path: str, options: dict[str, Any]) -> None:
    async def die(call: Call) -> None:
        call.close()

    gateway.behind.engine.handler = tokens_then(die)
    async with openai_client(gateway) as client:
        got, error = await read_to_the_end(await streamed(client, path, **options))
    assert isinstance(error, openai.APIError)
    assert got == list(WORDS[:3])
    assert await metered(gateway) == ("broken_stream", ESTIMATED, False)


async def test_an_engine_that_tells_no_usage_is_counted(gateway: GatewayRig) -> None:
    """One that does not know ``stream_options`` loses nothing: its events are counted."""

    async def without(call: Call) -> None:
        call.body = b"{}"
        await whole_stream(call)

    gateway.behind.engine.handler = without
    async with openai_client(gateway) as client:
        text = "".join([text_of(chunk) async for chunk in await streamed(client)])
    assert text == "".join(WORDS)
    _, usage, whole = await metered(gateway)
    assert usage.estimated
    assert whole
    assert usage.completion >= len(WORDS)


async def test_a_whole_answers_usage(gateway: GatewayRig) -> None:
    async def answer(call: Call) -> None:
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Paris"}}
        content = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": USAGE}
        await call.json(200, json.dumps(content).encode())

    gateway.behind.engine.handler = answer
    async with openai_client(gateway) as client:
        messages: Any = [{"role": "user", "content": "What is it?"}]
        told = await client.chat.completions.create(model="e", messages=messages)
    assert told.usage is not None
    assert "stream_options" not in json.loads(gateway.behind.engine.calls[0].body)
    assert await metered(gateway) == ("ok", Usage(USAGE["prompt_tokens"], len(WORDS), estimated=False), True)
