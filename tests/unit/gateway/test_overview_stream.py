"""Who reads a stream of the overview, and who does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from standby.gateway.api.overview import Stream

Message = MutableMapping[str, Any]
SCOPE: dict[str, Any] = {"type": "http", "asgi": {"spec_version": "2.3"}}


async def never() -> Message:
    """The caller neither says anything nor leaves."""
    await asyncio.Event().wait()
    raise AssertionError("nothing sets it")


async def test_a_stream_that_nobody_reads_ends_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who takes nothing would otherwise keep the feed running, and its last overview, for as long as it likes."""
    monkeypatch.setattr(Stream, "patience_s", 0.01)
    closed: list[str] = []

    async def pieces() -> AsyncGenerator[str, None]:
        try:
            yield "event: overview\n\n"
            yield "event: change\n\n"
        finally:
            closed.append("closed")

    async def send(message: Message) -> None:
        if message.get("body"):
            await asyncio.Event().wait()

    async with asyncio.timeout(30):
        await Stream(pieces())(SCOPE, never, send)

    assert closed == ["closed"]


async def test_a_caller_who_leaves_while_something_is_sent_leaves_nothing() -> None:
    closed: list[str] = []
    sending = asyncio.Event()

    async def pieces() -> AsyncGenerator[str, None]:
        try:
            yield "event: overview\n\n"
        finally:
            closed.append("closed")

    async def send(message: Message) -> None:
        if message.get("body"):
            sending.set()
            await asyncio.Event().wait()

    async def receive() -> Message:
        await sending.wait()
        return {"type": "http.disconnect"}

    async with asyncio.timeout(30):
        await Stream(pieces())(SCOPE, receive, send)

    assert closed == ["closed"]
