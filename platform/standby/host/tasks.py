"""Ending tasks for certain, and long work that lets others have their turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, TypeVar

Result = TypeVar("Result")

AGAIN_S: Final = 0.25


async def end(tasks: Iterable[asyncio.Future[Any]], *, again_s: float = AGAIN_S) -> None:
    """Cancel ``tasks``, and again every ``again_s`` seconds, until all have ended; what they raise is left in them.

    Once is not enough: ``asyncio.wait_for`` of Python 3.11, which the NATS library uses throughout, loses a cancellation
    that meets the end of what it waits for, and its task then goes on as if nothing had been said.
    """
    waiting = {task for task in tasks if not task.done()}
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=again_s)


async def by_turns(work: Generator[None, None, Result], clock: Callable[[], float]) -> tuple[Result, float]:
    """Return the result of work between whose slices everybody else had his turn, and the seconds that it took itself."""
    took_s = 0.0
    while True:
        began = clock()
        try:
            next(work)
        except StopIteration as done:
            return done.value, took_s + clock() - began
        took_s += clock() - began
        await asyncio.sleep(0)
