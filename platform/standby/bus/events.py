"""The event log: what happened, kept for a day, followed live by the console and the command line.

Best effort by design: an event never delays or fails the work that it tells of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import nats.errors
import nats.js.errors
from nats.js import api
from pydantic import ValidationError

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.streams import SEQUENCE_HEADER, ensure_stream
from standby.bus.subscription import Message, Subscription
from standby.domain.errors import BusUnavailable, StandbyError
from standby.domain.events import EVENT_ADAPTER, AnyEvent
from standby.host import tasks as host_tasks

log = logging.getLogger(__name__)

EventHandler: TypeAlias = Callable[[AnyEvent], None]
# An event with its position in the stream.
Numbered: TypeAlias = tuple[int, AnyEvent]

MAX_AGE_S: Final = 24 * 3600.0
MAX_BYTES: Final = 256 * 1024 * 1024
QUEUE_LIMIT: Final = 1_000
CLOSE_LIMIT_S: Final = 1.0
# How far back a filtered question looks at first, in messages; eight times further each time that was not enough.
FIRST_WINDOW: Final = 1_000
WINDOW_GROWTH: Final = 8
BATCH: Final = 256
READER_LIFE_S: Final = 10.0


class EventLog:
    """Publish, follow and look back; make it with ``open``, end it with ``close``."""

    def __init__(self, bus: Bus, queue_limit: int = QUEUE_LIMIT) -> None:
        self._bus = bus
        self._queue: deque[AnyEvent] = deque()
        self._queue_limit = queue_limit
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, bus: Bus, *, queue_limit: int = QUEUE_LIMIT) -> EventLog:
        """Return the log; its stream is made if it is missing, now and after each reconnect. Raises BusUnavailable."""
        events = cls(bus, queue_limit)
        await events._ensure()
        bus.on_reconnect(events._resume)
        events._task = asyncio.get_running_loop().create_task(events._send_all())
        return events

    async def close(self) -> None:
        """Send what is queued if the bus is there, for at most a second; then stop. Idempotent."""
        self._bus.off_reconnect(self._resume)
        if self._task is None:
            return
        if self._bus.connected:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), CLOSE_LIMIT_S)
        await host_tasks.end([self._task])
        self._task = None

    async def publish(self, event: AnyEvent) -> None:
        """Queue the event and return at once; never raises.

        While the bus is away the newest events wait; the oldest beyond the limit are dropped and counted.
        """
        if len(self._queue) >= self._queue_limit:
            self._queue.popleft()
            self._bus.counters.events_dropped += 1
        self._queue.append(event)
        self._idle.clear()
        self._work.set()

    async def follow(
        self, handler: EventHandler, *, replay_last: int = 0, tenant: str = "", endpoint: str = "", kind: str = ""
    ) -> Subscription:
        """Call ``handler`` for the last ``replay_last`` events and then for each new one, none twice. Raises BusUnavailable."""
        arrived: dict[int, AnyEvent] = {}
        told: set[str] = set()
        live = False

        def receive(message: Message) -> None:
            event = self._decode(message.data)
            if event is None:
                return
            if not live:
                arrived[int(message.headers[SEQUENCE_HEADER])] = event
            elif event.id not in told:
                handler(event)

        subscription = await self._bus.subscribe_messages(subjects.happened_filter(tenant, endpoint, kind), receive)
        try:
            past = await self._look_back(replay_last, tenant, endpoint, kind) if replay_last > 0 else []
        except BusUnavailable:
            await subscription.unsubscribe()
            raise
        # The look back may already hold events whose live message is still under way, hence the ids.
        told |= {event.id for _, event in past}
        live = True
        for _, event in sorted({**arrived, **dict(past)}.items()):
            self._bus.guard(partial(handler, event), "event follower")
        return subscription

    async def recent(self, limit: int, tenant: str = "", endpoint: str = "", *, kind: str = "") -> list[AnyEvent]:
        """Return the newest ``limit`` events, oldest first, of one tenant, endpoint or kind if named. Raises BusUnavailable."""
        if limit <= 0:
            return []
        return [event for _, event in await self._look_back(limit, tenant, endpoint, kind)]

    # ---- inside ----------------------------------------------------------------------------------------

    async def _look_back(self, limit: int, tenant: str, endpoint: str, kind: str = "") -> list[Numbered]:
        async with self._bus.asking("look back at events"):
            info = await self._bus.jetstream.stream_info(subjects.EVENTS_STREAM)
            first, last, window = info.state.first_seq, info.state.last_seq, max(limit, FIRST_WINDOW)
            while True:
                start = max(first, last - window + 1, 1)
                found = await self._read_from(start, subjects.event_filter(tenant, endpoint, kind), limit)
                if len(found) >= limit or start <= max(first, 1):
                    return found
                window *= WINDOW_GROWTH

    async def _send_all(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue and self._bus.connected:
                event = self._queue.popleft()
                try:
                    await self._bus.publish(subjects.event_subject(event), EVENT_ADAPTER.dump_json(event))
                except BusUnavailable:
                    self._queue.appendleft(event)
                    break
                except StandbyError as error:
                    # E.g. too big for the server, now and always: the events after it must still go out.
                    log.error("event %s cannot be sent: %s", event.id, error)
                    self._bus.counters.events_dropped += 1
            if not self._queue:
                self._idle.set()

    async def _resume(self) -> None:
        await self._ensure()
        self._work.set()

    async def _ensure(self) -> None:
        made = await ensure_stream(
            self._bus,
            api.StreamConfig(
                name=subjects.EVENTS_STREAM,
                subjects=[subjects.ALL_EVENTS],
                max_age=MAX_AGE_S,
                max_bytes=MAX_BYTES,
                discard=api.DiscardPolicy.OLD,
                storage=api.StorageType.FILE,
                num_replicas=self._bus.settings.nats_replicas,
                republish=api.RePublish(src=subjects.ALL_EVENTS, dest=f"{subjects.HAPPENED}.>"),
            ),
        )
        if made:
            log.info("made stream %s", subjects.EVENTS_STREAM)

    async def _read_from(self, start: int, subject: str, limit: int) -> list[Numbered]:
        """Read every matching event from stream position ``start`` on, and keep the newest ``limit``."""
        jetstream = self._bus.jetstream
        consumer = await jetstream.add_consumer(
            subjects.EVENTS_STREAM,
            deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=start,
            filter_subject=subject,
            ack_policy=api.AckPolicy.NONE,
            inactive_threshold=READER_LIFE_S,
            mem_storage=True,
            num_replicas=1,
        )
        reader = await jetstream.pull_subscribe_bind(consumer.name, subjects.EVENTS_STREAM)
        kept: deque[Numbered] = deque(maxlen=limit)
        try:
            pending = consumer.num_pending or 0
            while pending > 0:
                messages = await reader.fetch(min(pending, BATCH), timeout=self._bus.settings.nats_request_timeout)
                pending -= len(messages)
                for message in messages:
                    if (event := self._decode(message.data)) is not None:
                        kept.append((message.metadata.sequence.stream, event))
        finally:
            # Otherwise every look back would leave a consumer behind for READER_LIFE_S.
            with contextlib.suppress(nats.errors.Error):
                await reader.unsubscribe()
                await jetstream.delete_consumer(subjects.EVENTS_STREAM, consumer.name)
        return list(kept)

    def _decode(self, payload: bytes) -> AnyEvent | None:
        try:
            return EVENT_ADAPTER.validate_json(payload)
        except ValidationError:
            # A newer writer's kind of event: nothing that this version could show.
            self._bus.counters.undecodable_values += 1
            return None
