"""What the agent does for one instance, with a scripted engine: order, and that nothing is given back too early."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from standby.domain.errors import EngineStartFailed
from standby.domain.instance import InstanceState, Rung
from standby.runtime.engines.base import Capabilities, EngineAdapter, EngineHandle
from standby.runtime.lifecycle_values import Targeted
from standby.warm_pool.agent import Agent
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.door import Door
from standby.warm_pool.effects import Effects
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.warming import Warmed
from support.builders import an_assignment


class ScriptedEngine:
    """An adapter whose engine does not load, and whose end takes as long as the test says."""

    capabilities = Capabilities(sleep=True)

    def __init__(self) -> None:
        self.log: list[str] = []
        self.may_end = asyncio.Event()

    def estimate_bytes(self, *_arguments: Any) -> int:
        return 60

    async def start(self, _spec: Any) -> EngineHandle:
        self.log.append("start")
        exited: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        return cast("EngineHandle", SimpleNamespace(exited=exited, socket=Path("engine.sock"), pid=1))

    async def wait_loaded(self, _handle: EngineHandle, _deadline_s: float) -> None:
        raise EngineStartFailed("it did not load")

    async def stop(self, _handle: EngineHandle, _grace_s: float) -> None:
        self.log.append("stop")
        await self.may_end.wait()
        self.log.append("ended")


class Rig:
    """An agent over a scripted engine and a cache that has everything."""

    def __init__(self, capacity: int) -> None:
        self.engine = ScriptedEngine()
        self.now = 100.0
        self.agent = Agent(
            node="n1",
            door="127.0.0.1:1",
            first_epoch=1,
            announcer=cast("Any", SimpleNamespace(instance=lambda _record: None, gone=lambda *_names: None)),
            events=cast("Any", None),
            adapter_for=lambda _assignment: cast("EngineAdapter", self.engine),
            monotonic=lambda: self.now,
            wall=lambda: self.now,
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
        for _ in range(20):
            await asyncio.sleep(0)

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


async def test_memory_and_the_next_start_wait_for_the_end_of_the_failed_engine() -> None:
    """An engine that does not load and does not end either holds its memory until its whole group is gone."""
    rig = Rig(capacity=100)
    running = asyncio.create_task(rig.agent.run())
    rig.agent.assignment_changed("n1.a", None, cast("Any", SimpleNamespace(value=an_assignment(instance="a"))))
    await rig.turn()
    assert (rig.state("a"), rig.engine.log) == (InstanceState.FAILED, ["start", "stop"])
    assert rig.memory.ledger.claims == {"a": 60}

    retry = rig.agent.instances["a"].retry
    assert retry is not None
    rig.now += 2
    retry._run()  # the clock stands still, so the timer is fired by hand
    await rig.turn()
    assert rig.engine.log == ["start", "stop"], "the second start waits"

    rig.engine.may_end.set()
    await rig.turn()
    assert rig.engine.log[:4] == ["start", "stop", "ended", "start"]
    running.cancel()


async def test_an_instance_is_forgotten_only_when_its_engine_is_gone() -> None:
    rig = Rig(capacity=100)
    running = asyncio.create_task(rig.agent.run())
    rig.agent.assignment_changed("n1.a", None, cast("Any", SimpleNamespace(value=an_assignment(instance="a"))))
    await rig.turn()
    rig.agent.assignment_changed("n1.a", None, None)
    await rig.turn()
    assert "a" in rig.agent.instances
    rig.engine.may_end.set()
    await rig.turn()
    assert (rig.agent.instances, dict(rig.memory.ledger.claims)) == ({}, {})
    running.cancel()


async def test_a_climb_pushes_out_a_sleeper_and_waits_for_its_memory() -> None:
    rig = Rig(capacity=100)
    sleeper = rig.agent._adopt(an_assignment(instance="sleeper", rung=Rung.ASLEEP))
    sleeper.life = sleeper.life.__class__(state=InstanceState.ASLEEP, target=Rung.ASLEEP)
    rig.memory.hold(sleeper, 50)
    climber = rig.agent._adopt(an_assignment(instance="climber"))
    rig.memory.reserve(climber)
    assert climber.wants_memory == 60
    queued = [rig.agent._inbox.get_nowait() for _ in range(rig.agent._inbox.qsize())]
    assert [(item.instance, cast("Any", item).event) for item in queued] == [("sleeper", Targeted(Rung.STAGED, 0))]
    rig.memory.release(sleeper)
    assert dict(rig.memory.ledger.claims) == {"climber": 60}
    assert rig.agent._inbox.get_nowait() is not None
