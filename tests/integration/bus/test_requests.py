"""Questions over the bus: answers, errors that cross it whole, nobody there, nobody answering."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from standby.bus.connection import Bus
from standby.bus.replies import MAX_SERVED
from standby.domain.errors import Conflict, StandbyError, Unavailable
from support.nats_server import NatsServer


async def test_answer(bus: Bus, server: NatsServer) -> None:
    async def handler(subject: str, payload: bytes) -> bytes:
        return subject.encode() + b" heard " + payload

    async with server.bus() as other:
        await other.serve("command.n1", handler)
        # Behind the subscription on the same connection: from here on the server knows it.
        assert await other.request("command.n1", b"own", 60) == b"command.n1 heard own"
        assert await bus.request("command.n1", b"x", 60) == b"command.n1 heard x"


async def test_error_comes_whole(bus: Bus) -> None:
    """Class, message, remedy and delay are those that the handler raised."""

    async def handler(_subject: str, _payload: bytes) -> bytes:
        raise Conflict("artifact abc is in use by chat-0", remedy="stop it", retry_after_s=2.5)

    await bus.serve("command.n1", handler)
    with pytest.raises(Conflict, match="in use by chat-0; stop it") as caught:
        await bus.request("command.n1", b"", 60)
    assert caught.value.retry_after_s == 2.5


async def test_unforeseen_failure_is_an_internal_error_without_details(bus: Bus) -> None:
    async def handler(_subject: str, _payload: bytes) -> bytes:
        raise RuntimeError("secret")

    await bus.serve("command.n1", handler)
    with pytest.raises(StandbyError, match=r"the handler of command.n1 failed") as caught:
        await bus.request("command.n1", b"", 60)
    assert (type(caught.value), caught.value.code) == (StandbyError, "internal_error")
    assert "secret" not in str(caught.value)
    assert bus.statistics().callback_failures == 1


async def test_nobody_there_is_said_at_once(bus: Bus) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(Unavailable, match=r"nobody answers on command.n9"):
            await bus.request("command.n9", b"", 600)


async def test_no_answer_in_time(bus: Bus) -> None:
    never = asyncio.Event()

    async def handler(_subject: str, _payload: bytes) -> bytes:
        await never.wait()
        return b""

    await bus.serve("command.n1", handler)
    with pytest.raises(Unavailable, match=r"no answer on command.n1 within 0.1 s, outcome unknown"):
        await bus.request("command.n1", b"", 0.1)


async def test_a_slow_question_does_not_hold_up_the_next(bus: Bus) -> None:
    go = asyncio.Event()

    async def handler(_subject: str, payload: bytes) -> bytes:
        if payload == b"slow":
            await go.wait()
        return payload

    await bus.serve("command.n1", handler)
    slow = asyncio.create_task(bus.request("command.n1", b"slow", 60))
    assert await bus.request("command.n1", b"quick", 60) == b"quick"
    go.set()
    assert await slow == b"slow"


async def test_too_many_at_once_are_refused_in_words(bus: Bus) -> None:
    go, begun = asyncio.Event(), asyncio.Semaphore(0)

    async def handler(_subject: str, payload: bytes) -> bytes:
        begun.release()
        await go.wait()
        return payload

    await bus.serve("command.n1", handler)
    waiting = [asyncio.create_task(bus.request("command.n1", b"", 60)) for _ in range(MAX_SERVED)]
    for _ in range(MAX_SERVED):
        await begun.acquire()
    with pytest.raises(Unavailable, match=f"answers {MAX_SERVED} questions already"):
        await bus.request("command.n1", b"", 60)
    go.set()
    assert await asyncio.gather(*waiting) == [b""] * MAX_SERVED


async def test_server_keeps_serving_after_a_reconnect(bus: Bus, server: NatsServer) -> None:
    async def handler(_subject: str, payload: bytes) -> bytes:
        return payload

    async with server.bus() as other:
        await other.serve("command.n1", handler)
        came_back = [asyncio.Event(), asyncio.Event()]
        for each, event in zip((bus, other), came_back, strict=True):
            each.on_reconnect(_setter(event))
        await server.restart(kill=True)
        async with asyncio.timeout(60):
            for event in came_back:
                await event.wait()
        await other.flush()
        assert await bus.request("command.n1", b"x", 60) == b"x"


def _setter(event: asyncio.Event) -> Callable[[], Awaitable[None]]:
    async def call() -> None:
        event.set()

    return call
