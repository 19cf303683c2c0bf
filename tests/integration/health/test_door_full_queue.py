"""An engine whose queue of connections is full is busy, not gone: a unix socket tells EAGAIN at once."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from standby.host import tasks
from standby.warm_pool.door import Door
from support.fake_engine_spec import short_dir
from support.raw_http import RawClient
from support.waiting import until

HEADERS = {"x-standby-token": "t", "x-standby-instance": "i", "x-standby-epoch": "1", "x-request-id": "r"}
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def _ask(address: tuple[str, int]) -> int:
    client = await RawClient.connect(*address)
    try:
        return (await client.request("POST", "/v1/completions", HEADERS, b"{}")).status
    finally:
        await client.close()


def _serve(listener: socket.socket, count: int) -> None:
    for _ in range(count):
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(ANSWER)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(1)
    return listener


async def test_requests_wait_for_a_place_in_the_queue() -> None:
    """Twelve requests at once, a queue of one, and an engine that begins to accept only later."""
    with short_dir() as folder, _listen(folder / "s") as listener:
        door = Door(token="t", on_change=lambda instance: None)
        address = await door.start("127.0.0.1", 0)
        door.open("i", epoch=1, slots=20, address=folder / "s")
        asking = [asyncio.create_task(_ask(address)) for _ in range(12)]
        try:
            await until(lambda: door.load("i").in_flight == 12)
            await asyncio.sleep(0.05)
            assert door.load("i").in_flight == 12
            await asyncio.to_thread(_serve, listener, 12)
            assert {await answer for answer in asking} == {200}
            assert (door.load("i").failures, door.load("i").refused) == (0, 0)
        finally:
            await tasks.end(asking)
            await door.stop()
