"""Waiting for an endpoint ends when it is told to, whatever else happens in that moment."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from standby.cli.client import Client
from standby.cli.progress import Climb
from standby.cli.waiting import wait_for

STARTING = {
    "status": "InService",
    "rung": "cold",
    "state": "starting",
    "instances": [],
    "variants": [{"policy": {"min_ready": 1}}],
}


class Told:
    """A client whose endpoint starts for ever, and of which there is news when ``go`` is set."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.asked = asyncio.Event()

    async def call(self, _method: str, _path: str) -> dict[str, Any]:
        self.asked.set()
        return STARTING

    async def events(self, _name: str) -> AsyncIterator[dict[str, Any]]:
        await self.go.wait()
        yield {"kind": "endpoint"}
        await asyncio.Event().wait()


class Silent:
    """Shows nothing."""

    def note(self, _state: str) -> None:
        """Take a state."""

    def feed(self, _event: dict[str, Any]) -> None:
        """Take an event."""


@pytest.mark.parametrize("turns", range(8))
async def test_an_interruption_that_comes_with_news_is_not_lost(turns: int) -> None:
    """Ctrl-C cancels the task: in each of the loop's turns between an event and the next look it has to end the wait."""
    client = Told()
    waiting = asyncio.create_task(wait_for(cast("Client", client), "e", None, 60.0, cast("Climb", Silent())))
    async with asyncio.timeout(60):
        await client.asked.wait()
        await asyncio.sleep(0)
        client.go.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting], timeout=30.0)
    lost = not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not lost
    assert waiting.cancelled()
