"""A prompt is on the board from the grant until its stream begins, or until it never will."""

from __future__ import annotations

import asyncio
import json

import pytest

from support.door_rig import INSTANCE, Rig
from support.gateway_rig import GatewayRig, gateway_rig
from support.openai_streams import event, tokens_then
from support.raw_http import RawClient
from support.upstream import Call, until_gone
from support.waiting import until

PATH = "/v1/chat/completions"
PROMPT = "What is the capital?"


async def asked(gateway: GatewayRig, *, stream: bool = True) -> RawClient:
    client = await gateway.connect()
    body = {"model": "e", "messages": [{"role": "user", "content": PROMPT}], "stream": stream}
    client.send("POST", PATH, gateway.headers(), json.dumps(body).encode())
    return client


async def test_first_byte_of_a_stream_takes_its_prompt_from_the_board(rig: Rig) -> None:
    go_on = asyncio.Event()

    async def slowly(call: Call) -> None:
        await go_on.wait()
        await tokens_then(until_gone)(call)

    rig.engine.handler = slowly
    async with gateway_rig(rig) as gateway:
        board = gateway.desk._instances.unread
        client = await asked(gateway)
        await rig.begun(1)
        assert board == {INSTANCE: len(PROMPT)}
        go_on.set()
        await client.reader.readuntil(event(PATH, " is"))
        assert board == {}
        assert gateway.desk.granted == 1, "it still has its slot"
        client.abort()
        await until(lambda: gateway.desk.granted == 0)
        assert board == {}


@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_before_leaves_nothing_on_the_board(rig: Rig, stream: bool) -> None:
    """What is no stream was never on it."""
    rig.engine.handler = until_gone
    async with gateway_rig(rig) as gateway:
        board = gateway.desk._instances.unread
        client = await asked(gateway, stream=stream)
        await rig.begun(1)
        assert board == ({INSTANCE: len(PROMPT)} if stream else {})
        client.abort()
        await until(lambda: gateway.desk.granted == 0)
        assert board == {}
