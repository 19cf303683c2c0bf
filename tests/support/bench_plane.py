"""A control plane for benchmarks: a nats-server whose tables say that one instance is ready behind a door.

``python bench_plane.py FOLDER DOOR_PORT INSTANCE EPOCH SLOTS``; prints the gateway's NATS settings as one line of JSON and
serves until terminated.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

from standby.bus.connection import Bus
from standby.bus.embedded import EmbeddedNats
from standby.bus.tables_set import open_tables
from standby.domain.endpoint import ScalePolicy
from standby.domain.names import key
from support.builders import a_config, a_model, an_endpoint, an_instance


async def _fill(bus: Bus, door_port: str, instance: str, epoch: str, slots: str) -> None:
    tables = await open_tables(bus)
    model, config = a_model(), a_config(ScalePolicy(slots=int(slots)))
    endpoint = an_endpoint(served_name="m", config=config.name)
    ready = an_instance(
        id=instance, epoch=int(epoch), slots=int(slots), door=f"127.0.0.1:{door_port}", served_name="m", endpoint=endpoint.name
    )
    await tables.models.put(key(model.tenant, model.name), model)
    await tables.endpoint_configs.put(key(config.tenant, config.name), config)
    await tables.endpoints.put(key(endpoint.tenant, endpoint.name), endpoint)
    await tables.instances.put(key(ready.node, ready.id), ready)


async def _serve(folder: str, *instance: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    nats = EmbeddedNats(Path(folder))
    await nats.start()
    try:
        bus = await Bus.connect(nats.settings(), name="bench")
        await _fill(bus, *instance)
        await bus.close()
        environment = {
            "STANDBY_NATS_URL": nats.url,
            "STANDBY_NATS_USER": nats.user,
            "STANDBY_NATS_PASSWORD": nats.password.get_secret_value(),
        }
        print(json.dumps(environment), flush=True)
        await stop.wait()
    finally:
        await nats.stop()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
