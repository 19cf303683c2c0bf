"""How full an engine's cache is: asked while it works, said when it has moved, never in the way of anything."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from standby.domain.errors import EngineError
from standby.domain.instance import InstanceState, Rung
from standby.runtime.engines.base import EngineAdapter, EngineHandle, EngineLoad
from standby.runtime.lifecycle_values import Lifecycle
from standby.warm_pool.door_load import DoorLoad
from standby.warm_pool.health import HealthLimits
from standby.warm_pool.health_watch import ADAPTERS_EVERY_S, Fullness, HealthWatch, Watched
from standby.warm_pool.managed import Managed
from support.agent_rig import Rig
from support.builders import a_model, an_assignment

INSTANCE = "smol-1"


class _Process:
    status = None


class _Handle:
    process = _Process()


@dataclass
class Engine:
    """Answers as it is told, or not at all."""

    kv_used: float | None = 0.5
    answers: bool = True
    asked: int = 0
    asked_for_adapters: int = 0

    async def load(self, _handle: EngineHandle, deadline_s: float) -> EngineLoad:
        self.asked += 1
        assert deadline_s < 1
        if not self.answers:
            raise EngineError("no time")
        return EngineLoad(running=1, kv_used=self.kv_used)

    async def adapters(self, _handle: EngineHandle, _deadline_s: float) -> tuple[str, ...]:
        self.asked_for_adapters += 1
        return ("fr", "de")


@dataclass
class Place:
    """A watch whose clock and door are turned by hand."""

    engine: Engine = field(default_factory=Engine)
    now: float = 100.0
    inside: int = 0
    said: list[Fullness] = field(default_factory=list)

    def __post_init__(self) -> None:
        watched = Watched(INSTANCE, 1, cast("EngineAdapter", self.engine), cast("EngineHandle", _Handle()))
        self.watch = HealthWatch(
            engines=lambda: [watched],
            load=lambda _: DoorLoad(in_flight=self.inside, last_progress=self.now),
            sick=lambda *told: pytest.fail(str(told)),
            told=lambda _, fullness: self.said.append(fullness),
            limits=HealthLimits(idle_every_s=1e6),
            clock=lambda: self.now,
        )

    async def look(self) -> None:
        self.now += 1
        self.watch.look()
        for _ in range(3):
            await asyncio.sleep(0)


async def test_an_engine_is_asked_for_its_adapters_at_once_and_then_rarely() -> None:
    place = Place()
    await place.look()
    assert place.said == [Fullness(adapters=("fr", "de"))]
    for _ in range(int(ADAPTERS_EVERY_S) - 1):
        await place.look()
    assert place.engine.asked_for_adapters == 1
    await place.look()
    assert place.engine.asked_for_adapters == 2


async def test_an_idle_engine_is_not_asked_how_full_it_is() -> None:
    place = Place()
    for _ in range(5):
        await place.look()
    assert place.engine.asked == 0


async def test_what_works_is_asked_each_second_and_is_empty_once_nothing_is_in_flight() -> None:
    """What was said last would stand for ever otherwise, and keep away the requests that change it."""
    place = Place(inside=2)
    await place.look()
    await place.look()
    await place.look()
    assert place.said[1:] == [Fullness(share=0.5), Fullness(share=0.5)]
    place.inside = 0
    await place.look()
    await place.look()
    assert place.said[3:] == [Fullness(share=0.0)]


async def test_an_engine_without_time_for_it_is_left_alone() -> None:
    place = Place(Engine(answers=False), inside=1)
    for _ in range(4):
        await place.look()
    assert place.engine.asked == 3
    assert len(place.said) == 1, "the adapters only, and nobody is called sick"


async def test_an_engine_that_cannot_say_leaves_it_unknown() -> None:
    place = Place(Engine(kv_used=None), inside=1)
    await place.look()
    await place.look()
    assert place.said[-1] == Fullness(share=None)


async def test_a_record_moves_in_steps_and_forgets_what_a_sleeper_cannot_know() -> None:
    rig = Rig(100)
    ready = Lifecycle(state=InstanceState.READY, target=Rung.READY, generation=1, epoch=3, run=1, can_sleep=True)
    model = a_model().model_copy(update={"engine_options": {"priority": True}})
    managed = Managed(an_assignment(model=model, backend="spare"), ready, cast("Any", rig.engine), rung_since=1.0)
    rig.agent.instances["i1"] = managed
    for share, shown in ((0.013, 0.02), (0.03, 0.02), (0.041, 0.04), (0.9, 0.9), (0.0, 0.0)):
        rig.agent.told("i1", Fullness(share=share, adapters=("fr",)))
        said = rig.told[-1]
        assert (said.memory_pressure, said.adapters) == (shown, ("fr",))
    assert (said.backend, said.prioritised) == ("spare", True)
    assert len(rig.told) == 4, "what has not moved is not said again"
    managed.moved(replace(ready, state=InstanceState.ASLEEP), 5.0)
    rig.agent.told("i1", Fullness(share=0.5))
    rig.agent.say(managed)
    assert (rig.told[-1].memory_pressure, rig.told[-1].adapters) == (None, ())
