"""A door for benchmarks: ``python bench_door.py ENGINE_SOCKET TOKEN INSTANCE EPOCH SLOTS``; prints its port."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import uvloop

from standby.host.collector import calm_collector
from standby.warm_pool.door import Door


async def _serve(socket: str, token: str, instance: str, epoch: str, slots: str) -> None:
    door = Door(token=token, on_change=lambda _: None)
    _, port = await door.start("127.0.0.1", 0)
    door.open(instance, epoch=int(epoch), slots=int(slots), address=Path(socket))
    calm_collector()  # as the node agent does
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
