"""Lets other tasks run, without any real time."""

from __future__ import annotations

import asyncio


async def turn() -> None:
    """Let every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)
