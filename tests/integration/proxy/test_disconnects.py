"""A caller who leaves ends the engine's work at once, in every phase of every operation (field case B25)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from standby.domain.endpoint import ScalePolicy, Variant
from standby.gateway.dataplane import RuntimeOptions
from standby.gateway.metering import Usage
from standby.wire.connection import WireConnection
from standby.wire.pool import ConnectionPool
from support.door_rig import Rig
from support.gateway_rig import GatewayRig, gateway_rig, wake
from support.openai_streams import event, tokens_then
from support.raw_http import RawClient
from support.upstream import Call, echo, until_gone
from support.waiting import until

# A door's own patience with an engine, which would end the work as well, is several times as long; so is a gateway's here,
# and no heartbeat finds the connection closed.
LIMIT_S = 30.0
FAR_S = 3600.0
PATIENT = RuntimeOptions(invocation_limit_s=FAR_S, stream_limit_s=FAR_S, linger_s=FAR_S, heartbeat_s=None)
WAITING = Variant(model="m", policy=ScalePolicy(max_cold_wait=FAR_S))
PATHS = {
    "openai": "/v1/chat/completions",
    "openai below an endpoint": "/endpoints/e/openai/v1/chat/completions",
    "invoke": "/endpoints/e/invocations",
    "invoke with stream": "/endpoints/e/invocations-response-stream",
}
PROMPT = "What is the capital?"
PROMPT_TOKENS = -(-len(PROMPT) // 4)


async def half_a_body(call: Call) -> None:
    await call.begin_stream("application/json")
    await call.chunk(b'{"choices": [')
    await call.gone.wait()


async def asked(gateway: GatewayRig, path: str, *, stream: bool) -> RawClient:
    client = await gateway.connect()
    body: dict[str, Any] = {"model": "e", "messages": [{"role": "user", "content": PROMPT}], "stream": stream}
    client.send("POST", path, gateway.headers(), json.dumps(body).encode())
    return client


async def over(gateway: GatewayRig) -> None:
    """Wait until nothing is left of the request, anywhere."""
    await until(lambda: gateway.accounts.used, within_s=LIMIT_S)
    assert gateway.accounts.outcomes == ["client_gone"]
    await until(lambda: gateway.behind.in_flight == 0 and gateway.desk.in_flight == 0, within_s=LIMIT_S)
    assert gateway.desk.queued == gateway.desk.queued_bytes == gateway.desk.granted == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_while_it_is_queued(rig: Rig, path: str, stream: bool) -> None:
    async with gateway_rig(rig, runtime=PATIENT, variant=WAITING, awake=False) as gateway:
        client = await asked(gateway, path, stream=stream)
        await until(lambda: gateway.desk.queued == 1, within_s=LIMIT_S)
        client.abort()
        await until(lambda: gateway.desk.queued == 0, within_s=LIMIT_S)
        await over(gateway)
        assert gateway.accounts.used == [(Usage(0, 0, estimated=False), False)]
        rig.engine.handler = echo
        wake(gateway.desk, rig)
        other = await asked(gateway, path, stream=stream)
        assert (await other.answer()).status == 200
        assert rig.engine.begun == 1, "whoever has left is not served before or beside those who are there"


async def test_while_the_gateway_still_connects_to_the_door(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine was asked of anything, so nothing was used."""
    connecting = asyncio.Event()

    async def never(_pool: ConnectionPool) -> WireConnection:
        connecting.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(ConnectionPool, "connect", never)
    async with gateway_rig(rig, runtime=PATIENT) as gateway:
        client = await asked(gateway, PATHS["openai"], stream=True)
        await connecting.wait()
        client.abort()
        await over(gateway)
        assert gateway.accounts.used == [(Usage(0, 0, estimated=False), False)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_while_the_engine_reads_the_prompt(rig: Rig, path: str, stream: bool) -> None:
    rig.engine.handler = until_gone
    async with gateway_rig(rig, runtime=PATIENT) as gateway:
        client = await asked(gateway, path, stream=stream)
        await rig.begun(1)
        client.abort()
        async with asyncio.timeout(LIMIT_S):
            await rig.engine.calls[0].gone.wait()
        await over(gateway)
        assert gateway.accounts.used == [(Usage(PROMPT_TOKENS, 0, estimated=True), False)]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
async def test_while_the_engine_generates(rig: Rig, path: str, stream: bool) -> None:
    rig.engine.handler = tokens_then(until_gone) if stream else half_a_body
    async with gateway_rig(rig, runtime=PATIENT) as gateway:
        client = await asked(gateway, path, stream=stream)
        await client.reader.readuntil(event("/v1/chat/completions", " is") if stream else b'{"choices": [')
        client.abort()
        async with asyncio.timeout(LIMIT_S):
            await rig.engine.calls[0].gone.wait()
        await over(gateway)
        assert gateway.accounts.used == [(Usage(PROMPT_TOKENS, 3 if stream else 0, estimated=True), False)]
