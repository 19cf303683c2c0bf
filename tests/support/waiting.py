"""Waits for what no event tells: another process, another connection, a copy that follows."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

LIMIT_S: Final = 15.0
"""Ends a test that would hang; shorter than the 19 s for which a watch may be deaf and the 30 s between two listings."""
_FIRST_PAUSE_S: Final = 0.002
_LONGEST_PAUSE_S: Final = 0.05


async def until(condition: Callable[[], object | Awaitable[object]], what: str = "", within_s: float = LIMIT_S) -> None:
    """Look until ``condition()``, which may be a coroutine function, holds; fail with ``what`` at the deadline."""
    pause = _FIRST_PAUSE_S
    try:
        async with asyncio.timeout(within_s):
            while not await _value(condition):
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    except TimeoutError:
        raise AssertionError(f"not within {within_s:g} s: {what or inspect.getsource(condition).strip()}") from None


async def _value(condition: Callable[[], object | Awaitable[object]]) -> object:
    found = condition()
    return await found if inspect.isawaitable(found) else found
