"""Awaitables stepped without a task of their own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from standby.gateway.client_watch import ClientWatch
from standby.gateway.inline import Inline


class Ending:
    """How an awaitable ended."""

    def __init__(self) -> None:
        self.happened = asyncio.Event()
        self.value: Any = None
        self.error: Exception | None = None

    def __call__(self, value: Any, error: Exception | None) -> None:
        self.value, self.error = value, error
        self.happened.set()


async def test_what_does_not_wait_is_done_at_once() -> None:
    async def now() -> int:
        return 7

    assert Inline.run(now(), Ending()) == (True, 7, None)


async def test_what_waits_goes_on_when_its_future_is_done() -> None:
    gate, ending = asyncio.Event(), Ending()

    async def later() -> int:
        await gate.wait()
        await asyncio.sleep(0)
        return 8

    finished, _, rest = Inline.run(later(), ending)
    assert not finished
    assert rest is not None
    gate.set()
    await ending.happened.wait()
    assert (ending.value, ending.error) == (8, None)


async def test_error_at_once_is_raised_and_a_later_one_is_told() -> None:
    gate, ending = asyncio.Event(), Ending()

    async def fail(wait: bool) -> None:
        if wait:
            await gate.wait()
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Inline.run(fail(False), ending)
    Inline.run(fail(True), ending)
    gate.set()
    await ending.happened.wait()
    assert isinstance(ending.error, OSError)


@pytest.mark.parametrize("bare", [False, True])
async def test_cancelled_awaitable_is_closed_and_silent(bare: bool) -> None:
    gate, ending, closed = asyncio.Event(), Ending(), []

    async def waits() -> None:
        try:
            await (asyncio.sleep(0) if bare else gate.wait())
        finally:
            closed.append(True)

    _, _, rest = Inline.run(waits(), ending)
    assert rest is not None
    rest.cancel()
    gate.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert closed == [True]
    assert not ending.happened.is_set()


async def test_watch_tells_once_that_the_client_has_left() -> None:
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()
    watch = ClientWatch(messages.get, gone.set)
    messages.put_nowait({"type": "http.request"})
    await asyncio.sleep(0)
    assert not gone.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.wait_for(gone.wait(), 30)
    watch.stop()


async def test_stopped_watch_is_silent() -> None:
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    gone = asyncio.Event()
    watch = ClientWatch(messages.get, gone.set)
    watch.stop()
    watch.stop()
    messages.put_nowait({"type": "http.disconnect"})
    await asyncio.sleep(0)
    assert not gone.is_set()


async def test_failing_receive_counts_as_a_client_that_left() -> None:
    gone = asyncio.Event()
    failing = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await failing.wait()
        raise ConnectionError

    ClientWatch(receive, gone.set)
    failing.set()
    await asyncio.wait_for(gone.wait(), 30)
