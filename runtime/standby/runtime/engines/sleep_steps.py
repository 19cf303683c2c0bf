"""What the engines' ways to fall asleep have in common: nothing may run, all must stop, and memory is looked at."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from standby.domain.errors import EngineError
from standby.runtime.activity import tree_of
from standby.runtime.engines.base import EngineHandle, EngineLoad
from standby.runtime.procfs import held, process_stat


def refuse_busy(load: EngineLoad) -> None:
    """Raise EngineError where the engine has anything to do."""
    if load.running or load.waiting:
        raise EngineError(
            f"engine still works on {load.running} requests, {load.waiting} wait; it is not put to sleep",
            remedy="drain it first",
        )


async def members_of(handle: EngineHandle) -> tuple[int, ...]:
    """Return the pids of the engine's living processes."""
    return await asyncio.to_thread(tree_of, handle.process.mark, handle.pid)


async def memory_of(handle: EngineHandle) -> int:
    """Return the memory of its processes in bytes, what they share divided among those who share it."""
    return await asyncio.to_thread(lambda: sum(map(held, tree_of(handle.process.mark, handle.pid))))


async def until_stopped(handle: EngineHandle, pids: Iterable[int], *, limit_s: float, look_s: float) -> None:
    """Return once ``pids`` are stopped. Raises EngineError when the first process has ended, or at the limit.

    The kernel tells nobody but a tracer of a stop by event, hence the looks. An ended one of the others counts as stopped.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    waiting = {handle.pid, *pids}
    while loop.time() < deadline:
        found = {pid: stat for pid in waiting if (stat := process_stat(pid)) is not None and stat.alive}
        if handle.process.status is not None or (handle.pid in waiting and handle.pid not in found):
            raise EngineError("engine ended while it was being suspended", remedy="see its log")
        waiting = {pid for pid, stat in found.items() if not stat.stopped}
        if not waiting:
            return
        await asyncio.sleep(look_s)
    raise EngineError(f"engine did not stop within {limit_s:g} s of being told to sleep", remedy="stop it")
