"""A few threads for calls that nobody can interrupt."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class Crew:
    """At most ``size`` blocking calls at once; begun calls end by themselves, also after ``dismiss``.

    The threads are daemons: a read that hangs in a dead connection for its whole time limit must not keep the process
    from ending, as the threads of concurrent.futures would.
    """

    def __init__(self, size: int, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._size = size
        for number in range(size):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    async def run(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns; a call that was cancelled before it began never begins."""
        future: Future[T] = Future()
        self._calls.put(partial(_fulfil, future, call))
        return await asyncio.wrap_future(future)

    def dismiss(self) -> None:
        """Let each thread end after what it does now and what was ordered before."""
        for _ in range(self._size):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # holds a chunk's bytes alive otherwise


async def uninterrupted(call: Callable[[], T], *, on_cancel: Callable[[], None] | None = None) -> T:
    """Return what ``call`` returns, from a thread; a cancelled caller is held until it has ended.

    For calls that change the disk: what follows a cancellation must not meet them half done. ``on_cancel`` may tell the
    call to end early.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await asyncio.wait({work})
        if not work.cancelled():
            work.exception()  # seen
        raise


def _fulfil(future: Future[T], call: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - handed to whoever waits
        future.set_exception(error)
