"""Which lanes a gateway works on: those with work, until they have had none for a while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.lanes import Lanes
from standby.bus.queue import Verdict, WorkItem
from standby.domain.endpoint import EndpointConfig
from standby.domain.errors import BusUnavailable
from standby.domain.model import SourceOptions
from standby.sagemaker.runtime.async_context import AsyncContext, Served
from standby.sagemaker.runtime.async_lanes import AsyncLanes
from standby.sagemaker.runtime.async_worker import AsyncWorker
from standby.telemetry import metrics
from support.builders import a_config, an_endpoint
from support.nats_server import nats_server
from support.waiting import until

LANE = "000000000000.e"


@dataclass
class Handled:
    """Stands for the worker and the context: notes what it gets; ``config`` is the endpoint's, None: it is gone."""

    lanes: Lanes
    config: EndpointConfig | None
    seen: list[str] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.release.set()

    async def handle(self, item: WorkItem) -> Verdict:
        self.seen.append(item.id)
        await self.release.wait()
        return Verdict.DONE

    def served(self, _tenant: str, _name: str) -> Served | None:
        return None if self.config is None else Served(an_endpoint(), self.config, SourceOptions())


def config_of(at_once: int) -> EndpointConfig:
    return a_config(request={"AsyncInferenceConfig": {"ClientConfig": {"MaxConcurrentInvocationsPerInstance": at_once}}})


@asynccontextmanager
async def working(tmp_path: Path, config: EndpointConfig | None) -> AsyncIterator[tuple[Bus, Handled, AsyncLanes]]:
    async with nats_server(tmp_path) as server, server.bus() as bus, looking(bus, config) as (world, lanes):
        yield bus, world, lanes


@asynccontextmanager
async def looking(bus: Bus, config: EndpointConfig | None) -> AsyncIterator[tuple[Handled, AsyncLanes]]:
    world = Handled(Lanes(bus, "async"), config)
    lanes = AsyncLanes(cast("AsyncContext", world), cast("AsyncWorker", world), look_s=0.05, idle_s=0.3)
    await lanes.start()
    try:
        yield world, lanes
    finally:
        await lanes.stop()


async def consumer(bus: Bus) -> Any:
    found = await bus.jetstream.consumers_info(subjects.work_stream("async"))
    return found[0] if found else None


def shown() -> list[float]:
    return [sample.value for metric in metrics.ASYNC_QUEUED.collect() for sample in metric.samples]


async def test_work_of_another_gateway_is_found_and_idle_lanes_end_and_begin_again(tmp_path: Path) -> None:
    async with working(tmp_path, config_of(7)) as (bus, world, lanes):
        world.release.clear()  # a lane that has had no work for a moment is left, and its limit with it
        await world.lanes.put(LANE, "a", b"")
        await until(lambda: world.seen == ["a"])
        assert (await consumer(bus)).config.max_ack_pending == 7
        world.config = config_of(3)

        async def changed() -> bool:
            return bool((await consumer(bus)).config.max_ack_pending == 3)

        await until(changed)
        world.release.set()
        await until(lambda: lanes.working == set())
        assert await consumer(bus) is not None
        await world.lanes.put(LANE, "b", b"")
        await until(lambda: world.seen == ["a", "b"])
        await until(lambda: shown() == [])


async def test_what_a_lost_endpoint_has_left_is_worked_on_and_then_forgotten(tmp_path: Path) -> None:
    async with working(tmp_path, None) as (bus, world, _):
        await world.lanes.put(LANE, "a", b"")
        await until(lambda: world.seen == ["a"])

        async def forgotten() -> bool:
            return await consumer(bus) is None

        await until(forgotten)


async def test_a_knock_is_heard_at_once_and_what_waits_is_shown(tmp_path: Path) -> None:
    async with working(tmp_path, config_of(1)) as (_, world, lanes):
        world.release.clear()
        await world.lanes.put(LANE, "a", b"")
        await world.lanes.put(LANE, "b", b"")
        lanes.knock(LANE)
        assert lanes.working == {LANE}
        await until(lambda: shown() == [2.0])
        await until(lambda: world.seen == ["a"])
        world.release.set()
        await until(lambda: world.seen == ["a", "b"])
        await until(lambda: shown() == [])


async def test_a_lost_store_is_made_again_while_no_lane_has_work(tmp_path: Path) -> None:
    """Whoever works on a lane makes it again; with none at work nobody else would, and nothing could be put any more."""
    async with nats_server(tmp_path) as server, server.bus() as bus, looking(bus, config_of(1)) as (world, _):
        await server.restart(wipe=True)

        async def put() -> bool:
            try:
                return await world.lanes.put(LANE, "a", b"")
            except BusUnavailable:
                return False

        await until(put)
        await until(lambda: world.seen == ["a"])
