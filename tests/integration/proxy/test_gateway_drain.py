"""A gateway that is told to stop: it finishes what it has, and tells those who are left in the words of their API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from botocore.eventstream import EventStreamBuffer

from standby.gateway.drain import Drained, Ending, GatewayServer, Phase
from standby.gateway.public_port import PublicProtocol
from support.door_rig import Rig
from support.gateway_rig import PATH, GatewayRig, gateway_rig
from support.prompt_server import PromptGatewayServer
from support.raw_http import RawAnswer, RawClient
from support.upstream import Call, until_gone
from support.waiting import until

OPENAI = "/v1/chat/completions"
STREAMED = "/endpoints/e/invocations-response-stream"
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'


class Patient(PublicProtocol):
    """Waits for a head that is on its way for as long as a slow machine may take to send it."""

    last_head_s: ClassVar[float] = 30.0


@asynccontextmanager
async def draining(rig: Rig, *, grace_s: float, notice_s: float = 0.0, awake: bool = True) -> AsyncIterator[GatewayRig]:
    """Serve with the gateway's own server, whose counts of waiting requests are the desk's."""
    held: list[GatewayRig] = []
    ending = Ending(waiting=lambda: held[0].desk.queued)
    async with gateway_rig(
        rig,
        protocol=Patient,
        awake=awake,
        server_of=lambda config: PromptGatewayServer(config, ending, grace_s=grace_s, notice_s=notice_s),
    ) as gateway:
        held.append(gateway)
        yield gateway


def stop(gateway: GatewayRig) -> GatewayServer:
    """Do what the first signal does; again: the second one."""
    server = gateway.server
    assert isinstance(server, GatewayServer)
    server.told_to_stop()
    return server


async def over(server: GatewayServer) -> Drained:
    """Wait until the server has drained."""
    await until(lambda: server.phase is Phase.OVER)
    return server.drained


async def asked(gateway: GatewayRig, path: str, **body: object) -> RawClient:
    """Send a request over a connection of its own."""
    client = await gateway.connect()
    content = {"model": "e", "messages": [{"role": "user", "content": "x"}], **body}
    client.send("POST", path, gateway.headers(), json.dumps(content).encode())
    return client


async def begin_and_wait(call: Call) -> None:
    """Send one event, and then nothing."""
    await call.begin_stream()
    await call.chunk(EVENT)
    await call.gone.wait()


def held_back(go_on: asyncio.Event) -> Callable[[Call], Awaitable[None]]:
    """An engine that answers when it is let."""

    async def handler(call: Call) -> None:
        await go_on.wait()
        await call.json(200, b'{"choices": []}')

    return handler


async def test_what_is_open_is_finished_and_idle_connections_are_closed(rig: Rig) -> None:
    """Field case B18: the answer comes, says that its connection ends, and nobody new is let in."""
    go_on = asyncio.Event()
    async with draining(rig, grace_s=60) as gateway:
        idle = await gateway.connect()
        assert (await idle.request("POST", PATH, gateway.headers(), b'{"prompt": "x"}')).status == 200
        rig.engine.handler = held_back(go_on)
        client = await asked(gateway, PATH)
        await rig.begun(2)
        address, server = gateway.address, stop(gateway)
        assert await idle.reader.read() == b""
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(*address)
        assert server.phase is Phase.DRAINING
        go_on.set()
        answer = await client.answer()
        assert (answer.status, answer.complete, answer.headers["connection"]) == (200, True, "close")
        assert await over(server) == Drained(finished=1, cut=0)
    assert gateway.accounts.outcomes == ["ok", "ok"]


async def test_the_notice_lets_load_balancers_see_it_first(rig: Rig) -> None:
    """While it lasts new connections are served, each for one last answer."""
    async with draining(rig, grace_s=60, notice_s=3.0) as gateway:
        kept = await gateway.connect()
        assert (await kept.request("POST", PATH, gateway.headers(), b'{"prompt": "x"}')).status == 200
        server = stop(gateway)
        await until(lambda: server.phase is Phase.ANNOUNCED)
        fresh = await gateway.connect()
        for client in (kept, fresh):
            answer = await client.request("POST", PATH, gateway.headers(), b'{"prompt": "x"}')
            assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert (await over(server)).cut == 0


async def test_a_head_that_is_on_its_way_is_still_answered(rig: Rig) -> None:
    async with draining(rig, grace_s=60) as gateway:
        client = await gateway.connect()
        client.writer.write(f"POST {PATH} HTTP/1.1\r\nauthorization: Bearer {gateway.secret}\r\n".encode())
        await until(lambda: any(connection._head_bytes for connection in gateway.server.server_state.connections))  # type: ignore[union-attr]
        server = stop(gateway)
        await until(lambda: server.phase is Phase.DRAINING)
        client.writer.write(b"host: t\r\ncontent-length: 15\r\n\r\n" + b'{"prompt": "x"}')
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await over(server) == Drained(finished=1, cut=0)


@pytest.mark.parametrize("path", [OPENAI, PATH, STREAMED])
@pytest.mark.parametrize("begun", [True, False])
async def test_at_the_limit_everybody_is_told(rig: Rig, path: str, begun: bool) -> None:
    """Field case B29: streams get an error event and no end that looks whole, others an error of their API."""
    rig.engine.handler = begin_and_wait if begun else until_gone
    async with draining(rig, grace_s=0.2) as gateway:
        client = await asked(gateway, path, stream=True)
        await rig.begun(1)
        if begun:
            await until(lambda: any(c.cycle.response_started for c in gateway.server.server_state.connections))  # type: ignore[union-attr]
        server = stop(gateway)
        answer = await client.answer()
        assert await over(server) == Drained(finished=0, cut=1)
        assert answer.complete
        if begun:
            assert_told_in_its_stream(path, answer)
        else:
            assert_told(path, answer)
        assert gateway.desk.in_flight == gateway.desk.granted == 0
        await rig.idle()


async def test_those_who_wait_at_zero_are_told(rig: Rig) -> None:
    async with draining(rig, grace_s=0.2, awake=False) as gateway:
        clients = [await asked(gateway, path) for path in (OPENAI, PATH)]
        await until(lambda: gateway.desk.queued == 2)
        server = stop(gateway)
        for path, client in zip((OPENAI, PATH), clients, strict=True):
            assert_told(path, await client.answer())
        assert await over(server) == Drained(finished=0, cut=2)
        assert gateway.desk.queued == gateway.desk.in_flight == 0


async def test_a_second_signal_forces(rig: Rig) -> None:
    """The callers are told all the same, long before the grace is over."""
    rig.engine.handler = begin_and_wait
    async with draining(rig, grace_s=600) as gateway:
        client = await asked(gateway, OPENAI, stream=True)
        await until(lambda: any(c.cycle and c.cycle.response_started for c in gateway.server.server_state.connections))  # type: ignore[union-attr]
        server = stop(gateway)
        await until(lambda: server.phase is Phase.DRAINING)
        stop(gateway)
        assert_told_in_its_stream(OPENAI, await client.answer())
        assert await over(server) == Drained(finished=0, cut=1)


async def test_a_client_that_does_not_read_holds_nobody_back(rig: Rig) -> None:
    async def flood(call: Call) -> None:
        await call.begin_stream()
        while not call.gone.is_set():
            await call.chunk(EVENT * 500)

    rig.engine.handler = flood
    async with draining(rig, grace_s=0.2) as gateway:
        client = await RawClient.connect(*gateway.address, receive_buffer=4096)
        gateway.connections.append(client)
        body = json.dumps({"model": "e", "messages": [], "stream": True}).encode()
        client.send("POST", OPENAI, gateway.headers(), body)
        await until(lambda: any(c.flow.write_paused for c in gateway.server.server_state.connections if c.flow))  # type: ignore[union-attr]
        assert (await over(stop(gateway))).cut == 1


def assert_told(path: str, answer: RawAnswer) -> None:
    """The answer is an error of the API that was asked, with time to come again."""
    assert (answer.status, answer.complete) == (503, True), answer
    told = json.loads(answer.body)
    if path == OPENAI:
        assert told["error"]["code"] == "unavailable", told
        assert answer.headers["retry-after"] == "1"
    else:
        assert answer.headers["x-amzn-errortype"] == told["__type"] == "ServiceUnavailable"
    assert b"shutting down" in answer.body


def assert_told_in_its_stream(path: str, answer: RawAnswer) -> None:
    """What had come is there, then exactly one error, and no sign of a good end."""
    assert answer.status == 200
    assert b"[DONE]" not in answer.body
    if path != STREAMED:
        assert answer.body.startswith(EVENT), answer.body
        rest = [json.loads(line[5:]) for line in answer.body[len(EVENT) :].splitlines() if line.startswith(b"data:")]
        assert ["error" in one for one in rest] == [True], answer.body
        return
    buffer = EventStreamBuffer()
    buffer.add_data(answer.body)
    kinds = [message.headers.get(":exception-type") or message.headers[":event-type"] for message in buffer]
    assert kinds[:-1] == ["PayloadPart"] * (len(kinds) - 1)
    assert kinds[-1] in {"ModelStreamError", "InternalStreamFailure"}, kinds
