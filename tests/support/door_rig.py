"""A door on a real TCP port before a scriptable engine on a real unix socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

from standby.gateway.relay import DoorClient, RelayRequest
from standby.warm_pool.door import Door, DoorLimits
from support.raw_http import RawAnswer, RawClient
from support.upstream import Upstream, echo, upstream
from support.waiting import until

TOKEN = "node-token"
INSTANCE = "i-1"
SLOTS = 4


@dataclass
class Rig:
    """A door with one open instance (4 slots, epoch 7) and its engine; ``engine.handler`` may be replaced."""

    door: Door
    engine: Upstream
    address: tuple[str, int]
    client: DoorClient
    changes: list[str] = field(default_factory=list)

    def headers(self, **changes: str) -> dict[str, str]:
        """Return the headers of an admissible request, with some changed (underscores stand for dashes)."""
        headers = {"x-standby-token": TOKEN, "x-standby-instance": INSTANCE, "x-standby-epoch": "7", "x-request-id": "r1"}
        headers.update({name.replace("_", "-"): value for name, value in changes.items()})
        return headers

    async def connect(self, *, receive_buffer: int = 0) -> RawClient:
        return await RawClient.connect(*self.address, receive_buffer=receive_buffer)

    async def ask(self, body: bytes = b"{}", path: str = "/v1/completions", **changes: str) -> RawAnswer:
        """Ask on a connection of its own."""
        client = await self.connect()
        try:
            return await client.request("POST", path, self.headers(**changes), body)
        finally:
            await client.close()

    def request(self, body: bytes = b"{}", **changes: object) -> RelayRequest:
        fields: dict[str, object] = {
            "door": self.address,
            "instance": INSTANCE,
            "epoch": 7,
            "token": TOKEN,
            "path": "/v1/completions",
            "headers": [(b"content-type", b"application/json")],
            "body": body,
            "request_id": "r1",
        }
        return RelayRequest(**(fields | changes))  # type: ignore[arg-type] # fields as above

    @property
    def in_flight(self) -> int:
        return self.door.load(INSTANCE).in_flight

    async def begun(self, count: int) -> None:
        """Wait until the engine has got this many whole requests."""
        await until(lambda: len(self.engine.calls) >= count)

    async def idle(self) -> None:
        """Wait until nothing is in flight."""
        assert await self.door.drained(INSTANCE, 30.0)


@contextlib.asynccontextmanager
async def door_rig(socket: Path, limits: DoorLimits | None = None) -> AsyncIterator[Rig]:
    """Start the engine stand-in, a door with one open instance, and a gateway's client."""
    changes: list[str] = []
    async with upstream(socket, echo) as engine:
        door = Door(token=TOKEN, on_change=changes.append, limits=limits)
        address = await door.start("127.0.0.1", 0)
        door.open(INSTANCE, epoch=7, slots=SLOTS, address=socket)
        client = DoorClient()
        try:
            yield Rig(door, engine, address, client, changes)
        finally:
            await client.close()
            await door.stop()
