"""How requests end at the door when something goes wrong: engines that fail, gateways that leave, nodes that abort."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from standby.warm_pool import door, door_exchange
from standby.warm_pool.door import DoorLimits
from support.door_rig import INSTANCE, Rig
from support.upstream import Call
from support.waiting import until

# Shorter than the door's own patience with engines and gateways.
LIMIT_S = 30.0
PATIENT_S = 60.0


async def test_unconnectable_engine_is_a_502_that_saw_nothing(rig: Rig, socket_path: Path) -> None:
    rig.door.open("i-2", epoch=1, slots=1, address=socket_path.with_name("nobody.sock"))
    answer = await rig.ask(x_standby_instance="i-2", x_standby_epoch="1")
    assert answer.status == 502
    assert (answer.headers["x-standby-engine-error"], answer.headers["x-standby-engine-saw"]) == ("connect", "0")
    assert rig.door.load("i-2").failures == 1
    assert "i-2" in rig.changes


async def test_an_engine_on_tcp_that_breaks_off_is_told_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is gone cannot be seen there, however often one looks: its slot does not wait for that."""
    monkeypatch.setattr(door_exchange, "_LOOK_S", PATIENT_S)

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(break_off, "127.0.0.1", 0) as engine:
        rig.door.open("i-2", epoch=1, slots=1, address=engine.sockets[0].getsockname())
        async with asyncio.timeout(LIMIT_S):
            answer = await rig.ask(x_standby_instance="i-2", x_standby_epoch="1")
    assert (answer.status, answer.headers["x-standby-engine-error"]) == (502, "died")
    assert "x-standby-engine-gone" not in answer.headers
    assert rig.door.load("i-2").in_flight == 0


async def _die(call: Call) -> None:
    call.reset()


async def _die_after_head(call: Call) -> None:
    """Field case B27: a head without any body byte is still a failure before the first byte."""
    await call.begin_stream()
    call.close()


async def _garbage(call: Call) -> None:
    await call.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")


async def _endless_head(call: Call) -> None:
    await call.write(b"HTTP/1.1 200 OK\r\n" + b"x-filler: aaaaaaaa\r\n" * 5000)
    await call.gone.wait()


@pytest.mark.parametrize(
    ("handler", "fault"),
    [(_die, "died"), (_die_after_head, "died"), (_garbage, "malformed"), (_endless_head, "malformed")],
)
async def test_engine_failure_before_the_first_byte_is_a_502(rig: Rig, handler: object, fault: str) -> None:
    rig.engine.handler = handler  # type: ignore[assignment] # a handler
    answer = await rig.ask()
    assert answer.status == 502
    assert (answer.headers["x-standby-engine-error"], answer.headers["x-standby-engine-saw"]) == (fault, "2")
    assert answer.complete
    assert rig.in_flight == 0


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("together", [1, 3])
async def test_all_learn_how_many_were_in_flight_when_the_engine_ended(
    rig: Rig, socket_path: Path, together: int, streamed: bool
) -> None:
    """They may be several gateways' requests, each of which believes that it was alone: no engine dies of all of them."""

    async def die(call: Call) -> None:
        if streamed:
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
        await until(lambda: len(rig.engine.calls) == together)
        socket_path.unlink(missing_ok=True)
        call.close()

    rig.engine.handler = die
    answers = await asyncio.gather(*(rig.ask() for _ in range(together)))
    marks = [answer.trailers if streamed else answer.headers for answer in answers]
    assert [one["x-standby-engine-gone"] for one in marks] == [str(together)] * together


@pytest.mark.parametrize("tail", [b"data: 2\n\n", b"data: {unfini"])
async def test_event_stream_that_breaks_ends_with_an_error_event(rig: Rig, tail: bytes) -> None:
    """Field case B26: an error event on its own, no [DONE], and a trailer by which the gateway counts a failure."""

    async def break_off(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        await call.chunk(tail)
        call.close()

    rig.engine.handler = break_off
    answer = await rig.ask()
    assert answer.complete
    assert answer.trailers == {"x-standby-engine-error": "died"}
    events = answer.body.split(b"\n\n")
    assert events[0] == b"data: 1"
    assert events[1] == tail.strip()
    assert json.loads(events[2].removeprefix(b"data: "))["error"]["code"] == "engine_died"
    assert events[3:] == [b""]


@pytest.mark.parametrize("framing", ["chunked", "content-length"])
async def test_other_body_that_breaks_is_seen_to_be_incomplete(rig: Rig, framing: str) -> None:
    async def break_off(call: Call) -> None:
        if framing == "chunked":
            await call.begin_stream("application/json")
            await call.chunk(b'{"a": 1}')
        else:
            await call.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        call.close()

    rig.engine.handler = break_off
    answer = await rig.ask()
    assert answer.status == 200
    assert not answer.complete
    assert rig.in_flight == 0
    assert rig.door.load(INSTANCE).failures == 1


async def test_stale_kept_connection_is_replaced_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine closes a kept connection just as the next request arrives: it is sent again on a fresh one."""
    monkeypatch.setattr(rig.door, "clock", lambda: 100.0)  # however slow this machine is: the loss shows itself at once
    calls = 0

    async def close_second(call: Call) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            call.reset()
        else:
            await call.json(200, b"%d" % calls)

    rig.engine.handler = close_second
    client = await rig.connect()
    assert (await client.request("POST", "/", rig.headers(), b"{}")).body == b"1"
    assert (await client.request("POST", "/", rig.headers(), b"{}")).body == b"3"
    assert rig.engine.connections == 2
    await client.close()


async def test_fresh_connection_that_closes_is_not_tried_again(rig: Rig) -> None:
    rig.engine.handler = _die
    assert (await rig.ask()).status == 502
    assert rig.engine.begun == 1


@pytest.mark.parametrize("phase", ["before the first byte", "in the middle"])
async def test_leaving_gateway_ends_the_engines_work(rig: Rig, phase: str) -> None:
    """Field case B25: an engine stops generating when its connection closes."""

    async def work(call: Call) -> None:
        if phase == "in the middle":
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
        await call.gone.wait()

    rig.engine.handler = work
    client = await rig.connect()
    client.send("POST", "/", rig.headers(), b"{}")
    await rig.begun(1)
    if phase == "in the middle":
        await client.reader.readuntil(b"data: 1\n\n")
    client.abort()
    async with asyncio.timeout(LIMIT_S):
        await rig.engine.calls[0].gone.wait()
        await rig.idle()


async def test_abort_tells_every_caller(rig: Rig) -> None:
    """A drain limit ends streams with an error event and waiting requests with a 502."""

    async def work(call: Call) -> None:
        if call.path == "/stream":
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
        await call.gone.wait()

    rig.engine.handler = work
    stream = await rig.connect()
    stream.send("POST", "/stream", rig.headers(), b"{}")
    await stream.reader.readuntil(b"data: 1\n\n")
    waiting = asyncio.create_task(rig.ask())
    await rig.begun(2)
    assert rig.door.abort(INSTANCE, "drain limit of 1 s reached") == 2
    assert rig.in_flight == 0
    rest = await stream.reader.readuntil(b"x-standby-engine-error: aborted\r\n\r\n")
    assert b"drain limit of 1 s reached" in rest
    answer = await waiting
    assert (answer.status, answer.headers["x-standby-engine-error"]) == (502, "aborted")
    assert rig.door.load(INSTANCE).failures == 0
    assert rig.door.slots.results.cut_off == 2
    await stream.close()


async def test_silent_engine_is_given_up(rig: Rig) -> None:
    async def silent(call: Call) -> None:
        if call.path == "/stream":
            await call.begin_stream()
            await call.chunk(b"data: 1\n\n")
        await call.gone.wait()

    rig.engine.handler = silent
    # One limit at a time: on a slow machine a first token is late, too.
    rig.door.limits = DoorLimits(first_byte_s=0.05, between_bytes_s=PATIENT_S, check_every_s=0.02)
    answer = await rig.ask()
    assert (answer.status, answer.headers["x-standby-engine-error"]) == (502, "timeout")
    rig.door.limits = DoorLimits(first_byte_s=PATIENT_S, between_bytes_s=0.05, check_every_s=0.02)
    streamed = await rig.ask(path="/stream")
    assert streamed.trailers == {"x-standby-engine-error": "timeout"}
    assert b"sent nothing for 0.05 s" in streamed.body
    assert rig.in_flight == 0


@pytest.mark.parametrize("rig", [DoorLimits(gateway_s=0.05, check_every_s=0.02)], indirect=True)
async def test_gateway_that_never_sends_its_body_loses_the_slot(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(b"POST / HTTP/1.1\r\n")
    for name, value in rig.headers(content_length="10").items():
        client.writer.write(f"{name}: {value}\r\n".encode())
    client.writer.write(b"\r\nhalf")
    await client.answer()
    assert rig.in_flight == 0
    assert rig.door.load(INSTANCE).last_end is not None
    await client.close()


async def test_answer_before_the_body_was_sent_is_passed_on(rig: Rig, socket_path: Path) -> None:
    """An engine that answers early is not used again; the rest of the body is thrown away and the gateway stays connected."""

    async def early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\nno")
        await reader.read()
        writer.close()

    server = await asyncio.start_unix_server(early, str(socket_path.with_name("early.sock")))
    rig.door.open("i-2", epoch=1, slots=1, address=socket_path.with_name("early.sock"))
    client = await rig.connect()
    headers = rig.headers(x_standby_instance="i-2", x_standby_epoch="1", content_length="1000000")
    client.send("POST", "/", headers, b"x" * 600_000, framed=False)
    answer = await client.answer()
    assert (answer.status, answer.body) == (400, b"no")
    assert rig.door.load("i-2").in_flight == 0
    client.writer.write(b"x" * 400_000)
    assert (await client.request("POST", "/", rig.headers(), b"{}")).status == 200
    await client.close()
    server.close()


async def test_stop_does_not_wait_for_a_stalled_gateway(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "FLUSH_LIMIT_S", 0.2)

    async def flood(call: Call) -> None:
        await call.begin_stream("application/octet-stream")
        while not call.gone.is_set():
            await call.chunk(b"x" * 65536)

    rig.engine.handler = flood
    client = await rig.connect(receive_buffer=65536)
    client.send("POST", "/", rig.headers(), b"{}")
    await rig.begun(1)
    await until(lambda: not rig.engine.calls[0].writable.is_set())
    async with asyncio.timeout(LIMIT_S):
        await rig.door.stop()
    assert not rig.door.connections
    client.abort()


@pytest.mark.parametrize("framing", ["content-length: 2\r\n\r\n{}", "transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"])
async def test_a_second_answer_behind_the_first_reaches_nobody(rig: Rig, framing: str) -> None:
    """An engine that answers twice must not write into a connection on which other tenants' answers travel."""

    async def twice(call: Call) -> None:
        evil = b"HTTP/1.1 200 OK\r\ncontent-length: 46\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil....."
        await call.write(f"HTTP/1.1 200 OK\r\n{framing}".encode() + evil)

    rig.engine.handler = twice
    client = await rig.connect()
    for _ in range(2):
        client.send("POST", "/v1/completions", rig.headers(), b"{}")
        answer = await client.answer()
        assert (answer.status, answer.complete, answer.body) == (200, True, b"{}")
    await client.close()
    await rig.idle()


@pytest.mark.parametrize("rig", [DoorLimits(head_s=1.0)], indirect=True)
async def test_a_connection_that_shows_no_token_is_closed_and_an_idle_one_is_kept(rig: Rig) -> None:
    idle = await rig.connect()
    assert (await idle.request("POST", "/v1/completions", rig.headers(), b"{}")).status == 200
    silent, halting = await rig.connect(), await rig.connect()
    halting.writer.write(b"POST / HT")
    for client in (silent, halting):
        assert not (await client.answer()).complete
    assert (await idle.request("POST", "/v1/completions", rig.headers(), b"{}")).status == 200
    for client in (idle, silent, halting):
        await client.close()
