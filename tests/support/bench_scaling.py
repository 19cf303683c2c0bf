"""Scale-in over and over: a nats-server whose tables tell of instances that come and go, and the door that they are behind.

``python bench_scaling.py FOLDER ENGINE_SOCKET TOKEN INSTANCES SLOTS SEED``; prints the gateway's NATS settings as one line of
JSON, begins when it gets SIGUSR1, and when it gets SIGTERM prints how many drains there were and how many requests had to
be cut off in them. The order of each is the agent's: fence the door, say so, wait for what runs, forget the instance; later
another one is ready. At least one instance stays.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from standby.bus.connection import Bus
from standby.bus.embedded import EmbeddedNats
from standby.bus.tables_set import Tables, open_tables
from standby.domain.endpoint import ScalePolicy
from standby.domain.instance import InstanceState
from standby.domain.names import key
from standby.host import tasks
from standby.host.collector import calm_collector
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.door import Door
from support.builders import a_config, a_model, an_endpoint, an_instance

DRAIN_LIMIT_S: Final = 20.0
AWAY_S: Final = (0.02, 0.1)
HERE_S: Final = (0.02, 0.15)


@dataclass
class Scaling:
    """The instances of one endpoint ``e``, served as ``m``."""

    door: Door
    announcer: Announcer
    port: int
    engine: Path
    slots: int
    choose: random.Random
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    drains: int = 0
    cut: int = 0
    _epochs: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def live(self, number: int) -> None:
        """Come, stay for a while, be drained, and come again as another one, until cancelled."""
        for generation in itertools.count():
            name, epoch = f"e-{number}-{generation}", next(self._epochs)
            self.door.open(name, epoch=epoch, slots=self.slots, address=self.engine)
            self._say(name, epoch, InstanceState.READY)
            await self.begun.wait()
            if number == 0:
                await asyncio.Event().wait()
            await asyncio.sleep(self.choose.uniform(*HERE_S))
            await self._drain(name, epoch)
            await asyncio.sleep(self.choose.uniform(*AWAY_S))

    async def _drain(self, name: str, epoch: int) -> None:
        self.door.fence(name)
        self._say(name, epoch, InstanceState.DRAINING)
        if not await self.door.drained(name, DRAIN_LIMIT_S):
            self.cut += self.door.abort(name, "the drain limit is over")
        self.door.remove(name)
        self.announcer.gone("n1", name)
        self.drains += 1

    def _say(self, name: str, epoch: int, state: InstanceState) -> None:
        told = an_instance(
            id=name, node="n1", epoch=epoch, slots=self.slots, door=f"127.0.0.1:{self.port}", served_name="m", state=state
        )
        self.announcer.instance(told)


async def _fill(tables: Tables, slots: int) -> None:
    model, config = a_model(), a_config(ScalePolicy(slots=slots))
    endpoint = an_endpoint(served_name="m", config=config.name)
    await tables.models.put(key(model.tenant, model.name), model)
    await tables.endpoint_configs.put(key(config.tenant, config.name), config)
    await tables.endpoints.put(key(endpoint.tenant, endpoint.name), endpoint)


async def _serve(folder: str, engine: str, token: str, instances: str, slots: str, seed: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with AsyncExitStack() as cleanup:
        nats = EmbeddedNats(Path(folder))
        cleanup.push_async_callback(nats.stop)
        await nats.start()
        bus = await Bus.connect(nats.settings(), name="node/n1")
        cleanup.push_async_callback(bus.close)
        tables = await open_tables(bus)
        await _fill(tables, int(slots))
        door = Door(token=token, on_change=lambda _: None)
        cleanup.push_async_callback(door.stop)
        _, port = await door.start("127.0.0.1", 0)
        announcer = Announcer(tables)
        scaling = Scaling(door, announcer, port, Path(engine), int(slots), random.Random(seed))
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, scaling.begun.set)
        works = [asyncio.create_task(announcer.run())]
        works += [asyncio.create_task(scaling.live(number)) for number in range(int(instances))]
        cleanup.push_async_callback(tasks.end, works)
        calm_collector()  # as the node agent does
        settings = {"STANDBY_NATS_URL": nats.url, "STANDBY_NATS_USER": nats.user}
        print(json.dumps({**settings, "STANDBY_NATS_PASSWORD": nats.password.get_secret_value()}), flush=True)
        await stop.wait()
        print(json.dumps({"drains": scaling.drains, "cut": scaling.cut}), flush=True)


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
