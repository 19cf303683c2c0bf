"""The node says every few seconds that it is there, whatever its devices or its parts do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.host import tasks
from standby.warm_pool import heart as heart_module
from standby.warm_pool import wiring as wiring_module
from standby.warm_pool.heart import Heart
from standby.warm_pool.wiring import always
from support.agent_rig import Rig
from support.waiting import until


def a_heart(rig: Rig, beats: list[int]) -> Heart:
    settings = SimpleNamespace(heartbeat_s=0.0)
    registry = SimpleNamespace(available=tuple, absent=dict)
    nothing = cast("Any", None)
    heart = Heart(cast("Any", settings), rig.agent, nothing, nothing, rig.memory, cast("Any", registry), nothing)
    heart.beat = lambda: beats.append(1)  # type: ignore[method-assign]
    return heart


@pytest.mark.parametrize("driver", ["hangs", "raises"])
async def test_the_heart_beats_on_when_a_driver_does_not_answer(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU in trouble must not make the whole node look dead."""
    asked: list[int] = []

    async def refresh() -> None:
        asked.append(1)
        if driver == "raises":
            raise RuntimeError("driver/library version mismatch")
        await asyncio.Event().wait()

    monkeypatch.setattr(heart_module, "LOOK_S", 0.0)
    rig, beats = Rig(capacity=1), list[int]()
    monkeypatch.setattr(rig.agent.effects.engines.berths.devices, "refresh", refresh)
    beating = asyncio.create_task(a_heart(rig, beats).run())
    await until(lambda: len(beats) > 3)
    assert not beating.done()
    assert (len(asked) == 1) is (driver == "hangs"), "one question at a time"
    await tasks.end([beating])


async def test_a_part_that_breaks_begins_anew(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(wiring_module, "BEGIN_ANEW_S", 0.0)
    runs: list[int] = []

    async def part() -> None:
        runs.append(1)
        if len(runs) < 3:
            raise RuntimeError("a bug")
        await asyncio.Event().wait()

    running = asyncio.create_task(always(part))
    await until(lambda: len(runs) == 3)
    assert "begins anew" in caplog.text
    await tasks.end([running])
