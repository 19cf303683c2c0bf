"""What the agent does when something goes wrong that nobody foresaw: an instance is never left waiting for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.assignment import Assignment
from standby.domain.errors import ConfigurationError, EngineError, InvalidInput
from standby.domain.instance import InstanceState, Rung
from standby.runtime.engines.base import Capabilities
from standby.runtime.lifecycle_values import Lifecycle
from standby.warm_pool import engine_work as work_module
from standby.warm_pool import wiring as node_module
from standby.warm_pool.duty import Duty
from standby.warm_pool.ledger import Claim
from support.agent_rig import Rig
from support.builders import an_assignment

S = InstanceState


@asynccontextmanager
async def running(rig: Rig) -> AsyncIterator[Rig]:
    task = asyncio.create_task(rig.agent.run())
    try:
        yield rig
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for managed in list(rig.agent.instances.values()):
            for left in list(managed.tasks.values()):
                left.cancel()


def order(rig: Rig, assignment: Assignment | None, instance: str = "a") -> None:
    after = None if assignment is None else SimpleNamespace(value=assignment)
    rig.agent.assignment_changed(f"n1.{instance}", None, cast("Any", after))


@pytest.mark.parametrize("broken", ["start", "wait_loaded", "probe", "estimate_bytes"])
async def test_an_unforeseen_error_of_the_engine_is_a_failure_of_the_instance(broken: str) -> None:
    """A full disk or a bug inside an adapter ends in Failed with a retry, not in a climb that never ends."""

    def explode(*_arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    async def explode_later(*_arguments: Any) -> Any:
        explode()

    rig = Rig(capacity=100)
    rig.engine.may_end.set()
    rig.engine.loads = True
    setattr(rig.engine, broken, explode if broken == "estimate_bytes" else explode_later)
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        life = rig.agent.instances["a"].life
        assert life.state is S.FAILED
        assert life.failure is not None
        assert "No space left on device" in life.failure.reason
        assert life.retry_at is not None
        assert dict(rig.memory.ledger.claims) == {}


async def test_an_option_that_this_node_does_not_know_is_a_failure_with_its_own_words() -> None:
    def refuse(*_arguments: Any) -> int:
        raise InvalidInput("option mmap_magic is not known")

    rig = Rig(capacity=100)
    rig.engine.may_end.set()
    rig.engine.estimate_bytes = refuse  # type: ignore[method-assign]
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        failure = rig.agent.instances["a"].life.failure
        assert failure is not None
        assert failure.reason == "option mmap_magic is not known"


async def test_a_failed_fetch_that_nobody_foresaw_is_a_failure_of_the_instance() -> None:
    async def explode(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(5, "Input/output error")

    rig = Rig(capacity=100)
    rig.agent.effects.cache.ensure = explode  # type: ignore[method-assign]
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        assert rig.state("a") is S.FAILED


async def test_an_engine_that_cannot_run_here_is_a_visible_failure_of_the_instance() -> None:
    """An assignment outlives the engine's installation; only the log would have said why the endpoint never answers."""

    def missing(_assignment: Assignment) -> Any:
        raise ConfigurationError("engine fake cannot run on this machine")

    rig = Rig(capacity=100)
    rig.agent.adapter_for = missing
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        failure = rig.agent.instances["a"].life.failure
        assert failure is not None
        assert failure.reason == "engine fake cannot run on this machine"
        assert rig.said["a"].state is S.FAILED
        order(rig, None)
        await rig.turn()
        assert rig.agent.instances == {}


async def test_a_stop_during_a_stop_does_not_lose_the_engine() -> None:
    """The failed engine is still being stopped when the next climb is cut short: its memory is not free."""
    rig = Rig(capacity=100)
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        retry = rig.agent.instances["a"].retry
        assert retry is not None
        rig.now += 2
        retry._run()
        await rig.turn()
        assert rig.state("a") is S.STARTING
        order(rig, an_assignment(instance="a", rung=Rung.STAGED, intent="second"))
        await rig.turn()
        assert rig.state("a") is S.STOPPING
        assert dict(rig.memory.ledger.claims) == {"a": Claim(60)}
        rig.engine.may_end.set()
        await rig.turn()
        assert (rig.state("a"), dict(rig.memory.ledger.claims)) == (S.STAGED, {})
        assert rig.engine.log == ["start", "stop", "ended"]


async def test_a_climb_cut_short_before_its_spawn_began_does_not_wait_for_itself() -> None:
    """The grant and the order to stop are handled in one turn of the loop: spawn and stop must not wait for each other."""
    rig = Rig(capacity=100)
    rig.engine.may_end.set()
    managed = rig.agent._adopt(an_assignment(instance="a"))
    managed.life = Lifecycle(state=S.STARTING, target=Rung.READY, generation=1, reserving=True)
    rig.memory.reserve(managed)
    order(rig, an_assignment(instance="a", rung=Rung.STAGED, intent="second"))
    async with running(rig):
        await rig.turn()
        assert (rig.state("a"), dict(rig.memory.ledger.claims)) == (S.STAGED, {})
        assert rig.engine.log in ([], ["start", "stop", "ended"])


async def test_an_engine_that_does_not_end_is_a_failure_and_is_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Field case B30: it keeps its memory until it is gone, the instance says so, and nothing else waits for it."""
    stuck = True

    async def hang(_handle: Any, _grace_s: float) -> None:
        if stuck:
            raise EngineError("processes 7 (state D) of the engine did not end")
        rig.engine.log.append("ended")

    monkeypatch.setattr(work_module, "STOP_AGAIN_S", 0.0)
    rig = Rig(capacity=100)
    rig.engine.loads = True
    rig.engine.stop = hang  # type: ignore[method-assign]
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        assert rig.state("a") is S.READY
        order(rig, an_assignment(instance="a", rung=Rung.STAGED, intent="second"))
        await rig.turn()
        failure = rig.agent.instances["a"].life.failure
        assert (rig.state("a"), dict(rig.memory.ledger.claims)) == (S.FAILED, {"a": Claim(60)})
        assert failure is not None
        assert failure.reason == "processes 7 (state D) of the engine did not end"
        order(rig, None)
        await rig.turn()
        assert "a" in rig.agent.instances, "its memory is still held"
        stuck = False
        await rig.turn()
        assert (rig.agent.instances, dict(rig.memory.ledger.claims)) == ({}, {})
        assert rig.engine.log == ["start", "ended"]


async def test_a_cgroup_that_does_not_empty_is_a_failure_and_is_removed_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an answer the instance would be stopping for ever, and its memory promised to nobody."""
    stuck = True

    class StuckCell:
        def kill(self) -> bool:
            return True

        async def remove(self) -> None:
            if stuck:
                raise EngineError("cgroup a-1 still holds processes (7,) 5 s after its engine was ended")
            rig.engine.log.append("removed")

    monkeypatch.setattr(work_module, "STOP_AGAIN_S", 0.0)
    rig = Rig(capacity=100)
    rig.engine.loads = True
    rig.engine.may_end.set()
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        rig.agent.effects.engines.berths._cells["a"] = cast("Any", StuckCell())
        order(rig, an_assignment(instance="a", rung=Rung.STAGED, intent="second"))
        await rig.turn()
        failure = rig.agent.instances["a"].life.failure
        assert (rig.state("a"), dict(rig.memory.ledger.claims)) == (S.FAILED, {"a": Claim(60)})
        assert failure is not None
        assert "still holds processes" in failure.reason
        stuck = False
        await rig.turn()
        assert dict(rig.memory.ledger.claims) == {}
        assert rig.engine.log == ["start", "stop", "ended", "removed"]
        assert rig.agent.effects.engines.berths._cells == {}


async def test_a_start_that_waits_for_a_zygote_is_cut_short_at_once() -> None:
    """Nobody wants it any more, e.g. as the node ends: it must not wait a minute first, nor start then."""
    rig = Rig(capacity=100)
    rig.engine.capabilities = Capabilities(sleep=True, zygote=True)
    rig.agent.effects.engines.zygotes.wait_ready = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign,assignment]
    async with running(rig):
        managed = rig.agent._adopt(an_assignment(instance="a"))
        managed.life = replace(managed.life, can_zygote=False)
        order(rig, an_assignment(instance="a", intent="second"))
        await rig.turn()
        assert (rig.state("a"), list(managed.tasks)) == (S.STARTING, ["spawn"])
        order(rig, None)
        await rig.turn()
        assert (rig.agent.instances, dict(rig.memory.ledger.claims), rig.engine.log) == ({}, {}, [])


async def test_a_start_that_forks_is_never_cancelled() -> None:
    """Between the fork and the handle nobody else knows of the process."""
    forked = asyncio.Event()
    rig = Rig(capacity=100)
    rig.engine.may_end.set()
    start = rig.engine.start

    async def fork(spec: Any) -> Any:
        await forked.wait()
        return await start(spec)

    rig.engine.start = fork  # type: ignore[method-assign,assignment]
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        order(rig, None)
        await rig.turn()
        assert rig.state("a") is S.STOPPING
        forked.set()
        await rig.turn()
        assert (rig.agent.instances, rig.engine.log) == ({}, ["start", "stop", "ended"])


async def test_a_refused_climb_keeps_no_gpu_from_others() -> None:
    rig = Rig(capacity=50)
    async with running(rig):
        order(rig, an_assignment(instance="a", rung=Rung.STAGED))
        await rig.turn()
        managed = rig.agent.instances["a"]
        managed.devices = ("GPU-1",)
        order(rig, an_assignment(instance="a", intent="second"))
        await rig.turn()
        assert rig.state("a") is S.STAGED
        assert list(managed.devices) == []


async def test_a_sleeper_that_is_woken_just_then_is_not_pushed_out() -> None:
    """Its request would wait for ever: the controller wants it ready, and the node alone had decided otherwise."""
    rig = Rig(capacity=100)
    rig.engine.loads = True
    sleeper = rig.agent._adopt(an_assignment(instance="sleeper", rung=Rung.ASLEEP))
    sleeper.life = Lifecycle(state=S.ASLEEP, target=Rung.ASLEEP)
    sleeper.handle = await rig.engine.start(None)
    rig.memory.hold(sleeper, 50)
    climber = rig.agent._adopt(an_assignment(instance="climber"))
    climber.life = Lifecycle(state=S.STARTING, target=Rung.READY, reserving=True)
    order(rig, an_assignment(instance="sleeper", rung=Rung.READY, intent="wake"), "sleeper")
    rig.memory.reserve(climber)
    async with running(rig):
        await rig.turn()
        assert sleeper.life.target is Rung.READY
        assert rig.state("sleeper") is S.READY
        assert rig.state("climber") is S.STAGED, "refused: what it waited for stays"
        assert climber.life.failure is not None
        assert climber.life.failure.code == "no_memory"


async def test_a_refused_climb_goes_on_as_soon_as_memory_is_freed() -> None:
    rig = Rig(capacity=100)
    rig.engine.loads = True
    rig.engine.may_end.set()
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        order(rig, an_assignment(instance="b"), "b")
        await rig.turn()
        assert (rig.state("a"), rig.state("b")) == (S.READY, S.STAGED)
        order(rig, None)
        await rig.turn()
        assert rig.state("b") is S.READY
        assert dict(rig.memory.ledger.claims) == {"b": Claim(60)}


async def test_an_unforeseen_error_in_the_loop_fails_one_instance_and_the_loop_goes_on() -> None:
    rig = Rig(capacity=200)
    rig.engine.loads = True
    rig.engine.may_end.set()
    opened = rig.agent.effects.door.open

    def explode(instance: str, **options: Any) -> None:
        if instance == "a":
            raise RuntimeError("a bug")
        opened(instance, **options)

    rig.agent.effects.door.open = explode  # type: ignore[method-assign]
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        order(rig, an_assignment(instance="b"), "b")
        await rig.turn()
        assert (rig.state("a"), rig.state("b")) == (S.FAILED, S.READY)


async def test_an_idle_instance_says_nothing_new() -> None:
    """Two clocks that are read one after the other differ by microseconds: no reason for a record at every beat."""
    rig = Rig(capacity=100)
    rig.engine.loads = True
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()
        managed = rig.agent.instances["a"]
        gate = rig.agent.effects.door.slots.find("a")
        assert gate is not None
        rig.now += 5
        gate._last_end = rig.now - 1
        rig.agent.say(managed)
        first, count = rig.said["a"], len(rig.told)
        assert first.idle_since == pytest.approx(rig.now - 1)
        for _ in range(3):
            rig.now += 2.0
            rig.drift += 0.000_003
            rig.agent.say(managed)
        assert len(rig.told) == count


async def test_the_second_signal_ends_the_agent_even_when_an_engine_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What hangs in the kernel would keep the whole node from leaving; the next agent reaps it by its record."""
    monkeypatch.setattr(node_module, "HURRY_LIMIT_S", 0.01)
    rig = Rig(capacity=100)
    rig.engine.loads = True
    async with running(rig):
        order(rig, an_assignment(instance="a"))
        await rig.turn()

        async def at_once() -> None: ...

        idle = cast("Any", SimpleNamespace(stop=at_once, flushed=at_once))
        duty = Duty("n1", tmp_path / "mode.json", rig.agent)
        parts = node_module.NodeParts(rig.agent, idle, idle, rig.agent.effects.door, "127.0.0.1:1", duty)
        hurry = asyncio.Event()
        leaving = asyncio.create_task(parts.wind_down(hurry))
        await rig.turn()
        assert (leaving.done(), rig.state("a")) == (False, S.STOPPING)
        hurry.set()
        await asyncio.wait_for(leaving, 30)
        assert rig.state("a") is S.STOPPING
