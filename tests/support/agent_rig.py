"""An agent over a scripted engine, for tests of what it does in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from standby.domain.errors import EngineStartFailed
from standby.domain.instance import Instance, InstanceState
from standby.runtime.devices.cores import CoreBook
from standby.runtime.devices.inventory import Devices
from standby.runtime.engines.base import Capabilities, EngineAdapter, EngineHandle
from standby.runtime.isolation import Isolation
from standby.runtime.isolation_policy import DeviceSharing
from standby.warm_pool.agent import Agent
from standby.warm_pool.berths import Berths
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.door import Door
from standby.warm_pool.effects import Effects
from standby.warm_pool.engine_work import EngineWork
from standby.warm_pool.health_watch import HealthWatch
from standby.warm_pool.keepsakes import Keepsakes
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.meter import Meter
from standby.warm_pool.price_keeper import PriceKeeper
from standby.warm_pool.tree_watch import TreeWatch
from standby.warm_pool.warming import Warmed
from standby.warm_pool.zygotes import ZygotePool

_NOBODY = 2**30
"""A number that no process has."""


class ScriptedEngine:
    """An adapter whose engine does not load, and whose end takes as long as the test says."""

    capabilities = Capabilities(sleep=True)

    def __init__(self) -> None:
        self.log: list[str] = []
        self.loads = False
        self.may_end = asyncio.Event()

    def prioritised(self, options: Any) -> bool:
        return bool(options.get("priority"))

    def estimate_bytes(self, *_arguments: Any) -> int:
        return 60

    async def start(self, _spec: Any) -> EngineHandle:
        self.log.append("start")
        exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        process = SimpleNamespace(mark="no such mark", status=None)
        handle = SimpleNamespace(
            exited=exited, address=Path("engine.sock"), pid=_NOBODY, process=process, log=Path("no.log"), forked=False
        )
        return cast("EngineHandle", handle)

    async def wait_loaded(self, _handle: EngineHandle, _deadline_s: float) -> None:
        if not self.loads:
            raise EngineStartFailed("it did not load")

    async def probe(self, _handle: EngineHandle, _deadline_s: float) -> None: ...

    async def resume(self, _handle: EngineHandle) -> None: ...

    async def stop(self, _handle: EngineHandle, _grace_s: float) -> None:
        self.log.append("stop")
        await self.may_end.wait()
        self.log.append("ended")


class Rig:
    """An agent over a scripted engine and a cache that has everything."""

    def __init__(self, capacity: int) -> None:
        self.engine = ScriptedEngine()
        self.now = 100.0
        self.drift = 0.0
        self.told: list[Instance] = []
        self.keeper = PriceKeeper("n1", Path("state"), lambda: self.now, lambda _record: None)
        self.agent = Agent(
            node="n1",
            door="127.0.0.1:1",
            first_epoch=1,
            announcer=cast("Any", SimpleNamespace(instance=self.told.append, gone=lambda *_names: None)),
            events=cast("Any", None),
            keeper=self.keeper,
            adapter_for=lambda _assignment: cast("EngineAdapter", self.engine),
            monotonic=lambda: self.now,
            wall=lambda: self.now + self.drift,
        )
        self.memory = MemoryDesk(
            Ledger(capacity), self.agent.instances, lambda: self.keeper.book, self.agent.post, lambda: self.now
        )
        self.agent.meter = Meter(self.memory, told=lambda _managed: None)
        cache = cast("ArtifactCache", _Cache())
        door = Door(token="t", on_change=lambda _instance: None)
        self.agent.effects = Effects(
            post=self.agent.post,
            forgotten=self.agent.forgotten,
            progressed=self.agent.progressed,
            cache=cache,
            door=door,
            memory=self.memory,
            engines=self._engines(cache, door),
            wall=lambda: self.now,
        )

    def _engines(self, cache: ArtifactCache, door: Door) -> EngineWork:
        berths = Berths(
            devices=Devices(None, on_cordon=lambda _device, _reason: None, host=lambda: ()),
            cores=CoreBook([], 0),
            isolation=Isolation.open("rig", wanted=False),
            sharing=DeviceSharing.SHARED,
            instances=self.agent.instances,
            ledger=lambda: self.memory.ledger,
        )
        engines = EngineWork(
            post=self.agent.post,
            cache=cache,
            memory=self.memory,
            berths=berths,
            keepsakes=cast("Keepsakes", _NoKeepsakes()),
            zygotes=ZygotePool((), cast("Any", None), installed_version=lambda _kind: ""),
            health=HealthWatch(engines=lambda: (), load=door.load, sick=self.agent.sick, clock=lambda: self.now),
            run_dir=Path("run"),
            log_dir=Path("logs"),
            wall=lambda: self.now,
            stop_grace_s=1,
            probe_limit_s=1,
        )
        engines.trees = cast("TreeWatch", _NoTrees())
        return engines

    async def turn(self) -> None:
        for _ in range(120):
            await asyncio.sleep(0)

    @property
    def said(self) -> dict[str, Instance]:
        """The newest record of each instance."""
        return {record.id: record for record in self.told}

    def state(self, instance: str) -> InstanceState:
        return self.agent.instances[instance].life.state


class _NoKeepsakes:
    """Every engine that loads is a good one."""

    async def prepare(self, _managed: Managed) -> None: ...

    async def check(self, managed: Managed, handle: EngineHandle, limit_s: float, **_options: Any) -> None:
        await managed.adapter.probe(handle, limit_s)

    def proven(self, _managed: Managed) -> None: ...

    def ended(self, _managed: Managed, *, broke: bool) -> None: ...


class _NoTrees:
    """A scripted engine has no processes to watch."""

    def follow(self, _instance: str, _handle: EngineHandle) -> None: ...

    def loaded(self, _instance: str) -> None: ...

    def forget(self, _instance: str) -> None: ...


class _Cache:
    async def ensure(self, *_arguments: Any, **_options: Any) -> Path:
        return Path("artifact")

    async def warm(self, _digest: str) -> Warmed:
        return Warmed(0)

    async def chill(self, _digest: str) -> None: ...

    def locate(self, _digest: str) -> Path:
        return Path("artifact")

    def pin(self, _digest: str, _user: str) -> None: ...

    def unpin(self, _digest: str, _user: str) -> None: ...
