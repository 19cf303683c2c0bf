"""The gateway's half: an ASGI ``send`` on one side, a real door and a scriptable engine on the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from standby.gateway.relay import DoorClient, OutcomeKind, RelayOutcome
from support.door_rig import INSTANCE, Rig
from support.upstream import Call, until_gone

Message = MutableMapping[str, Any]
# A door's own patience with an engine, which would end the work as well, is several times as long.
LIMIT_S = 30.0


class Client:
    """An ASGI client that records what it was sent; ``hold`` makes its ``send`` wait, ``leave`` disconnects it."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.flowing = asyncio.Event()
        self.flowing.set()
        self.left = asyncio.Event()
        self.got = asyncio.Event()

    async def send(self, message: Message) -> None:
        await self.flowing.wait()
        self.messages.append(message)
        self.got.set()

    async def receive(self) -> Message:
        await self.left.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)

    @property
    def complete(self) -> bool:
        return bool(self.messages) and not self.messages[-1].get("more_body", True)


@pytest.fixture
def caller() -> Client:
    return Client()


async def _stream(call: Call) -> None:
    await call.begin_stream()
    for number in range(5):
        await call.chunk(b"data: %d\n\n" % number)
    await call.chunk(b"data: [DONE]\n\n")
    await call.end_stream()


async def test_plain_answer_arrives_whole(rig: Rig, caller: Client) -> None:
    began = rig.client.clock()
    outcome = await rig.client.relay(
        rig.request(
            headers=[(b"authorization", b"Bearer k"), (b"cookie", b"c"), (b"x-standby-epoch", b"9"), (b"accept", b"*/*")]
        ),
        caller.send,
        extra_headers=[(b"x-request-id", b"r1")],
    )
    start = caller.messages[0]
    seen = json.loads(caller.body)["headers"]
    assert outcome.kind is OutcomeKind.DONE
    assert (outcome.status, outcome.bytes) == (200, len(caller.body))
    assert outcome.first_byte_at is not None
    assert began <= outcome.first_byte_at <= rig.client.clock()
    assert dict(start["headers"]) == {
        b"content-type": b"application/json",
        b"x-request-id": b"r1",
        b"content-length": b"%d" % len(caller.body),
    }
    assert caller.complete
    assert set(seen) == {"host", "x-request-id", "accept", "content-length"}


async def test_stream_arrives_byte_for_byte_on_a_kept_connection(rig: Rig, caller: Client) -> None:
    rig.engine.handler = _stream
    for _ in range(2):
        outcome = await rig.client.relay(rig.request(), caller.send)
        assert outcome.kind is OutcomeKind.DONE
    assert caller.body == (b"".join(b"data: %d\n\n" % n for n in range(5)) + b"data: [DONE]\n\n") * 2
    assert rig.client.of(rig.address).idle == 1
    assert len(rig.door.connections) == 1


@pytest.mark.parametrize(("after_s", "executions"), [(0.1, 3), (2.0, 2)])
async def test_only_a_connection_that_was_stale_from_the_start_is_tried_again(
    rig: Rig, caller: Client, after_s: float, executions: int
) -> None:
    """Field case B34: a request that an engine may have been at work on is not repeated because a connection broke."""
    now = 100.0
    rig.client.clock = lambda: now
    assert (await rig.client.relay(rig.request(), caller.send)).kind is OutcomeKind.DONE

    async def never(_call: Call) -> None:
        """Answer nothing."""

    rig.engine.handler = never
    relaying = asyncio.create_task(rig.client.relay(rig.request(), Client().send))
    await rig.begun(2)
    now += after_s
    next(iter(rig.door.connections)).transport.abort()
    if executions == 2:
        outcome = await relaying
        assert (outcome.kind, outcome.saw) == (OutcomeKind.ENGINE_FAILED, True)
    else:
        await rig.begun(3)
        relaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await relaying
    assert len(rig.engine.calls) == executions


async def test_refusal_leaves_the_client_untouched(rig: Rig, caller: Client) -> None:
    outcome = await rig.client.relay(rig.request(epoch=3), caller.send)
    assert (outcome.kind, outcome.reason, outcome.saw) == (OutcomeKind.REFUSED, "stale-epoch", False)
    rig.door.fence(INSTANCE)
    outcome = await rig.client.relay(rig.request(body=b"x" * 2_000_000), caller.send)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.REFUSED, "draining")
    assert caller.messages == []


async def test_door_that_is_not_there(rig: Rig, caller: Client) -> None:
    await rig.door.stop()
    outcome = await rig.client.relay(rig.request(), caller.send)
    assert (outcome.kind, outcome.saw) == (OutcomeKind.CONNECT_FAILED, False)
    assert caller.messages == []


@pytest.mark.parametrize("begun", [False, True])
async def test_engine_that_dies_before_the_first_byte_leaves_the_client_untouched(
    rig: Rig, caller: Client, begun: bool
) -> None:
    async def die(call: Call) -> None:
        if begun:
            await call.begin_stream()
        call.close()

    rig.engine.handler = die
    outcome = await rig.client.relay(rig.request(), caller.send)
    assert (outcome.kind, outcome.reason, outcome.saw) == (OutcomeKind.ENGINE_FAILED, "died", True)
    assert caller.messages == []


async def test_broken_stream_is_no_success(rig: Rig, caller: Client) -> None:
    """The door ends the stream in order, with an error event: the gateway still counts a failure."""

    async def break_off(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        call.close()

    rig.engine.handler = break_off
    outcome = await rig.client.relay(rig.request(), caller.send)
    assert (outcome.kind, outcome.reason) == (OutcomeKind.BROKEN_MID_STREAM, "died")
    assert caller.complete
    assert b'"code": "engine_died"' in caller.body
    assert b"[DONE]" not in caller.body


async def test_stream_broken_between_gateway_and_door_ends_with_an_error_event(rig: Rig, caller: Client) -> None:
    async def work(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\ndata: half")
        await call.gone.wait()

    rig.engine.handler = work
    attempt = asyncio.create_task(rig.client.relay(rig.request(), caller.send))
    await _body(caller, b"half")
    for connection in tuple(rig.door.connections):
        connection.transport.abort()
    outcome = await attempt
    assert outcome.kind is OutcomeKind.BROKEN_MID_STREAM
    assert caller.complete
    assert caller.body.startswith(b'data: 1\n\ndata: half\n\ndata: {"error": ')
    await rig.idle()


async def test_broken_plain_answer_is_left_incomplete(rig: Rig, caller: Client) -> None:
    async def break_off(call: Call) -> None:
        await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        call.close()

    rig.engine.handler = break_off
    outcome = await rig.client.relay(rig.request(), caller.send)
    assert outcome.kind is OutcomeKind.BROKEN_MID_STREAM
    assert caller.body == b"half"
    assert not caller.complete


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "disconnect"])
async def test_client_that_leaves_ends_the_engines_work(rig: Rig, caller: Client, streaming: bool, how: str) -> None:
    """Field case B25, through both hops, before the first byte and after it."""

    async def work(call: Call) -> None:
        if streaming:
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
        await call.gone.wait()

    rig.engine.handler = work
    attempt = asyncio.create_task(rig.client.relay(rig.request(), caller.send, receive=caller.receive))
    async with asyncio.timeout(LIMIT_S):
        while not rig.engine.calls or (streaming and not caller.messages):
            await asyncio.sleep(0.005)
    async with asyncio.timeout(LIMIT_S):
        if how == "cancelled":
            attempt.cancel()
            with pytest.raises(asyncio.CancelledError):
                await attempt
        else:
            caller.left.set()
            assert (await attempt).kind is OutcomeKind.CLIENT_GONE
        await rig.engine.calls[0].gone.wait()
        await rig.idle()


async def test_client_that_has_already_left_starts_nothing(rig: Rig, caller: Client) -> None:
    caller.left.set()
    outcome = await rig.client.relay(rig.request(), caller.send, receive=caller.receive)
    assert outcome.kind is OutcomeKind.CLIENT_GONE
    assert rig.engine.begun == 0


async def test_slow_client_holds_the_engine_back(rig: Rig, caller: Client) -> None:
    """While ``send`` waits nothing more is read; then every byte arrives in order."""
    total, piece = 24 * 1024 * 1024, bytes(range(256)) * 256

    async def flood(call: Call) -> None:
        await call.begin_stream("application/octet-stream")
        for _ in range(total // len(piece)):
            await call.chunk(piece)
        await call.end_stream()

    rig.engine.handler = flood
    caller.flowing.clear()
    attempt = asyncio.create_task(rig.client.relay(rig.request(), caller.send))
    async with asyncio.timeout(LIMIT_S):
        while not rig.engine.calls or rig.engine.calls[0].writable.is_set():
            await asyncio.sleep(0.005)
    assert rig.engine.calls[0].written < 16 * 1024 * 1024
    assert caller.messages == []
    caller.flowing.set()
    outcome = await attempt
    assert outcome.kind is OutcomeKind.DONE
    assert caller.body == piece * (total // len(piece))


async def test_error_of_send_is_raised_to_the_caller_and_ends_the_engines_work(rig: Rig) -> None:
    async def work(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        await call.gone.wait()

    async def broken(message: Message) -> None:
        raise OSError("client socket is gone")

    rig.engine.handler = work
    with pytest.raises(OSError, match="client socket is gone"):
        await rig.client.relay(rig.request(), broken)
    async with asyncio.timeout(LIMIT_S):
        await rig.engine.calls[0].gone.wait()
        await rig.idle()


async def test_kept_connection_that_the_door_closed_is_replaced(rig: Rig, caller: Client) -> None:
    rig.client.clock = lambda: 100.0  # however slow this machine is: the loss shows itself at once
    await rig.client.relay(rig.request(), caller.send)
    # Closed without letting the loop tell the client's side before its next request.
    for connection in tuple(rig.door.connections):
        connection.transport.abort()
    outcome = await rig.client.relay(rig.request(), caller.send)
    assert outcome.kind is OutcomeKind.DONE
    assert rig.engine.begun == 2


async def test_closed_client_leaves_no_connection(rig: Rig, caller: Client) -> None:
    client = DoorClient()
    await client.relay(rig.request(), caller.send)
    await client.close()
    async with asyncio.timeout(LIMIT_S):
        while rig.door.connections:
            await asyncio.sleep(0.005)


async def test_slots_come_back_from_every_ending(rig: Rig) -> None:
    """Field case B20: 200 requests, each ended in another way, leave nothing in flight and every slot usable."""
    rig.engine.handler = _every_ending
    endings = ["reset", "eof", "500", "garbage", "half-head", "good", "stream", "client-early", "client-mid", "oversized"]
    outcomes = []
    for start in range(0, 200, 4):
        batch = [_end_somehow(rig, endings[(start + offset) % len(endings)]) for offset in range(4)]
        outcomes.extend(await asyncio.gather(*batch))
        await rig.idle()
    assert len(outcomes) == 200
    assert {outcome.kind for outcome in outcomes if outcome is not None} == {
        OutcomeKind.DONE,
        OutcomeKind.ENGINE_FAILED,
        OutcomeKind.BROKEN_MID_STREAM,
    }
    assert rig.in_flight == 0
    rig.engine.handler = until_gone
    waiting = [asyncio.create_task(rig.client.relay(rig.request(), Client().send)) for _ in range(4)]
    async with asyncio.timeout(LIMIT_S):
        while rig.in_flight < 4:
            await asyncio.sleep(0.005)
    assert (await rig.client.relay(rig.request(), Client().send)).reason == "full"
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    await rig.idle()


async def _every_ending(call: Call) -> None:
    match call.path:
        case "/reset":
            call.reset()
        case "/eof":
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
            call.close()
        case "/500":
            await call.json(500, b"{}")
        case "/garbage":
            await call.write(b"what?\r\n\r\n")
        case "/half-head":
            await call.write(b"HTTP/1.1 200 OK\r\ncontent-")
            call.close()
        case "/good":
            await call.json(200, b"{}")
        case "/stream":
            await _stream(call)
        case "/client-mid":
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
            await call.gone.wait()
        case _:
            await call.gone.wait()


async def _end_somehow(rig: Rig, ending: str) -> RelayOutcome | None:
    if ending == "oversized":
        raw = await rig.connect()
        raw.send("POST", "/", rig.headers(transfer_encoding="chunked"), framed=False)
        raw.writer.write(b"zz\r\nnot a chunk\r\n")
        assert (await raw.answer()).status in (0, 400)
        await raw.close()
        return None
    caller = Client()
    attempt = asyncio.create_task(rig.client.relay(rig.request(path=f"/{ending}"), caller.send))
    if not ending.startswith("client-"):
        return await attempt
    if ending == "client-mid":
        await _body(caller, b"data: 1")
    else:
        await asyncio.sleep(0)
    attempt.cancel()
    await asyncio.gather(attempt, return_exceptions=True)
    return None


async def _body(caller: Client, part: bytes) -> None:
    async with asyncio.timeout(LIMIT_S):
        while part not in caller.body:
            caller.got.clear()
            await caller.got.wait()
