"""The worker of a work queue: once is enough, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.lanes import Lanes
from standby.bus.queue import Verdict, WorkHandler, WorkItem
from standby.domain.errors import BusUnavailable
from support.nats_server import NatsServer
from support.waiting import until

LANE = "t.e"


async def emptied(queue: Lanes) -> None:
    async with asyncio.timeout(60):
        while await queue.waiting():
            await asyncio.sleep(0.01)


@pytest.fixture
async def queue(bus: Bus) -> Lanes:
    """Whoever stands still for a moment, as on a slow machine, keeps his item."""
    queue = Lanes(bus, "jobs", ack_wait=4.0)
    await queue.open()
    return queue


@pytest.fixture
async def strict(bus: Bus) -> Lanes:
    """Whoever is silent for a moment has lost his item."""
    strict = Lanes(bus, "jobs", ack_wait=0.6)
    await strict.open()
    return strict


@asynccontextmanager
async def consuming(queue: Lanes, handler: WorkHandler, at_once: int = 1) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(queue.work(LANE, handler, at_once=at_once, everywhere=lambda: 8))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_done_items_leave_and_a_second_put_of_an_id_is_one_item(queue: Lanes) -> None:
    """Field case B39: a publish that "failed" and is repeated must not be worked on twice."""
    assert await queue.put(LANE, "a", b"1") is True
    assert await queue.put(LANE, "a", b"1") is False
    assert await queue.put(LANE, "b", b"2") is True
    done: list[WorkItem] = []

    async def handler(item: WorkItem) -> Verdict:
        done.append(item)
        return Verdict.DONE

    async with consuming(queue, handler):
        await until(lambda: len(done) == 2, "both items done")
        await emptied(queue)
    assert done == [WorkItem("a", b"1", 1), WorkItem("b", b"2", 1)]


async def test_a_slow_worker_keeps_its_item_by_renewing(queue: Lanes) -> None:
    """The work takes more than twice the time after which a silent worker loses its item."""
    await queue.put(LANE, "slow", b"")
    attempts: list[int] = []
    finished = asyncio.Event()

    async def handler(item: WorkItem) -> Verdict:
        attempts.append(item.attempt)
        await asyncio.sleep(9.0)
        finished.set()
        return Verdict.DONE

    async with consuming(queue, handler, at_once=2):
        await asyncio.wait_for(finished.wait(), 60)
        await emptied(queue)
    assert attempts == [1]


async def test_a_dead_workers_item_goes_to_another(server: NatsServer, strict: Lanes) -> None:
    """The first worker's process goes away without a word: its connection is cut under it."""
    await strict.put(LANE, "a", b"")
    taken, done = asyncio.Event(), asyncio.Event()
    attempts: list[int] = []

    async def hang(item: WorkItem) -> Verdict:
        taken.set()
        await asyncio.Event().wait()
        return Verdict.DONE

    async def finish(item: WorkItem) -> Verdict:
        attempts.append(item.attempt)
        done.set()
        return Verdict.DONE

    async with (
        server.link() as link,
        server.bus(nats_url=link.url) as doomed,
        consuming(Lanes(doomed, "jobs", ack_wait=0.6), hang),
    ):
        await asyncio.wait_for(taken.wait(), 60)
        link.cut()
        async with consuming(strict, finish):
            await asyncio.wait_for(done.wait(), 60)
    assert attempts == [2]


async def test_a_cancelled_worker_gives_its_item_back_at_once(bus: Bus) -> None:
    """A minute would pass before the item came again by itself."""
    queue = Lanes(bus, "patient", ack_wait=60.0)
    await queue.open()
    await queue.put(LANE, "a", b"")
    taken = asyncio.Event()

    async def hang(item: WorkItem) -> Verdict:
        taken.set()
        await asyncio.Event().wait()
        return Verdict.DONE

    async with consuming(queue, hang):
        await asyncio.wait_for(taken.wait(), 60)
    attempts: list[int] = []

    async def finish(item: WorkItem) -> Verdict:
        attempts.append(item.attempt)
        return Verdict.DONE

    async with consuming(queue, finish):
        await until(lambda: attempts == [2], "item given back")


async def test_retry_comes_again_and_reject_never(bus: Bus, queue: Lanes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standby.bus.queue.FIRST_RETRY_S", 0.05)
    for name in ("retry", "raise", "reject"):
        await queue.put(LANE, name, b"")
    seen: Counter[str] = Counter()

    async def handler(item: WorkItem) -> Verdict:
        seen[item.id] += 1
        if item.id == "reject":
            return Verdict.REJECT
        if item.attempt == 1:
            if item.id == "raise":
                raise RuntimeError("deliberate")
            return Verdict.RETRY
        return Verdict.DONE

    async with consuming(queue, handler):
        await until(lambda: seen == {"retry": 2, "raise": 2, "reject": 1}, "each had its attempts")
        await emptied(queue)
    assert bus.statistics().callback_failures == 1


async def test_work_goes_on_over_restarts_without_loss_or_leaked_consumers(bus: Bus, server: NatsServer, strict: Lanes) -> None:
    """Field case B38: ten flaps under work, every item done, and one consumer as before."""
    done: Counter[str] = Counter()

    async def handler(item: WorkItem) -> Verdict:
        done[item.id] += 1
        return Verdict.DONE

    async def put(item: str) -> None:
        while True:
            try:
                await strict.put(LANE, item, b"")
            except BusUnavailable:
                await asyncio.sleep(0.02)
            else:
                return

    async with consuming(strict, handler, at_once=4):
        for n in range(10):
            await server.restart(kill=n % 2 == 0)
            async with asyncio.timeout(30):
                await put(f"item-{n}")
                await until(lambda wanted=f"item-{n}": wanted in done, "item done after restart")  # type: ignore[misc]
        await emptied(strict)
    info = await bus.jetstream.stream_info(subjects.work_stream("jobs"))
    assert (info.state.consumer_count, info.state.messages) == (1, 0)
    assert set(done) == {f"item-{n}" for n in range(10)}


async def test_a_lost_store_is_made_again_under_a_waiting_worker(server: NatsServer, queue: Lanes) -> None:
    done: list[str] = []

    async def handler(item: WorkItem) -> Verdict:
        done.append(item.id)
        return Verdict.DONE

    async with consuming(queue, handler):
        await server.restart(wipe=True)

        async def put() -> None:
            while True:
                try:
                    await queue.put(LANE, "a", b"")
                except BusUnavailable:
                    await asyncio.sleep(0.02)
                else:
                    return

        async with asyncio.timeout(30):
            await put()
        await until(lambda: done == ["a"], "item done on the new store")
