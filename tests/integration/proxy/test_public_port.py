"""The gateway's public port against callers who are slow, large, early, gone, or still there at the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from standby.gateway import desk as desk_module
from standby.gateway.http import UploadRoom
from standby.gateway.public_port import PublicProtocol
from support.door_rig import Rig
from support.gateway_rig import PATH, GatewayRig, gateway_rig
from support.raw_http import RawClient
from support.upstream import Call
from support.waiting import until

PROMPT = b'{"prompt": "x"}'


LIMIT_S = 30.0
QUIET_S = 1.0


class Impatient(PublicProtocol):
    """Short limits, but far longer than a slow machine takes for what is sent at once."""

    head_s: ClassVar[float] = QUIET_S
    body_quiet_s: ClassVar[float] = QUIET_S


@pytest_asyncio.fixture
async def gateway(rig: Rig) -> AsyncIterator[GatewayRig]:
    async with gateway_rig(rig) as made:
        yield made


@pytest_asyncio.fixture
async def impatient(rig: Rig) -> AsyncIterator[GatewayRig]:
    async with gateway_rig(rig, protocol=Impatient) as made:
        yield made


async def ended(client: RawClient) -> bytes:
    """Read to the connection's end."""
    async with asyncio.timeout(LIMIT_S):
        try:
            return await client.reader.read()
        except ConnectionError:
            return b""


async def never(_call: Call) -> None:
    """Answer nothing."""


async def test_an_answered_request_is_no_client_that_left(gateway: GatewayRig) -> None:
    client = await gateway.connect()
    for _ in range(3):
        assert (await client.request("POST", PATH, gateway.headers(), PROMPT)).status == 200
    await until(lambda: len(gateway.accounts.outcomes) == 3)
    assert gateway.accounts.outcomes == ["ok", "ok", "ok"]


async def test_an_endless_head_is_refused_before_any_key_was_shown(gateway: GatewayRig) -> None:
    client = await gateway.connect()
    client.writer.write(b"POST / HTTP/1.1\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 1000) for n in range(70)))
    assert (await ended(client)).startswith(b"HTTP/1.1 431 ")


async def test_a_caller_who_sends_no_head_is_let_go(impatient: GatewayRig) -> None:
    silent = await impatient.connect()
    dripping = await impatient.connect()
    dripping.writer.write(b"POST / HT")
    idle = await impatient.connect()
    assert (await idle.request("POST", PATH, impatient.headers(), PROMPT)).status == 200
    idle.writer.write(b"\r\n")
    for client in (silent, dripping, idle):
        assert await ended(client) == b""


async def test_an_idle_connection_is_closed_only_once_it_was_idle_for_long_enough(rig: Rig) -> None:
    """The time begins anew with each answer, and a request that takes longer than it is not idle."""
    held = asyncio.Event()

    async def later(call: Call) -> None:
        await held.wait()
        await call.json(200, b"{}")

    class Brief(PublicProtocol):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            self.timeout_keep_alive = QUIET_S  # type: ignore[assignment] # uvicorn's setting has whole seconds only

    async with gateway_rig(rig, protocol=Brief) as gateway:
        client = await gateway.connect()
        for _ in range(3):
            assert (await client.request("POST", PATH, gateway.headers(), PROMPT)).status == 200
        rig.engine.handler = later
        client.send("POST", PATH, gateway.headers(), PROMPT)
        await rig.begun(4)
        asyncio.get_running_loop().call_later(1.5 * QUIET_S, held.set)
        assert (await client.answer()).status == 200
        assert await ended(client) == b""


async def test_a_caller_whose_body_stalls_is_let_go(impatient: GatewayRig) -> None:
    client = await impatient.connect()
    client.send("POST", PATH, {**impatient.headers(), "content-length": "100"}, b"{", framed=False)
    assert await ended(client) == b""
    assert impatient.desk.in_flight == 0


async def test_bodies_that_arrive_are_bounded_together(gateway: GatewayRig) -> None:
    """Each is bounded, but anybody with a key may open any number of connections."""
    uploads = gateway.plane.uploads = UploadRoom(limit=3000)
    headers = {**gateway.headers(), "content-length": "2500"}
    first = await gateway.connect()
    first.send("POST", PATH, headers, b"{", framed=False)
    await until(lambda: uploads.body_bytes == 1)
    first.writer.write(b" " * 1999)
    await until(lambda: uploads.body_bytes == 2000)
    second = await gateway.connect()
    second.send("POST", PATH, headers, b"{", framed=False)
    await until(lambda: uploads.body_bytes == 2001)
    second.writer.write(b" " * 1500)
    refused = await second.answer()
    assert (refused.status, refused.headers["x-amzn-errortype"]) == (400, "ThrottlingException")
    first.abort()
    await until(lambda: uploads.body_bytes == 0)


async def test_the_body_of_a_refused_request_does_not_hold_the_connection(impatient: GatewayRig) -> None:
    client = await impatient.connect()
    client.send("POST", PATH, {"content-length": "1000"}, b"{", framed=False)
    assert (await client.answer()).status == 403

    async def drip() -> None:
        with contextlib.suppress(RuntimeError):  # uvloop says so once the connection is closed
            while True:
                client.writer.write(b" ")
                await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    try:
        assert await ended(client) == b""
    finally:
        dripping.cancel()


@pytest.mark.parametrize("given", [b"a\x7fb", b"x" * 500, b"a\tb"])
async def test_a_callers_odd_request_id_breaks_nothing(gateway: GatewayRig, given: bytes) -> None:
    client = await gateway.connect()
    head = f"POST {PATH} HTTP/1.1\r\nauthorization: Bearer {gateway.secret}\r\ncontent-length: {len(PROMPT)}\r\n"
    client.writer.write(head.encode() + b"x-request-id: " + given + b"\r\n\r\n" + PROMPT)
    assert (await client.answer()).status in (200, 400)


async def test_a_slow_body_that_keeps_coming_is_served(impatient: GatewayRig) -> None:
    client = await impatient.connect()
    client.send("POST", PATH, {**impatient.headers(), "content-length": str(len(PROMPT))}, framed=False)
    for byte in PROMPT:
        client.writer.write(bytes([byte]))
        await asyncio.sleep(0.1 * QUIET_S)
    assert (await client.answer()).status == 200


async def test_a_slow_answer_is_waited_for(impatient: GatewayRig) -> None:
    async def slow(call: Call) -> None:
        await asyncio.sleep(2.5 * QUIET_S)
        await call.json(200, b"{}")

    impatient.behind.engine.handler = slow
    client = await impatient.connect()
    assert (await client.request("POST", PATH, impatient.headers(), PROMPT)).status == 200


async def test_a_caller_who_pipelines_and_leaves_frees_the_engine(gateway: GatewayRig) -> None:
    """Field case B25, with a second request behind the one that is being served."""
    gateway.behind.engine.handler = never
    client = await gateway.connect()
    client.send("POST", PATH, gateway.headers(), PROMPT)
    await gateway.behind.begun(1)
    client.send("POST", PATH, gateway.headers(), PROMPT)
    await asyncio.sleep(0.05)
    client.abort()
    async with asyncio.timeout(LIMIT_S):
        await gateway.behind.engine.calls[0].gone.wait()
    await until(lambda: gateway.desk.in_flight == 0)
    assert gateway.accounts.outcomes == ["client_gone"]


async def test_garbage_behind_a_request_does_not_get_into_its_answer(gateway: GatewayRig) -> None:
    async def stream(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        await released.wait()
        await call.chunk(b"data: 2\n\n")
        await call.end_stream()

    released = asyncio.Event()
    gateway.behind.engine.handler = stream
    client = await gateway.connect()
    client.send("POST", PATH, gateway.headers(), PROMPT)
    await gateway.behind.begun(1)
    client.writer.write(b"\x00\x01 garbage\r\n\r\n")
    await asyncio.sleep(0.05)
    released.set()
    answer = await client.answer()
    assert (answer.complete, answer.body) == (True, b"data: 1\n\ndata: 2\n\n")


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 15\r\ntransfer-encoding: chunked\r\n",
        b"content-length: 15\r\ncontent-length: 16\r\n",
        b"content-length: +15\r\n",
        b"transfer-encoding: xchunked\r\n",
        b"transfer-encoding : chunked\r\n",
        b"x: a\r\n folded\r\ncontent-length: 15\r\n",
        b"x: a\x00b\r\ncontent-length: 15\r\n",
    ],
)
async def test_ambiguous_framing_reaches_no_engine(gateway: GatewayRig, framing: bytes) -> None:
    client = await gateway.connect()
    key = b"authorization: Bearer " + gateway.secret.encode()
    client.writer.write(b"POST " + PATH.encode() + b" HTTP/1.1\r\nhost: t\r\n" + key + b"\r\n" + framing + b"\r\n" + PROMPT)
    assert (await client.answer()).status == 400
    assert gateway.behind.engine.calls == []


async def test_buffered_answer_that_breaks_off_is_a_bad_gateway(gateway: GatewayRig) -> None:
    """The 'inputs' form is answered as a whole: nothing has been sent when the engine breaks off."""

    async def half(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{")
        call.reset()

    gateway.behind.engine.handler = half
    client = await gateway.connect()
    answer = await client.request("POST", PATH, gateway.headers(), b'{"inputs": "x"}')
    assert (answer.status, answer.headers["x-amzn-errortype"]) == (424, "ModelError")


@pytest.mark.parametrize("body", [b"{}", b"nothing", b'{"choices": []}', b"[]"])
async def test_buffered_answer_that_is_no_completion_is_a_models_error(gateway: GatewayRig, body: bytes) -> None:
    async def odd(call: Call) -> None:
        await call.json(200, body)

    gateway.behind.engine.handler = odd
    client = await gateway.connect()
    answer = await client.request("POST", PATH, gateway.headers(), b'{"inputs": "x"}')
    assert (answer.status, json.loads(answer.body)["OriginalStatusCode"]) == (424, 500)


async def test_an_engine_that_breaks_one_request_gets_the_next_ones(
    gateway: GatewayRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk_module, "CONNECT_PAUSE_S", 0.05)

    async def reset(call: Call) -> None:
        call.reset()

    async def good(call: Call) -> None:
        await call.json(200, b"{}")

    gateway.behind.engine.handler = reset
    client = await gateway.connect()
    assert (await client.request("POST", PATH, gateway.headers(), PROMPT)).status == 424
    gateway.behind.engine.handler = good
    async with asyncio.timeout(LIMIT_S):
        assert (await client.request("POST", PATH, gateway.headers(), PROMPT)).status == 200


async def test_shutdown_ends_what_is_left_in_words(rig: Rig) -> None:
    """Field case B18: at the end of the grace who waits gets 503, and a stream its error event, not a cut socket."""

    async def stream(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")

    async with gateway_rig(rig, grace_s=1) as gateway:
        rig.engine.handler = stream
        streamed = await gateway.connect()
        streamed.send("POST", PATH, gateway.headers(), PROMPT)
        await rig.begun(1)
        rig.engine.handler = never
        waiting = await gateway.connect()
        waiting.send("POST", PATH, gateway.headers(), PROMPT)
        await rig.begun(2)
        gateway.server.should_exit = True
        answers = await asyncio.gather(streamed.answer(), waiting.answer())
    assert answers[0].complete
    assert b"connection_lost" in answers[0].body
    assert answers[1].status == 503
    assert answers[1].headers["x-amzn-errortype"] == "ServiceUnavailable"
    assert "x-amz-retry-after" in answers[1].headers


async def test_a_tunnel_is_refused_and_nothing_else_happens(gateway: GatewayRig) -> None:
    """CONNECT has a head and never becomes a request: anybody could fill the log with our own mistake."""
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    client = await gateway.connect()
    client.writer.write(b"CONNECT inside:1 HTTP/1.1\r\nhost: t\r\n\r\n")
    assert (await ended(client)).startswith(b"HTTP/1.1 400 ")
    assert told == []
