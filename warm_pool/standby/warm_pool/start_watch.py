"""Lets a start take as long as it moves: its limit ends only one that stands still (field case B32).

What moves: the log grows, processor time passes, bytes are read, memory is filled. A hard cap ends also what moves for ever.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import Final

from standby.host import tasks
from standby.runtime.activity import tree_of, use_of
from standby.runtime.engines.base import EngineAdapter, EngineHandle, StartFailure, describe

HARD_CAP: Final = 10
LOOK_S: Final = 2.0
QUIET_S: Final = 30.0
# Of one processor; answering the questions of whoever waits takes a hundredth.
_PROCESSOR_SHARE: Final = 0.05
_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class StartSample:
    """One look at a start: monotonic clock, size of its log, processor seconds, bytes read, bytes resident."""

    at: float
    log_bytes: int = 0
    processor_s: float = 0.0
    read_bytes: int = 0
    resident_bytes: int = 0


@dataclass(frozen=True, slots=True)
class StartProgress:
    """``moved_at``: when the start last moved; ``last``: the look before."""

    began: float
    moved_at: float
    last: StartSample


def start_progress(before: StartProgress | None, sample: StartSample) -> StartProgress:
    """Return the progress with one more look, held against the one before: a little here and there is no movement."""
    if before is None:
        return StartProgress(sample.at, sample.at, sample)
    last = before.last
    moved = (
        sample.log_bytes != last.log_bytes
        or sample.processor_s - last.processor_s >= _PROCESSOR_SHARE * max(sample.at - last.at, 0.1)
        or sample.read_bytes - last.read_bytes >= _BYTES
        or sample.resident_bytes - last.resident_bytes >= _BYTES
    )
    return replace(before, moved_at=sample.at if moved else before.moved_at, last=sample)


def start_overdue(progress: StartProgress, limit_s: float, now: float) -> str:
    """Return why the start is to be ended now, or nothing."""
    taken, quiet = now - progress.began, now - progress.moved_at
    if taken >= HARD_CAP * limit_s:
        return f"engine did not load within {HARD_CAP * limit_s:g} s, {HARD_CAP} times its limit, although it moved"
    if taken >= limit_s and quiet >= min(QUIET_S, limit_s):
        return f"engine did not load within {limit_s:g} s and has not moved for {quiet:.0f} s"
    return ""


async def wait_while_it_moves(
    adapter: EngineAdapter,
    handle: EngineHandle,
    limit_s: float,
    *,
    look_s: float = LOOK_S,
) -> None:
    """Wait until the engine has loaded. Raises StartFailure when it ended, stands still beyond the limit, or moves for ever."""
    loading = asyncio.ensure_future(adapter.wait_loaded(handle, HARD_CAP * limit_s + look_s))
    try:
        progress = start_progress(None, StartSample(time.monotonic()))
        while not await _done_within(loading, _pause(progress, limit_s, look_s)):
            progress = start_progress(progress, await asyncio.to_thread(look_at, handle))
            reason = start_overdue(progress, limit_s, time.monotonic())
            if reason and not loading.done():
                raise StartFailure(describe(handle, reason, code="engine_load_timeout"), remedy="raise activation_limit")
        loading.result()
    finally:
        await tasks.end([loading])


def look_at(handle: EngineHandle) -> StartSample:
    """Return what the engine's processes and its log show now. Blocks for milliseconds: not for the event loop."""
    use = use_of(tree_of(handle.process.mark, handle.pid))
    try:
        log_bytes = handle.log.stat().st_size
    except OSError:
        log_bytes = 0
    return StartSample(
        at=time.monotonic(),
        log_bytes=log_bytes,
        processor_s=use.processor_s,
        read_bytes=use.read_bytes,
        resident_bytes=use.resident_bytes,
    )


async def _done_within(loading: asyncio.Future[None], seconds: float) -> bool:
    await asyncio.wait([loading], timeout=seconds)
    return loading.done()


def _pause(progress: StartProgress, limit_s: float, look_s: float) -> float:
    """Look rarely, but right when the limit is over."""
    left = progress.began + limit_s - time.monotonic()
    return min(look_s, left) if left > 0 else look_s
