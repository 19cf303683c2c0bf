"""A work queue with lanes: each goes its own way, each has its own limit over all processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from standby.bus.connection import Bus
from standby.bus.lanes import Lanes
from standby.bus.queue import Verdict, WorkHandler, WorkItem
from standby.domain.errors import BusUnavailable, QueueFull
from standby.host import tasks as host_tasks
from support.nats_server import NatsServer
from support.waiting import until


@pytest.fixture
async def lanes(bus: Bus) -> Lanes:
    lanes = Lanes(bus, "laned", ack_wait=4.0)
    await lanes.open()
    return lanes


@asynccontextmanager
async def working(
    lanes: Lanes, lane: str, handler: WorkHandler, *, at_once: int = 8, everywhere: int = 8
) -> AsyncIterator[None]:
    task = asyncio.create_task(lanes.work(lane, handler, at_once=at_once, everywhere=lambda: everywhere))
    try:
        yield
    finally:
        await host_tasks.end([task])


async def test_a_lane_that_stands_keeps_no_other_one_back(lanes: Lanes) -> None:
    for n in range(3):
        await lanes.put("t.stuck", f"s{n}", b"")
        await lanes.put("t.free", f"f{n}", b"%d" % n)
    assert await lanes.waiting() == {"t.stuck": 3, "t.free": 3}
    done: list[WorkItem] = []

    async def never(_: WorkItem) -> Verdict:
        await asyncio.Event().wait()
        return Verdict.DONE

    async def note(item: WorkItem) -> Verdict:
        done.append(item)
        return Verdict.DONE

    async with working(lanes, "t.stuck", never), working(lanes, "t.free", note):
        await until(lambda: len(done) == 3)
        await until(lambda: only(lanes, {"t.stuck": 3}))
    assert done == [WorkItem(f"f{n}", b"%d" % n, 1) for n in range(3)]


async def test_a_lanes_limit_holds_over_processes_and_can_be_changed(server: NatsServer, lanes: Lanes) -> None:
    for n in range(10):
        await lanes.put("t.e", f"i{n}", b"")
    running: set[str] = set()
    peak = 0
    go = asyncio.Semaphore(0)

    async def hold(item: WorkItem) -> Verdict:
        nonlocal peak
        running.add(item.id)
        peak = max(peak, len(running))
        await go.acquire()
        running.discard(item.id)
        return Verdict.DONE

    async with server.bus() as second:
        other = Lanes(second, "laned", ack_wait=4.0)
        async with working(lanes, "t.e", hold, everywhere=3), working(other, "t.e", hold, everywhere=3):
            await until(lambda: len(running) == 3)
            for _ in range(3):
                go.release()
            await until(lambda: only(lanes, {"t.e": 7}))
            await until(lambda: len(running) == 3)
            assert peak == 3
            await lanes.limit("t.e", 5)
            await until(lambda: len(running) == 5)
            for _ in range(7):
                go.release()
            await until(lambda: only(lanes, {}))
    assert peak == 5


async def test_one_id_is_one_item_and_a_full_queue_says_so(bus: Bus) -> None:
    lanes = Lanes(bus, "small", max_bytes=4096)
    await lanes.open()
    assert await lanes.put("t.e", "a", b"x" * 1000) is True
    assert await lanes.put("t.e", "a", b"x" * 1000) is False
    for n in range(2):
        await lanes.put("t.e", f"b{n}", b"x" * 1000)
    with pytest.raises(QueueFull, match="4096 bytes"):
        await lanes.put("t.e", "c", b"x" * 1000)
    assert await lanes.waiting() == {"t.e": 3}


async def test_items_survive_the_server_and_forgotten_lanes_come_back(server: NatsServer, lanes: Lanes) -> None:
    await lanes.put("t.e", "a", b"1")
    await server.restart(kill=True)
    done: list[str] = []

    async def note(item: WorkItem) -> Verdict:
        done.append(item.id)
        return Verdict.DONE

    async with working(lanes, "t.e", note):
        await until(lambda: done == ["a"])
    await until(lambda: only(lanes, {}))
    await lanes.forget("t.e")
    await lanes.forget("t.e")
    await lanes.put("t.e", "b", b"")
    async with working(lanes, "t.e", note):
        await until(lambda: done == ["a", "b"])


async def only(lanes: Lanes, expected: dict[str, int]) -> bool:
    try:
        return await lanes.waiting() == expected
    except BusUnavailable:
        return False
