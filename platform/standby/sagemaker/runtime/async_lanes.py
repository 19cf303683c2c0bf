"""Which lanes of the queue this gateway works on: those with work, each with the endpoint's own limit."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Final

from standby.bus.lanes import Lanes
from standby.domain.errors import BusUnavailable
from standby.host import tasks as host_tasks
from standby.sagemaker.runtime.async_context import AsyncContext
from standby.sagemaker.runtime.async_request import at_once
from standby.sagemaker.runtime.async_worker import AsyncWorker
from standby.telemetry import metrics

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0
IDLE_S: Final = 60.0
# Of one endpoint in one gateway: each holds its input and its answer in memory.
MAX_HERE: Final = 64
# For what was left by an endpoint that is gone.
LEFTOVERS: Final = 8


class AsyncLanes:
    """Looks every ``look_s`` seconds where there is work; ``start`` and ``stop`` it."""

    def __init__(self, context: AsyncContext, worker: AsyncWorker, *, look_s: float = LOOK_S, idle_s: float = IDLE_S) -> None:
        self._context = context
        self._lanes: Lanes = context.lanes
        self._worker = worker
        self._look_s = look_s
        self._idle_s = idle_s
        self._running: dict[str, asyncio.Task[None]] = {}
        self._limits: dict[str, int] = {}
        self._idle_since: dict[str, float] = {}
        self._shown: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the queue and begin. Raises BusUnavailable."""
        await self._lanes.open()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End; what is under way goes back into the queue at once, and a later knock begins nothing."""
        task, self._task = self._task, None
        if task is not None:
            await host_tasks.end([task])
        await host_tasks.end(self._running.values())
        self._running.clear()
        self._show({})

    def knock(self, lane: str) -> None:
        """Work on a lane from now on: something was put there."""
        if self._task is not None:
            self._begin(lane)

    @property
    def working(self) -> set[str]:
        """The lanes that are worked on here."""
        return set(self._running)

    async def _run(self) -> None:
        while True:
            try:
                await self._look(await self._lanes.waiting())
            except BusUnavailable as error:
                log.warning("asynchronous invocations: %s", error.message)
                with suppress(BusUnavailable):  # the stream may have been lost with the server's store
                    await self._lanes.open()
            await asyncio.sleep(self._look_s)

    async def _look(self, waiting: dict[str, int]) -> None:
        now = asyncio.get_running_loop().time()
        self._show(waiting)
        for lane in waiting:
            self._begin(lane)
            self._idle_since.pop(lane, None)
        for lane, task in list(self._running.items()):
            if task.done():
                # Only what its worker does not expect ends it; the next look begins it again.
                del self._running[lane]
                log.error("lane %s has ended: %r", lane, None if task.cancelled() else task.exception())
            elif lane not in waiting and now - self._idle_since.setdefault(lane, now) > self._idle_s:
                await self._end(lane)
            elif self._limit(lane) != self._limits[lane]:
                most = self._limit(lane)
                await self._lanes.limit(lane, most)
                self._limits[lane] = most

    def _begin(self, lane: str) -> None:
        if lane in self._running:
            return
        self._limits[lane] = self._limit(lane)
        work = self._lanes.work(lane, self._worker.handle, at_once=MAX_HERE, everywhere=lambda: self._limits[lane])
        self._running[lane] = asyncio.create_task(work)
        self._idle_since.pop(lane, None)

    async def _end(self, lane: str) -> None:
        del self._idle_since[lane]
        await host_tasks.end([self._running.pop(lane)])
        # A knock may have begun it again meanwhile.
        if lane not in self._running and self._served(lane) is None:
            await self._lanes.forget(lane)

    def _limit(self, lane: str) -> int:
        served = self._served(lane)
        return LEFTOVERS if served is None else served

    def _served(self, lane: str) -> int | None:
        tenant, _, endpoint = lane.partition(".")
        served = self._context.served(tenant, endpoint)
        return None if served is None else at_once(served.config)

    def _show(self, waiting: dict[str, int]) -> None:
        for lane in self._shown - set(waiting):
            metrics.ASYNC_QUEUED.remove(*lane.split(".", 1))
        for lane, count in waiting.items():
            metrics.ASYNC_QUEUED.labels(*lane.split(".", 1)).set(count)
        self._shown = set(waiting)
