"""The relay behind uvicorn without anything else.

``python bench_gateway.py DOOR_PORT TOKEN INSTANCE EPOCH``; prints its port and serves until terminated.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

from standby.gateway.relay import DoorClient, OutcomeKind, RelayRequest

Message = MutableMapping[str, Any]


class RelayApp:
    """A bare ASGI callable: reads the body, makes one attempt."""

    def __init__(self, door: tuple[str, int], token: str, instance: str, epoch: int) -> None:
        self.door = door
        self.token = token
        self.instance = instance
        self.epoch = epoch
        self.client = DoorClient()
        self.count = 0

    async def __call__(
        self,
        scope: MutableMapping[str, Any],
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        self.count += 1
        request = RelayRequest(
            door=self.door,
            instance=self.instance,
            epoch=self.epoch,
            token=self.token,
            path=scope["path"],
            headers=scope["headers"],
            body=body,
            request_id=f"r{self.count}",
            method=scope["method"],
        )
        outcome = await self.client.relay(request, send, receive=receive)
        if outcome.kind is not OutcomeKind.DONE and outcome.kind is not OutcomeKind.CLIENT_GONE:
            raise RuntimeError(f"{outcome}")


async def _serve(door_port: str, token: str, instance: str, epoch: str) -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    app = RelayApp(("127.0.0.1", int(door_port)), token, instance, int(epoch))
    config = uvicorn.Config(
        app,
        http="httptools",
        lifespan="off",
        access_log=False,
        server_header=False,
        date_header=False,
        log_level="warning",
    )
    print(listener.getsockname()[1], flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    import uvloop

    uvloop.run(_serve(*sys.argv[1:]))
