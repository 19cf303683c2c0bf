"""How many requests a door lets in: as ordered, at once, also while an instance is ready, and without touching its engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from standby.domain.instance import InstanceState, Rung
from standby.runtime.lifecycle_values import Lifecycle
from standby.warm_pool.agent import _Assigned
from standby.warm_pool.door import Door
from standby.warm_pool.managed import Managed
from standby.wire.headers import Refusal
from support.agent_rig import Rig
from support.builders import an_assignment


class _Request:
    """Something that holds a slot."""

    def abort(self, reason: str) -> None: ...

    def check(self, now: float) -> None: ...


def test_a_door_that_was_made_smaller_lets_what_is_inside_end_and_nothing_in_before() -> None:
    door = Door(token="t", on_change=lambda _instance: None)
    door.open("i1", epoch=1, slots=2, address=Path("engine.sock"))
    gate = door.slots.find("i1")
    assert gate is not None
    inside = [_Request(), _Request()]
    for request in inside:
        gate.take(request, 0.0)
    door.resize("i1", 1)
    assert gate.refusal(b"1") is Refusal.FULL
    gate.give_back(inside[0], now=1.0, status=200, served=True, engine_failed=False)
    assert gate.refusal(b"1") is Refusal.FULL
    gate.give_back(inside[1], now=1.0, status=200, served=True, engine_failed=False)
    assert gate.refusal(b"1") is None
    door.resize("i1", 0)
    assert gate.refusal(b"1") is Refusal.FULL
    door.resize("nobody", 3)


async def test_a_new_number_reaches_the_door_and_the_record_and_leaves_the_life_as_it_is() -> None:
    rig = Rig(100)
    agent = rig.agent
    ready = Lifecycle(state=InstanceState.READY, target=Rung.READY, generation=1, epoch=3, run=1, can_sleep=True)
    assignment = an_assignment(slots=4, version="v1")
    agent.instances["i1"] = Managed(assignment, ready, cast("Any", rig.engine), rung_since=1.0)
    agent.effects.door.open("i1", epoch=3, slots=4, address=Path("engine.sock"))
    ordered = assignment.model_copy(update={"admits": 3, "intent": "intent-2"})
    agent._handle(_Assigned("i1", ordered))
    gate = agent.effects.door.slots.find("i1")
    assert gate is not None
    assert (gate.slots, gate.epoch, agent.instances["i1"].life) == (3, 3, ready)
    said = rig.told[-1]
    assert (said.slots, said.version, said.assignment_intent, said.state) == (3, "v1", "intent-2", InstanceState.READY)
