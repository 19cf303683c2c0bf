"""Lanes of a gateway in turns that a real server brings rarely: knocks at a lane that is ending, a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from standby.domain.errors import BusUnavailable
from standby.domain.model import SourceOptions
from standby.sagemaker.runtime.async_context import AsyncContext, Served
from standby.sagemaker.runtime.async_lanes import AsyncLanes
from standby.sagemaker.runtime.async_worker import AsyncWorker
from support.builders import a_config, an_endpoint
from support.waiting import until

LANE = "000000000000.e"


@dataclass
class Queue:
    """Stands for the queue, the context and the worker; ``on_end`` is called while a lane's work ends."""

    at_once: int = 5
    lane_items: dict[str, int] = field(default_factory=dict)
    limits: list[int] = field(default_factory=list)
    begun: int = 0
    away: int = 0
    on_end: Callable[[], None] = lambda: None
    handle: Any = None

    @property
    def lanes(self) -> Queue:
        return self

    def served(self, _tenant: str, _name: str) -> Served | None:
        request = {"AsyncInferenceConfig": {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": self.at_once}}}
        return Served(an_endpoint(), a_config(request=request), SourceOptions())

    async def open(self) -> None:
        return None

    async def waiting(self) -> dict[str, int]:
        return dict(self.lane_items)

    async def limit(self, _lane: str, most: int) -> None:
        if self.away:
            self.away -= 1
            raise BusUnavailable("away")
        self.limits.append(most)

    async def work(self, _lane: str, _handler: object, **_how: object) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.on_end()


@asynccontextmanager
async def working(queue: Queue, idle_s: float) -> AsyncIterator[AsyncLanes]:
    lanes = AsyncLanes(cast("AsyncContext", queue), cast("AsyncWorker", queue), look_s=0.01, idle_s=idle_s)
    await lanes.start()
    try:
        yield lanes
    finally:
        queue.on_end = lambda: None
        await lanes.stop()


async def test_a_knock_at_a_lane_that_is_just_ending_begins_it_again_and_ends_nothing_else() -> None:
    queue = Queue()
    async with working(queue, idle_s=0.03) as lanes:
        queue.on_end = lambda: lanes.knock(LANE) if queue.begun == 1 else None
        lanes.knock(LANE)
        await until(lambda: queue.begun == 2)
        queue.lane_items = {"000000000000.other": 1}
        await until(lambda: queue.begun == 3, "other lanes are looked at as before")


async def test_a_limit_that_the_server_did_not_take_is_told_again() -> None:
    queue = Queue(lane_items={LANE: 1})
    async with working(queue, idle_s=60) as lanes:
        await until(lambda: lanes.working == {LANE})
        queue.away, queue.at_once = 1, 3
        await until(lambda: queue.limits[-1:] == [3])
