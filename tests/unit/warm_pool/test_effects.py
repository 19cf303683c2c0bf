"""What the agent does for one instance, with a scripted engine: order, and that nothing is given back too early."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from standby.domain.instance import InstanceState, Rung
from standby.runtime.lifecycle_values import Evicted
from standby.warm_pool.ledger import Claim
from support.agent_rig import Rig
from support.builders import an_assignment


async def test_memory_and_the_next_start_wait_for_the_end_of_the_failed_engine() -> None:
    """An engine that does not load and does not end either holds its memory until its whole group is gone."""
    rig = Rig(capacity=100)
    running = asyncio.create_task(rig.agent.run())
    rig.agent.assignment_changed("n1.a", None, cast("Any", SimpleNamespace(value=an_assignment(instance="a"))))
    await rig.turn()
    assert (rig.state("a"), rig.engine.log) == (InstanceState.FAILED, ["start", "stop"])
    assert rig.memory.ledger.claims == {"a": Claim(60)}

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
    assert rig.memory.waiting == {"climber": Claim(60)}
    queued = [rig.agent._inbox.get_nowait() for _ in range(rig.agent._inbox.qsize())]
    assert [(item.instance, cast("Any", item).event) for item in queued] == [("sleeper", Evicted())]
    rig.memory.release(sleeper)
    assert dict(rig.memory.ledger.claims) == {"climber": Claim(60)}
    assert rig.agent._inbox.get_nowait() is not None
