"""Ending tasks for certain."""

from __future__ import annotations

import asyncio
import contextlib

from standby.host.tasks import end


async def test_a_task_that_loses_a_cancellation_ends_all_the_same() -> None:
    lost = 0

    async def stubborn() -> None:
        nonlocal lost
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await end([task], again_s=0.01)
    assert task.cancelled()
    assert lost == 1


async def test_what_has_ended_already_is_left_alone() -> None:
    async def failing() -> None:
        raise ValueError

    task = asyncio.create_task(failing())
    await asyncio.wait({task})
    await end([task])
    assert isinstance(task.exception(), ValueError)
