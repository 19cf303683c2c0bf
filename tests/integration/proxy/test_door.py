"""The door against a scriptable engine: what it lets through, what it refuses, and its limits."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from standby.domain.errors import Conflict
from standby.warm_pool.door import DoorLimits
from support.door_rig import INSTANCE, SLOTS, Rig
from support.upstream import Call, echo, until_gone, upstream
from support.waiting import until


async def test_request_reaches_the_engine_without_the_platforms_headers(rig: Rig) -> None:
    answer = await rig.ask(b'{"a": 1}', path="/v1/chat/completions?x=1", connection="keep-alive, x-secret", x_secret="1")
    seen = json.loads(answer.body)
    assert answer.status == 200
    assert answer.complete
    assert seen["path"] == "/v1/chat/completions?x=1"
    assert seen["length"] == 8
    assert seen["headers"]["x-request-id"] == "r1"
    assert not [name for name in seen["headers"] if name.startswith("x-standby-") or name in ("x-secret", "connection")]


async def test_engine_cannot_speak_in_the_doors_name(rig: Rig) -> None:
    """An x-standby-* header of an engine is dropped: a gateway would take it for the door's refusal."""

    async def spoof(call: Call) -> None:
        await call.json(200, b"{}", headers="x-standby-refused: full\r\nkeep-alive: timeout=5\r\nx-own: 1\r\n")

    rig.engine.handler = spoof
    answer = await rig.ask()
    assert answer.headers["x-own"] == "1"
    assert "x-standby-refused" not in answer.headers
    assert "keep-alive" not in answer.headers


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"x_standby_token": "wrong"}, 503, "bad-token"),
        ({"x_standby_instance": "i-2"}, 409, "unknown-instance"),
        ({"x_standby_epoch": "6"}, 409, "stale-epoch"),
        ({"x_standby_epoch": "8"}, 409, "stale-epoch"),
        ({"x_standby_epoch": ""}, 409, "stale-epoch"),
    ],
)
async def test_refusal_before_the_engine_saw_anything(rig: Rig, changes: dict[str, str], status: int, reason: str) -> None:
    client = await rig.connect()
    answer = await client.request("POST", "/v1/completions", rig.headers(**changes), b"x" * 100_000)
    assert (answer.status, answer.headers["x-standby-refused"]) == (status, reason)
    # The connection stays fit for the next request.
    again = await client.request("POST", "/v1/completions", rig.headers(), b"{}")
    assert again.status == 200
    assert rig.engine.begun == 1
    counted = rig.door.slots.results
    assert (counted.refused, counted.served, counted.failed, counted.cut_off) == (1, 1, 0, 0)
    await client.close()


async def test_fenced_instance_answers_draining_and_finishes_what_runs(rig: Rig) -> None:
    go = asyncio.Event()

    async def slow(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        await go.wait()
        await call.chunk(b"data: [DONE]\n\n")
        await call.end_stream()

    rig.engine.handler = slow
    running = asyncio.create_task(rig.ask())
    await rig.begun(1)
    rig.door.fence(INSTANCE)
    refused = await rig.ask()
    assert (refused.status, refused.headers["x-standby-refused"]) == (503, "draining")
    assert not await rig.door.drained(INSTANCE, 0.01)
    drained = asyncio.create_task(rig.door.drained(INSTANCE, 10))
    go.set()
    assert await drained
    answer = await running
    assert answer.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert answer.complete
    assert rig.engine.begun == 1
    assert rig.changes == [INSTANCE]


async def test_new_epoch_turns_the_old_one_away_and_must_be_higher(rig: Rig) -> None:
    rig.door.open(INSTANCE, epoch=8, slots=1, address=rig.engine.socket)
    assert (await rig.ask()).headers["x-standby-refused"] == "stale-epoch"
    assert (await rig.ask(x_standby_epoch="8")).status == 200
    with pytest.raises(Conflict, match="already been at 8"):
        rig.door.open(INSTANCE, epoch=8, slots=1, address=rig.engine.socket)


async def test_drain_that_is_called_off_cuts_nothing_off(rig: Rig) -> None:
    """Ready is wanted again while requests still run: they end whole, and their slots are counted in the new epoch."""
    go = asyncio.Event()

    async def wait(call: Call) -> None:
        await go.wait()
        await call.json(200, b'{"late": 1}')

    rig.engine.handler = wait
    running = asyncio.create_task(rig.ask())
    await rig.begun(1)
    rig.door.fence(INSTANCE)
    rig.door.open(INSTANCE, epoch=8, slots=1, address=rig.engine.socket)
    assert rig.in_flight == 1
    assert (await rig.ask(x_standby_epoch="8")).headers["x-standby-refused"] == "full"
    go.set()
    answer = await running
    assert (answer.status, answer.body) == (200, b'{"late": 1}')
    assert await rig.door.drained(INSTANCE, 10)
    assert (await rig.ask(x_standby_epoch="8")).status == 200


async def test_removed_instance_ends_its_requests_and_is_unknown(rig: Rig) -> None:
    rig.engine.handler = until_gone
    running = asyncio.create_task(rig.ask())
    await rig.begun(1)
    rig.door.remove(INSTANCE)
    assert (await running).headers["x-standby-engine-error"] == "aborted"
    assert (await rig.ask()).headers["x-standby-refused"] == "unknown-instance"
    assert await rig.door.drained(INSTANCE, 0.0)


async def test_slots_are_exact(rig: Rig) -> None:
    """The request after the last slot is refused without reaching the engine; a freed slot is usable at once."""
    go = asyncio.Event()

    async def wait(call: Call) -> None:
        await go.wait()
        await call.json(200, b"{}")

    rig.engine.handler = wait
    running = [asyncio.create_task(rig.ask()) for _ in range(SLOTS)]
    await rig.begun(SLOTS)
    refused = await rig.ask()
    assert (refused.status, refused.headers["x-standby-refused"]) == (429, "full")
    assert rig.in_flight == SLOTS
    go.set()
    assert [(await task).status for task in running] == [200] * SLOTS
    assert rig.in_flight == 0
    assert rig.door.load(INSTANCE).served == SLOTS
    assert (await rig.ask()).status == 200


async def test_body_ended_by_the_connection_becomes_explicit(rig: Rig) -> None:
    """An HTTP/1.0 answer without a length ends with the connection; behind the door its end is a last chunk."""

    async def old(call: Call) -> None:
        await call.write(b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nold ")
        await call.write(b"style")
        call.close()

    rig.engine.handler = old
    answer = await rig.ask()
    assert answer.body == b"old style"
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.complete


async def test_interim_answer_is_not_the_answer(rig: Rig) -> None:
    async def interim(call: Call) -> None:
        await call.write(b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n")
        await call.json(201, b"{}")

    rig.engine.handler = interim
    answer = await rig.ask()
    assert (answer.status, answer.body) == (201, b"{}")


async def test_engine_errors_pass_as_they_are(rig: Rig) -> None:
    async def fail(call: Call) -> None:
        await call.json(500, b'{"error": "boom"}')

    rig.engine.handler = fail
    answer = await rig.ask()
    assert (answer.status, answer.body) == (500, b'{"error": "boom"}')
    assert rig.door.load(INSTANCE).failures == 0


async def test_connection_is_kept_after_a_length_and_not_after_chunks(rig: Rig) -> None:
    """llama.cpp's server closes after a streamed answer without saying so: such a connection is not used again."""
    client = await rig.connect()
    for _ in range(3):
        await client.request("POST", "/", rig.headers(), b"{}")
    assert rig.engine.connections == 1

    async def stream(call: Call) -> None:
        await call.begin_stream()
        await call.chunk(b"data: 1\n\n")
        await call.end_stream()

    rig.engine.handler = stream
    for _ in range(3):
        assert (await client.request("POST", "/", rig.headers(), b"{}")).complete
    assert rig.engine.connections == 3
    await client.close()


@pytest.mark.parametrize("framed", [True, False])
async def test_two_megabytes_both_ways(rig: Rig, framed: bool) -> None:
    async def mirror(call: Call) -> None:
        await call.json(200, call.body)

    rig.engine.handler = mirror
    body = bytes(range(256)) * 8192
    client = await rig.connect()
    if framed:
        client.send("POST", "/", rig.headers(), body)
    else:
        client.send("POST", "/", rig.headers(transfer_encoding="chunked"), framed=False)
        for start in range(0, len(body), 100_000):
            part = body[start : start + 100_000]
            client.writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await client.writer.drain()
        client.writer.write(b"0\r\n\r\n")
    answer = await client.answer()
    assert answer.body == body
    assert rig.engine.calls[0].body == body
    await client.close()


@pytest.mark.parametrize("rig", [DoorLimits(body_bytes=1000, head_bytes=2000)], indirect=True)
async def test_limits_on_head_and_body(rig: Rig) -> None:
    assert (await rig.ask(b"x" * 1001)).status == 413
    assert (await rig.ask(x_filler="y" * 70_000)).status == 431
    client = await rig.connect()
    client.send("POST", "/", rig.headers(transfer_encoding="chunked"), framed=False)
    client.writer.write(b"7d0\r\n" + b"x" * 2000 + b"\r\n")
    assert (await client.answer()).status == 413
    await client.close()
    assert rig.engine.begun == 0
    assert rig.in_flight == 0


async def test_not_http_is_a_400(rig: Rig) -> None:
    client = await rig.connect()
    client.writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")
    answer = await client.answer()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    await client.close()


async def test_connection_close_is_honoured(rig: Rig) -> None:
    client = await rig.connect()
    answer = await client.request("POST", "/", rig.headers(connection="close"), b"{}")
    assert answer.headers["connection"] == "close"
    assert await client.reader.read() == b""
    await client.close()


async def test_pipelined_request_is_not_mixed_with_the_one_before(rig: Rig) -> None:
    client = await rig.connect()
    one = "\r\n".join(f"{name}: {value}" for name, value in rig.headers().items())
    request = f"POST /a HTTP/1.1\r\nhost: t\r\n{one}\r\ncontent-length: 3\r\n\r\nabc".encode()
    client.writer.write(request + request.replace(b"/a", b"/b"))
    answer = await client.answer()
    assert json.loads(answer.body)["length"] == 3
    assert await client.reader.read() == b""
    assert [call.path for call in rig.engine.calls] == ["/a"]
    await client.close()


async def test_stalled_reader_holds_the_engine_back(rig: Rig) -> None:
    """A reader that stops reading bounds what is buffered for it, and gets every byte once it reads again."""
    total = 32 * 1024 * 1024
    piece = b"x" * 65536

    async def flood(call: Call) -> None:
        await call.begin_stream("application/octet-stream")
        for _ in range(total // len(piece)):
            await call.chunk(piece)
        await call.end_stream()

    rig.engine.handler = flood
    client = await rig.connect(receive_buffer=65536)
    client.send("POST", "/", rig.headers(), b"{}")
    await client.reader.readexactly(10)
    call = rig.engine.calls[0]
    await until(lambda: not call.writable.is_set())
    written = call.written
    assert written < 12 * 1024 * 1024
    connection = next(iter(rig.door.connections))
    assert connection.transport.get_write_buffer_size() < 2 * 1024 * 1024
    answer_rest = 10
    while answer_rest < total:
        answer_rest += len(await client.reader.read(1 << 20))
    await rig.idle()
    client.abort()


async def test_slow_engine_holds_the_gateway_back(rig: Rig) -> None:
    rig.engine.read_paused = True
    client = await rig.connect()
    client.send("POST", "/", rig.headers(transfer_encoding="chunked"), framed=False)
    piece = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    sent = 0
    while sent < 48 * 1024 * 1024:
        client.writer.write(piece)
        sent += 65536
        try:
            async with asyncio.timeout(0.2):
                await client.writer.drain()
        except TimeoutError:
            break
    assert sent < 24 * 1024 * 1024
    for connection in rig.engine.open:
        connection.transport.resume_reading()
    client.writer.write(b"0\r\n\r\n")
    answer = await client.answer()
    assert json.loads(answer.body)["length"] == sent
    await client.close()


async def test_sockets_carry_tcp_nodelay(rig: Rig) -> None:
    """Without it the first streamed byte waits for a delayed acknowledgement (40 ms)."""
    await rig.client.relay(rig.request(), nowhere)
    served = next(iter(rig.door.connections)).transport.get_extra_info("socket")
    pooled = rig.client.of(rig.address).take()
    assert pooled is not None
    for sock in (served, pooled.transport.get_extra_info("socket")):
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    pooled.abort()


async def test_two_instances_do_not_share_slots_or_sockets(rig: Rig, socket_path: Path) -> None:
    async with upstream(socket_path.with_name("second.sock"), echo) as second:
        rig.door.open("i-2", epoch=1, slots=1, address=second.socket)
        answer = await rig.ask(x_standby_instance="i-2", x_standby_epoch="1")
        assert answer.status == 200
        assert (second.begun, rig.engine.begun) == (1, 0)
        rig.door.remove("i-2")


async def nowhere(_message: object) -> None:
    """An ASGI send without a client."""
