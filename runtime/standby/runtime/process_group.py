"""Ends what is left of an engine: every process of its group, and those that slipped out of it.

An engine is more than its first process: helpers outlive a leader that was killed, hold its memory and its locks, and
are handed to the agent or to process 1. They are known by two things that they inherit: the group or session number,
and a mark in the environment that they were started with, which no other process carries. Names are never looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Final

from standby.domain.errors import EngineError
from standby.runtime.children import bury, strays_of
from standby.runtime.engines import child_protocol
from standby.runtime.procfs import ProcessStat, environment_holds, process_stat, processes

MARK_VARIABLE: Final = child_protocol.MARK_VARIABLE
KILL_LIMIT_S = 10.0


def members(mark: str, *, group: int | None = None) -> tuple[ProcessStat, ...]:
    """Return the living processes that belong to an engine.

    ``group`` may be given only while that number cannot be anyone else's: its leader is known to be the engine's, or
    is a zombie that has not been waited for. Otherwise the mark alone decides.
    """
    assignment = f"{MARK_VARIABLE}={mark}"
    return tuple(
        stat
        for stat in processes()
        if stat.alive
        and stat.pid != os.getpid()
        and ((group is not None and group in (stat.group, stat.session)) or environment_holds(stat.pid, assignment))
    )


async def kill_members(mark: str, *, group: int | None = None, limit_s: float = KILL_LIMIT_S) -> tuple[int, ...]:
    """Send SIGKILL to every member and return their pids once all are gone.

    Looks again after each round, as a process may fork between the look and the kill. Members that have become children
    of ours and that nobody will wait for are waited for here, so that no zombie stays.
    Raises EngineError when one is still there after ``limit_s`` seconds (it hangs in the kernel, state D).
    """
    killed: list[int] = []
    deadline = asyncio.get_running_loop().time() + limit_s
    while alive := members(mark, group=group):
        try:
            await _kill(alive, deadline - asyncio.get_running_loop().time())
        except TimeoutError as error:
            stuck = ", ".join(f"{stat.pid} (state {stat.state})" for stat in members(mark, group=group))
            raise EngineError(
                f"processes {stuck} of the engine did not end within {limit_s:g} s of SIGKILL",
                remedy="they hang in the kernel; look at the disk or the device they use",
            ) from error
        killed.extend(stat.pid for stat in alive)
    return tuple(killed)


async def bury_strays(group: int, *, limit_s: float = KILL_LIMIT_S) -> None:
    """Wait for ended helpers of a group that became ours by the end of its first process: no zombie of it stays.

    Called once the first process has ended, and before its number may be anyone else's. What looks ended and still ends is
    waited for; EngineError when that takes longer than ``limit_s``.
    """
    strays = strays_of(group)
    try:
        await _kill(strays, limit_s)
    except TimeoutError as error:
        stuck = ", ".join(str(stat.pid) for stat in strays_of(group))
        raise EngineError(
            f"processes {stuck} of the engine look ended and did not end within {limit_s:g} s",
            remedy="they hang in the kernel; look at the disk or the device they use",
        ) from error


async def _kill(stats: Sequence[ProcessStat], limit_s: float) -> None:
    """Send SIGKILL to exactly these processes, wait until all have ended, and bury those that are ours. Raises TimeoutError."""
    handles = [handle for stat in stats if (handle := _open(stat)) is not None]
    try:
        for handle in handles:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*(wait_readable(handle) for handle in handles)), limit_s)
    finally:
        for handle in handles:
            os.close(handle)
    bury(stats)


async def wait_readable(descriptor: int) -> None:
    """Return once ``descriptor`` can be read; a process handle (pidfd) can when its process has ended."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()

    def wake() -> None:
        loop.remove_reader(descriptor)
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(descriptor, wake)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)


def _open(stat: ProcessStat) -> int | None:
    """Return a handle on exactly this process; None when it has gone, even if its number is in use again."""
    try:
        handle = os.pidfd_open(stat.pid)
    except ProcessLookupError:
        return None
    now = process_stat(stat.pid)
    if now is None or now.start_ticks != stat.start_ticks:
        os.close(handle)
        return None
    return handle
