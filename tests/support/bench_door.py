"""A door for benchmarks: ``python bench_door.py ENGINE_SOCKET TOKEN INSTANCE EPOCH SLOTS``; prints its port.

Traces as a node does, where the environment names a collector.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import uvloop

from standby.host.collector import calm_collector
from standby.telemetry.tracing import Place, open_tracing
from standby.telemetry.tracing_settings import TracingSettings
from standby.warm_pool.door import Door
from standby.warm_pool.door_spans import DoorTraces


async def _serve(socket: str, token: str, instance: str, epoch: str, slots: str) -> None:
    door = Door(token=token, on_change=lambda _: None)
    tracing = open_tracing(TracingSettings.load(), Place("standby-node", "bench"))
    if tracing is not None:
        door.traces = DoorTraces(tracing, "bench", time.monotonic, time.time)
    _, port = await door.start("127.0.0.1", 0)
    door.open(instance, epoch=int(epoch), slots=int(slots), address=Path(socket))
    calm_collector()  # as the node agent does
    print(port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
