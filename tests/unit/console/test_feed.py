"""One state for all viewers: who watches, how often, and what a slow one gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

from standby.console.feed import FASTEST_S, FRESH_S, SLOWEST_S, Feed
from standby.console.news import Rings
from standby.console.values import EndpointKey, Facts, Moment, Row, Scope, Traffic
from support.builders import TENANT, an_endpoint
from support.clock import Clock
from support.waiting import until

SCOPE = Scope(TENANT)
E: EndpointKey = (TENANT, "e")


class Platform:
    """A platform of one endpoint, whose requests tests count."""

    def __init__(self) -> None:
        self.requests = 0
        self.looks = 0
        self.clock = Clock()
        self.feed = Feed(self.look, self.saved, Rings(), self.clock)

    def look(self) -> Generator[None, None, Facts]:
        self.looks += 1
        yield
        return Facts(Moment(self.clock.now, 0.0, "gateway/g"), (an_endpoint(),), traffic={E: Traffic(requests=self.requests)})

    def saved(self, _scope: Scope) -> Row:
        return {"saved_usd": 0.0}

    def watch(self, every_s: float = FASTEST_S, still: Callable[[], bool] = lambda: True) -> AsyncGenerator[str, None]:
        return self.feed.watch(SCOPE, every_s, still, heartbeat_s=10.0)


def told(piece: str) -> tuple[str, dict[str, Any]]:
    kind, data = piece.split("\n")[:2]
    return kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def test_first_everything_then_what_changed() -> None:
    platform = Platform()
    stream = platform.watch()

    kind, overview = told(await anext(stream))
    platform.requests = 7
    platform.clock.now += 1
    changed, change = told(await anext(stream))
    await stream.aclose()

    assert (kind, changed) == ("overview", "change")
    assert overview["endpoints"][0]["requests"] == 0
    assert change["endpoints"][0]["requests"] == 7
    assert set(change) == {"at", "endpoints", "totals"}


async def test_whoever_reads_slowly_gets_one_change_with_all_of_it() -> None:
    """No backlog: while it did not read, nothing was made for it."""
    platform = Platform()
    stream = platform.watch()
    await anext(stream)
    looks = platform.looks

    for _ in range(1000):
        platform.requests += 1
        platform.clock.now += 1
    await asyncio.sleep(0)
    _, change = told(await anext(stream))
    await stream.aclose()

    assert change["endpoints"][0]["requests"] == 1000
    assert platform.looks == looks + 1


async def test_viewers_of_one_scope_share_what_is_made() -> None:
    platform = Platform()
    streams = [platform.watch() for _ in range(20)]
    first = [await anext(stream) for stream in streams]
    platform.requests, platform.clock.now = 1, platform.clock.now + 1

    changes = await asyncio.gather(*(anext(stream) for stream in streams))
    for stream in streams:
        await stream.aclose()

    assert len(set(first)) == len(set(changes)) == 1
    assert platform.looks == 2


async def test_a_slow_viewer_is_not_told_at_a_fast_ones_pace() -> None:
    platform = Platform()
    fast, slow = platform.watch(), platform.watch(10.0)
    await anext(slow)
    await anext(fast)
    waiting = asyncio.ensure_future(anext(slow))

    for _ in range(3):
        platform.requests, platform.clock.now = platform.requests + 1, platform.clock.now + 1
        await anext(fast)
    early = waiting.done()
    platform.clock.now += 10
    _, change = told(await waiting)
    await fast.aclose()
    await slow.aclose()

    assert not early
    assert change["endpoints"][0]["requests"] == 3


async def test_nothing_runs_while_nobody_watches() -> None:
    platform = Platform()
    stream = platform.watch()
    await anext(stream)
    watched, loop = platform.feed.watched, platform.feed._loop

    await stream.aclose()

    assert watched
    assert loop is not None
    assert loop.done()
    assert not platform.feed.watched
    assert platform.feed._tick is None


async def test_a_stream_ends_as_soon_as_it_may_not_go_on() -> None:
    platform = Platform()
    allowed = [True]
    stream = platform.watch(600.0, still=lambda: allowed[0])
    await anext(stream)
    ending = asyncio.ensure_future(anext(stream, "ended"))

    await asyncio.sleep(0)
    allowed[0] = False
    platform.feed.wake()

    async with asyncio.timeout(30):
        assert await ending == "ended"
    assert not platform.feed.watched


async def test_a_quiet_platform_still_shows_that_the_stream_lives() -> None:
    platform = Platform()
    stream = platform.watch()
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)

    platform.clock.now += 11
    piece = await waiting
    await stream.aclose()

    assert piece == ": alive\n\n"


async def test_the_slowest_viewer_hears_that_the_stream_lives_just_as_soon() -> None:
    """Its own pace is as long as the heart beat's: beats that waited for it would come twice as late as promised."""
    platform = Platform()
    stream = platform.watch(SLOWEST_S)
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))

    platform.clock.now += SLOWEST_S * 0.95
    platform.feed.wake()
    await asyncio.sleep(0)
    platform.clock.now += 1
    platform.feed.wake()
    piece = await waiting
    await stream.aclose()

    assert piece == ": alive\n\n"


async def test_a_viewer_who_goes_away_in_the_middle_leaves_nothing() -> None:
    platform = Platform()

    async def view() -> None:
        async for _ in platform.watch():
            pass

    viewer = asyncio.create_task(view())
    await until(lambda: platform.feed.watched)
    viewer.cancel()
    await asyncio.gather(viewer, return_exceptions=True)

    await until(lambda: not platform.feed.watched)


async def test_a_platform_that_takes_long_to_look_at_is_looked_at_less_often() -> None:
    """The loop that serves requests makes it all: however fast viewers want it, nine tenths of its time are theirs."""
    platform = Platform()
    look = platform.feed.look

    def slowly() -> Generator[None, None, Facts]:
        platform.clock.now += 0.2
        return look()

    platform.feed.look = slowly
    for _ in range(30):
        await platform.feed.text(SCOPE)
        platform.clock.now += 0.2

    assert platform.looks == 4


async def test_one_question_after_the_other_is_answered_from_what_was_just_made() -> None:
    """Whoever asks in a loop costs the gateway one look each twentieth of a second, and never gets what is older."""
    platform = Platform()

    texts = {await platform.feed.text(SCOPE) for _ in range(100)}

    looks = platform.looks
    platform.requests, platform.clock.now = 1, platform.clock.now + 2 * FRESH_S
    after = json.loads(await platform.feed.text(SCOPE))

    assert len(texts) == 1
    assert looks == 1
    assert after["endpoints"][0]["requests"] == 1
