"""The event log: never in the way, complete when the bus is there, counted when it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.domain.errors import BusUnavailable
from standby.domain.events import AnyEvent, ComponentNotice, DecisionMade, EndpointChanged
from support.nats_server import NatsServer
from support.waiting import until


def notice(n: int, tenant: str = "", endpoint: str = "") -> ComponentNotice:
    return ComponentNotice(id=f"e{n}", at=float(n), source="test", tenant=tenant, endpoint=endpoint, message=f"number {n}")


def ids(events: list[AnyEvent]) -> list[str]:
    return [event.id for event in events]


@pytest.fixture
async def events(bus: Bus) -> AsyncIterator[EventLog]:
    log = await EventLog.open(bus)
    yield log
    await log.close()


async def stored(log: EventLog, count: int) -> None:
    async with asyncio.timeout(60):
        while True:
            # Right after a restart the stream may not answer yet.
            with contextlib.suppress(BusUnavailable):
                if len(await log.recent(count)) >= count:
                    return
            await asyncio.sleep(0.01)


async def test_every_kind_comes_back_as_it_was(events: EventLog) -> None:
    told: list[AnyEvent] = [
        notice(1),
        EndpointChanged(id="e2", at=2.0, source="test", tenant="000000000000", endpoint="chat", status="InService"),
        DecisionMade(id="e3", at=3.0, source="test", action="wake", reason="1 waits", inputs={"queued": 1, "rung": None}),
    ]
    for event in told:
        await events.publish(event)
    await stored(events, 3)
    assert await events.recent(10) == told
    assert await events.recent(2) == told[1:]
    assert await events.recent(0) == []


async def test_recent_of_one_endpoint_looks_as_far_back_as_needed(events: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standby.bus.events.FIRST_WINDOW", 10)
    for n in range(300):
        await events.publish(notice(n, "000000000000", "rare" if n % 100 == 0 else "busy"))
    await stored(events, 300)
    assert ids(await events.recent(2, "000000000000", "rare")) == ["e100", "e200"]
    assert ids(await events.recent(50, endpoint="rare")) == ["e0", "e100", "e200"]
    assert await events.recent(5, "999999999999") == []


async def test_follow_replays_then_goes_on_and_tells_nothing_twice(server: NatsServer, events: EventLog) -> None:
    for n in range(10):
        await events.publish(notice(n))
    await stored(events, 10)
    heard: list[AnyEvent] = []
    async with server.bus() as other:
        follower = EventLog(other)
        following = asyncio.create_task(follower.follow(heard.append, replay_last=5))
        for n in range(10, 200):
            await events.publish(notice(n))
            await asyncio.sleep(0)
        subscription = await following
        await until(lambda: bool(heard) and heard[-1].id == "e199", "last event heard")
        await subscription.unsubscribe()
    first = int(heard[0].id[1:])
    assert first >= 5
    assert ids(heard) == [f"e{n}" for n in range(first, 200)]


async def test_looking_back_leaves_no_consumer_behind(bus: Bus, events: EventLog) -> None:
    await events.publish(notice(1))
    await stored(events, 1)
    for _ in range(5):
        await events.recent(3)
    assert (await bus.jetstream.stream_info(subjects.EVENTS_STREAM)).state.consumer_count == 0


async def test_without_the_server_events_wait_and_only_the_oldest_beyond_the_limit_are_lost(
    server: NatsServer, bus: Bus
) -> None:
    events = await EventLog.open(bus, queue_limit=5)
    await server.stop(kill=True)
    await until(lambda: not bus.connected, "loss noticed")
    for n in range(8):
        await events.publish(notice(n))
    assert bus.statistics().events_dropped == 3
    await server.start()
    await stored(events, 5)
    assert ids(await events.recent(10)) == ["e3", "e4", "e5", "e6", "e7"]
    await events.close()


async def test_an_event_of_an_unknown_kind_is_skipped_and_counted(bus: Bus, events: EventLog) -> None:
    await bus.publish("events._._.novelty", b'{"kind": "novelty", "id": "x"}')
    await events.publish(notice(1))
    await stored(events, 1)
    assert ids(await events.recent(10)) == ["e1"]
    assert bus.statistics().undecodable_values >= 1


async def test_an_event_that_is_too_big_is_dropped_and_those_after_it_are_sent(events: EventLog, bus: Bus) -> None:
    huge = notice(1).model_copy(update={"message": "x" * 9_000_000})
    await events.publish(huge)
    await events.publish(notice(2))
    await stored(events, 1)
    assert ids(await events.recent(10)) == ["e2"]
    assert bus.counters.events_dropped == 1
