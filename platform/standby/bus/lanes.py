"""A work queue with lanes: one for each pair of names, so that what one lane waits for keeps no other one back.

A lane is a subject of the stream with a durable consumer of its own, whose limit of unacknowledged items is the limit of
items at work over all processes. That it has work is seen in the stream's own count of items by subject.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import nats.js.errors
from nats.js import api

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.queue import MESSAGE_ID_HEADER, Worker, WorkHandler
from standby.bus.streams import ensure_stream
from standby.bus.tables import check_key
from standby.domain.errors import QueueFull

# JSStreamStoreFailedF: what the server answers when a stream that discards nothing is full.
STORE_FAILED: Final = 10077
FULL_RETRY_S: Final = 5.0


class Lanes:
    """A queue by name, its items kept until one worker has said that they are done; any number of processes put and work.

    Delivery is at least once: handlers must be idempotent by ``WorkItem.id``. A second ``put`` of an id within ``dedupe_s``
    seconds is one item. ``ack_wait``: seconds after which a silent worker loses its items. ``max_bytes`` bounds all lanes
    together.
    """

    def __init__(self, bus: Bus, name: str, *, max_bytes: int = 2**30, ack_wait: float = 10.0, dedupe_s: float = 600.0) -> None:
        self._bus = bus
        self._name = check_key(name)
        self._max_bytes = max_bytes
        self._ack_wait = ack_wait
        self._dedupe_s = dedupe_s
        self._stream = subjects.work_stream(name)

    async def open(self) -> None:
        """Make the stream where it is missing. Raises BusUnavailable."""
        await ensure_stream(
            self._bus,
            api.StreamConfig(
                name=self._stream,
                subjects=[subjects.work_subject(self._name, ">")],
                retention=api.RetentionPolicy.WORK_QUEUE,
                storage=api.StorageType.FILE,
                num_replicas=self._bus.settings.nats_replicas,
                duplicate_window=self._dedupe_s,
                max_bytes=self._max_bytes,
                discard=api.DiscardPolicy.NEW,
            ),
        )

    async def put(self, lane: str, item: str, payload: bytes) -> bool:
        """Store an item of ``lane`` (two names joined by a dot); return False if this id was there already.

        Raises QueueFull; BusUnavailable with the outcome unknown: put it again under the same id.
        """
        subject = subjects.work_subject(self._name, check_key(lane))
        async with self._bus.asking(f"put {item} into lane {lane}"):
            try:
                ack = await self._bus.jetstream.publish(subject, payload, headers={MESSAGE_ID_HEADER: check_key(item)})
            except nats.js.errors.APIError as error:
                if error.err_code != STORE_FAILED:
                    raise
                raise QueueFull(
                    f"queue {self._name} holds as much as it may ({self._max_bytes} bytes)",
                    remedy="retry later",
                    retry_after_s=FULL_RETRY_S,
                ) from error
        return not ack.duplicate

    async def waiting(self) -> dict[str, int]:
        """Return how many items are not done yet, by lane, those being worked on included. Raises BusUnavailable."""
        prefix = subjects.work_subject(self._name, "")
        async with self._bus.asking(f"look at queue {self._name}"):
            info = await self._bus.jetstream.stream_info(self._stream, subjects_filter=f"{prefix}>")
        return {subject.removeprefix(prefix): count for subject, count in (info.state.subjects or {}).items()}

    async def work(self, lane: str, handler: WorkHandler, *, at_once: int, everywhere: Callable[[], int]) -> None:
        """Work on a lane's items until cancelled: at most ``at_once`` here, and ``everywhere()`` over all processes.

        Verdicts and endings as in ``standby.bus.queue.Worker.run``.
        """

        async def reopen() -> None:
            await self.open()
            await self.limit(lane, everywhere())

        worker = Worker(self._bus, f"{self._name}.{lane}", self._stream, _consumer(lane), self._ack_wait, reopen)
        await worker.run(handler, at_once=at_once)

    async def forget(self, lane: str) -> None:
        """Remove a lane's consumer; for lanes that have no items and get none. Raises BusUnavailable."""
        async with self._bus.asking(f"forget lane {lane}"):
            with contextlib.suppress(nats.js.errors.NotFoundError):
                await self._bus.jetstream.delete_consumer(self._stream, _consumer(lane))

    async def limit(self, lane: str, everywhere: int) -> None:
        """Open a lane, or change how many of its items may be at work over all processes. Raises BusUnavailable."""
        subject = subjects.work_subject(self._name, check_key(lane))
        async with self._bus.asking(f"open lane {lane}"):
            # One durable name for all workers: reconnecting ones find it again instead of leaving another behind.
            await self._bus.jetstream.add_consumer(
                self._stream,
                durable_name=_consumer(lane),
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=self._ack_wait,
                max_deliver=-1,
                filter_subject=subject,
                max_ack_pending=everywhere,
            )


def _consumer(lane: str) -> str:
    # A consumer's name may hold no dot.
    return lane.replace(".", "_")
