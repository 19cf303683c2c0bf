"""The worker of a queue: each item is kept until one worker has said that it is done."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeAlias

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from standby.bus.connection import Bus
from standby.domain.errors import BusUnavailable
from standby.host import tasks as host_tasks

log = logging.getLogger(__name__)

MESSAGE_ID_HEADER: Final = "Nats-Msg-Id"
# Short, because a pull request that was under way when the server went is never answered.
FETCH_S: Final = 2.0
PAUSE_S: Final = 0.25
FIRST_RETRY_S: Final = 1.0
LAST_RETRY_S: Final = 60.0


class Verdict(StrEnum):
    """What a handler says of an item."""

    DONE = "done"
    RETRY = "retry"
    REJECT = "reject"


@dataclass(frozen=True)
class WorkItem:
    """One item as a worker gets it; ``attempt`` begins at 1."""

    id: str
    payload: bytes
    attempt: int


WorkHandler: TypeAlias = Callable[[WorkItem], Awaitable[Verdict]]


class Worker:
    """Takes items from one durable consumer; ``reopen`` makes it where it is missing.

    ``ack_wait`` is how many seconds a silent worker keeps an item; a working one renews it at each third.
    """

    def __init__(
        self,
        bus: Bus,
        name: str,
        stream: str,
        consumer: str,
        ack_wait: float,
        reopen: Callable[[], Awaitable[None]],
    ) -> None:
        self._bus = bus
        self._name = name
        self._stream = stream
        self._consumer = consumer
        self._ack_wait = ack_wait
        self._reopen = reopen

    async def run(self, handler: WorkHandler, *, at_once: int) -> None:
        """Work on items until cancelled, at most ``at_once`` together; survives the server's restarts.

        ``DONE`` removes an item, ``REJECT`` removes it as hopeless, ``RETRY`` or an exception gives it back with a delay that
        doubles up to a minute. Cancelled, what is under way is given back at once.
        """
        free = asyncio.Semaphore(at_once)
        async with asyncio.TaskGroup() as workers:
            while True:
                try:
                    # Each time: it may have been lost with the server's store.
                    await self._reopen()
                    await self._pull(handler, workers, free)
                except BusUnavailable as error:
                    log.warning("queue %s: %s", self._name, error.message)
                    await asyncio.sleep(PAUSE_S)

    # ---- inside ----------------------------------------------------------------------------------------

    async def _pull(self, handler: WorkHandler, workers: asyncio.TaskGroup, free: asyncio.Semaphore) -> None:
        async with self._bus.asking(f"pull from queue {self._name}"):
            pull = await self._bus.jetstream.pull_subscribe_bind(self._consumer, self._stream)
        try:
            while True:
                await free.acquire()
                message = None
                try:
                    message = await self._next(pull)
                finally:
                    if message is None:
                        free.release()
                if message is not None:
                    workers.create_task(self._work(handler, message)).add_done_callback(lambda _: free.release())
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):
                await pull.unsubscribe()

    async def _next(self, pull: JetStreamContext.PullSubscription) -> Msg | None:
        """Return the next message, or None when none came within FETCH_S. Raises BusUnavailable."""
        async with self._bus.asking(f"pull from queue {self._name}"):
            try:
                return (await pull.fetch(1, timeout=FETCH_S))[0]
            except nats.errors.TimeoutError:
                return None

    async def _work(self, handler: WorkHandler, message: Msg) -> None:
        item = WorkItem((message.headers or {})[MESSAGE_ID_HEADER], message.data, message.metadata.num_delivered)
        verdict = Verdict.RETRY
        try:
            async with self._renewing(message):
                verdict = await handler(item)
        except asyncio.CancelledError:
            await self._settle(message, Verdict.RETRY, 0.0)
            raise
        except Exception:  # whatever a handler raises, the item must be given back and the others go on
            self._bus.counters.callback_failures += 1
            log.exception("queue %s: handler failed on %s, attempt %d", self._name, item.id, item.attempt)
        await self._settle(message, verdict, min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** (item.attempt - 1)))

    @asynccontextmanager
    async def _renewing(self, message: Msg) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                await asyncio.sleep(self._ack_wait / 3)
                with contextlib.suppress(BusUnavailable):
                    async with self._bus.asking("renew a work item"):
                        await message.in_progress()

        task = asyncio.get_running_loop().create_task(renew())
        try:
            yield
        finally:
            await host_tasks.end([task])

    async def _settle(self, message: Msg, verdict: Verdict, delay: float) -> None:
        """Tell the server; a DONE is repeated over an outage, because without it the item would be worked on twice."""
        deadline = asyncio.get_running_loop().time() + self._ack_wait
        while True:
            try:
                async with self._bus.asking(f"settle an item of queue {self._name}"):
                    match verdict:
                        case Verdict.DONE:
                            await message.ack_sync(timeout=self._bus.settings.nats_request_timeout)
                        case Verdict.RETRY:
                            await message.nak(delay or None)
                        case Verdict.REJECT:
                            await message.term()
                return
            except BusUnavailable as error:
                if verdict is Verdict.RETRY or asyncio.get_running_loop().time() > deadline:
                    log.warning("queue %s: item comes again: %s", self._name, error.message)
                    return
                await asyncio.sleep(PAUSE_S)
