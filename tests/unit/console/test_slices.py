"""Ten thousand endpoints are looked at in slices: whoever else needs the loop has his turn in between."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator

import pytest

from standby.console.feed import FASTEST_S, Feed
from standby.console.news import Rings
from standby.console.slices import ROWS, sliced
from standby.console.values import Facts, Moment, Row, Scope
from standby.host.tasks import by_turns
from support.builders import TENANT, an_endpoint, an_instance
from support.clock import Clock
from support.slices import at_once

MANY = 3 * ROWS + 1


def counting(clock: Clock, slices: int) -> Generator[None, None, str]:
    for _ in range(slices):
        clock.now += 2.0
        yield
    return "done"


def test_slices_have_all_of_it_in_its_order() -> None:
    parts = sliced(list(range(MANY)))
    assert [len(part) for part in parts] == [ROWS, ROWS, ROWS, 1]
    assert [number for part in parts for number in part] == list(range(MANY))
    assert sliced([]) == []


async def test_others_have_their_turn_and_their_time_is_not_the_works() -> None:
    clock, turns = Clock(), 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            clock.now += 100.0
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    told = await by_turns(counting(clock, 5), clock)
    task.cancel()
    assert told == ("done", 10.0)
    assert turns >= 4
    assert at_once(counting(clock, 5)) == "done"


async def test_a_viewer_who_leaves_in_the_middle_leaves_nothing_half_done() -> None:
    """The next one has it made again, and everything of it is there."""
    endpoints = tuple(an_endpoint(name=f"e{number}") for number in range(MANY))
    instances = tuple(an_instance(id=f"i{number}", endpoint=f"e{number}") for number in range(MANY))
    clock = Clock()

    def look() -> Generator[None, None, Facts]:
        yield
        return Facts(Moment(clock.now, 0.0, "gateway/g"), endpoints, instances)

    def saved(_scope: Scope) -> Row:
        return {"saved_usd": 0.0}

    feed = Feed(look, saved, Rings(), clock)
    leaving = asyncio.create_task(feed.text(Scope(TENANT)))
    for _ in range(4):
        await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    stream = feed.watch(Scope(TENANT), FASTEST_S, lambda: True, heartbeat_s=10.0)
    first, text = await asyncio.gather(anext(stream), feed.text(Scope(TENANT)))
    await stream.aclose()
    whole = json.loads(text)
    assert json.loads(first.split("\n")[1].removeprefix("data: ")) == whole
    assert {row["name"] for row in whole["endpoints"]} == {one.name for one in endpoints}
    assert len(whole["instances"]) == MANY
    assert list(whole)[:3] == ["at", "since", "gateway"]
