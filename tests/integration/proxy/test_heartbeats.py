"""A quiet stream behind a proxy that cuts quiet connections (field case B29), with its times made short."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from standby.domain.endpoint import ScalePolicy, Variant
from standby.gateway.dataplane import RuntimeOptions
from support.door_rig import Rig
from support.gateway_rig import GatewayRig, gateway_rig, wake
from support.idle_proxy import IdleProxy, idle_proxy
from support.openai_streams import CHAT, DONE, WORDS, event, openai_client, streamed, text_of, whole_stream
from support.raw_http import RawClient
from support.upstream import Call
from support.waiting import until

# A heartbeat may be late by eleven of its pauses before the proxy cuts.
HEARTBEAT_S = 0.05
IDLE_LIMIT_S = 12 * HEARTBEAT_S
QUIET_S = 1.5 * IDLE_LIMIT_S
ROUTES = ["v1", "endpoints/e/openai/v1"]


@asynccontextmanager
async def behind_a_proxy(
    rig: Rig, *, heartbeat_s: float | None = HEARTBEAT_S, max_cold_wait: float = 20.0, **more: Any
) -> AsyncIterator[tuple[GatewayRig, IdleProxy]]:
    variant = Variant(model="m", policy=ScalePolicy(max_cold_wait=max_cold_wait))
    options = RuntimeOptions(heartbeat_s=heartbeat_s)
    async with (
        gateway_rig(rig, runtime=options, variant=variant, **more) as gateway,
        idle_proxy(gateway.address, IDLE_LIMIT_S) as proxy,
    ):
        yield gateway, proxy


async def slow(call: Call) -> None:
    """A long prefill, and a long silence between two tokens."""
    await asyncio.sleep(QUIET_S)
    await call.begin_stream()
    await call.chunk(event(call.path, WORDS[0]))
    await asyncio.sleep(QUIET_S)
    for word in WORDS[1:]:
        await call.chunk(event(call.path, word))
    await call.chunk(event(call.path, "", "stop") + DONE)
    await call.end_stream()


@pytest.mark.parametrize("route", ROUTES)
async def test_a_cold_start_and_a_long_prefill(rig: Rig, route: str) -> None:
    rig.engine.handler = slow
    async with behind_a_proxy(rig, awake=False) as (gateway, proxy), openai_client(gateway, route, proxy.port) as client:
        asyncio.get_running_loop().call_later(QUIET_S, wake, gateway.desk, rig)
        text = "".join([text_of(chunk) async for chunk in await streamed(client)])
        assert text == "".join(WORDS)
        assert proxy.cut == 0
        await until(lambda: gateway.accounts.outcomes == ["ok"])


async def test_without_heartbeats_it_is_cut(rig: Rig) -> None:
    """What the others are saved from; the proxy of these tests does cut."""
    rig.engine.handler = slow
    async with behind_a_proxy(rig, heartbeat_s=None) as (gateway, proxy), openai_client(gateway, port=proxy.port) as client:
        with pytest.raises(openai.APIConnectionError):
            await streamed(client)
        assert proxy.cut == 1


async def refuses(call: Call) -> None:
    await asyncio.sleep(QUIET_S)
    await call.json(400, b'{"error": {"message": "the prompt is too long", "code": "too_long"}}')


async def dies(call: Call) -> None:
    await asyncio.sleep(QUIET_S)
    call.close()


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("handler", "says"), [(refuses, "the prompt is too long"), (dies, "failed before it answered")])
async def test_after_the_head_errors_ride_in_the_stream(rig: Rig, route: str, handler: Any, says: str) -> None:
    rig.engine.handler = handler
    async with behind_a_proxy(rig) as (gateway, proxy), openai_client(gateway, route, proxy.port) as client:
        stream = await streamed(client)
        with pytest.raises(openai.APIError, match=says):
            await anext(stream)
        assert proxy.cut == 0


async def test_a_cold_start_that_takes_too_long_is_told_in_the_stream(rig: Rig) -> None:
    async with behind_a_proxy(rig, awake=False, max_cold_wait=QUIET_S) as (gateway, proxy):
        client = await RawClient.connect("127.0.0.1", proxy.port)
        body = {"model": "e", "messages": [], "stream": True}
        answer = await client.request("POST", CHAT, gateway.headers(**{"x-request-id": "mine"}), json.dumps(body).encode())
        await client.close()
        assert answer.status == 200
        assert answer.complete
        assert answer.headers["x-request-id"] == "mine"
        assert answer.headers["content-type"] == "text/event-stream"
        *comments, error = answer.body.strip().split(b"\n\n")
        assert all(comment.startswith(b": standby") for comment in comments)
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "model_not_ready"
        assert proxy.cut == 0


async def test_a_quick_stream_has_no_comments(rig: Rig) -> None:
    rig.engine.handler = whole_stream
    async with gateway_rig(rig) as gateway:
        client = await gateway.connect()
        body = {"model": "e", "messages": [], "stream": True}
        answer = await client.request("POST", CHAT, gateway.headers(), json.dumps(body).encode())
        assert b"standby" not in answer.body
        assert "x-standby-instance" in answer.headers
        await until(lambda: gateway.accounts.outcomes == ["ok"])
