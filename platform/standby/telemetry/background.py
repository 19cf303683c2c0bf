"""From an event loop to a thread: what need not be done while a request waits. Bounded; what does not fit is counted, and lost.

The loop's side costs an append. A batch goes over a moment later, in one piece, so that the thread is woken seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

T = TypeVar("T")

AFTER_S: Final = 0.2
LIMIT: Final = 4096

_log = logging.getLogger(__name__)


class Background(Generic[T]):
    """``work`` gets batches in the thread, one after the other. All methods belong to one event loop's thread.

    ``lost`` gets how many were lost and why, in either thread: ``queue`` where the work does not keep up, ``error`` where
    it raised, ``shutdown`` where it did not end in time.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[T]], None],
        *,
        lost: Callable[[int, str], None] = lambda _count, _why: None,
        limit: int = LIMIT,
        after_s: float = AFTER_S,
    ) -> None:
        self._name = name
        self._work = work
        self._lost = lost
        self._limit = limit
        self._after_s = after_s
        self._pending: list[T] = []
        self._batches: queue.SimpleQueue[list[T] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._over = asyncio.Event()
        # Each is changed by one thread only: the difference is what has not been worked off.
        self._added = 0
        self._done = 0

    def add(self, item: T) -> None:
        """Hand one over; never waits and never raises."""
        if self._closed or self._added - self._done >= self._limit:
            self._lost(1, "queue")
            return
        self._added += 1
        self._pending.append(item)
        if self._timer is None:
            self._loop = self._loop or asyncio.get_running_loop()
            self._timer = self._loop.call_later(self._after_s, self._hand_over)

    async def close(self, limit_s: float) -> None:
        """Let the thread work off what is there, for ``limit_s`` at most; a thread that hangs is left behind."""
        self._closed = True
        if self._timer is not None:
            self._hand_over()
        if self._thread is None or self._loop is None:
            return
        self._batches.put(None)
        try:
            async with asyncio.timeout(limit_s):
                await self._over.wait()
        except TimeoutError:
            self._lost(self._added - self._done, "shutdown")

    def _hand_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._pending = self._pending, []
        if self._thread is None:
            # A daemon: an exporter that hangs must not keep the process from ending.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._batches.put(batch)

    def _run(self) -> None:
        while (batch := self._batches.get()) is not None:
            try:
                self._work(batch)
            except Exception:  # noqa: BLE001 - whatever it is, the next batch may do, and no request may hear of it
                _log.exception("%s: a batch of %d was lost", self._name, len(batch))
                self._lost(len(batch), "error")
            self._done += len(batch)
        assert self._loop is not None  # set before the thread was started
        with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(self._over.set)
