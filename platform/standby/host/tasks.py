"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

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
