"""An agent over a scripted engine, for tests of what it does in which order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from standby.domain.errors import EngineStartFailed
from standby.domain.instance import Instance, InstanceState
from standby.runtime.engines.base import Capabilities, EngineAdapter, EngineHandle
from standby.warm_pool.agent import Agent
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.door import Door
from standby.warm_pool.effects import Effects
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.warming import Warmed


class ScriptedEngine:
    """An adapter whose engine does not load, and whose end takes as long as the test says."""

    capabilities = Capabilities(sleep=True)

    def __init__(self) -> None:
        self.log: list[str] = []
        self.loads = False
        self.may_end = asyncio.Event()

    def estimate_bytes(self, *_arguments: Any) -> int:
        return 60

    async def start(self, _spec: Any) -> EngineHandle:
        self.log.append("start")
        exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return cast("EngineHandle", SimpleNamespace(exited=exited, socket=Path("engine.sock"), pid=1))

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
        self.agent = Agent(
            node="n1",
            door="127.0.0.1:1",
            first_epoch=1,
            announcer=cast("Any", SimpleNamespace(instance=self.told.append, gone=lambda *_names: None)),
            events=cast("Any", None),
            adapter_for=lambda _assignment: cast("EngineAdapter", self.engine),
            monotonic=lambda: self.now,
            wall=lambda: self.now + self.drift,
        )
        self.memory = MemoryDesk(
            Ledger(capacity), self.agent.instances, lambda: self.agent.costs, self.agent.post, lambda: self.now
        )
        self.agent.effects = Effects(
            post=self.agent.post,
            forgotten=self.agent.forgotten,
            progressed=self.agent.progressed,
            cache=cast("ArtifactCache", _Cache()),
            door=Door(token="t", on_change=lambda _instance: None),
            memory=self.memory,
            run_dir=Path("run"),
            log_dir=Path("logs"),
            wall=lambda: self.now,
            stop_grace_s=1,
            probe_limit_s=1,
        )

    async def turn(self) -> None:
        for _ in range(60):
            await asyncio.sleep(0)

    @property
    def said(self) -> dict[str, Instance]:
        """The newest record of each instance."""
        return {record.id: record for record in self.told}

    def state(self, instance: str) -> InstanceState:
        return self.agent.instances[instance].life.state


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
