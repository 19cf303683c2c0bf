"""One connection to NATS that comes back by itself, and says when it was away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.js import JetStreamContext

from standby.bus.replies import MAX_SERVED, RequestHandler, encode_error, no_answer, nobody_answers, raise_error
from standby.bus.settings import BusSettings
from standby.bus.statistics import BusStatistics, Counters
from standby.bus.subscription import Handler, Message, MessageHandler, Subscription
from standby.bus.translate import translated
from standby.domain.errors import BusUnavailable, StandbyError, Unavailable
from standby.host import tasks as host_tasks

log = logging.getLogger(__name__)

MAX_OUTSTANDING_PINGS: Final = 2
JITTER: Final = 0.3
CLOSE_LIMIT_S: Final = 3.0
# A cluster elects a stream's leader within 4 to 9 s.
RESYNC_LIMIT_S: Final = 15.0
PENDING_MESSAGES: Final = 65_536
REFUSED_WORDS: Final = ("authorization violation", "authentication")


class Bus:
    """A connection shared by everything in the process; make it with ``connect``.

    Nothing here raises an exception of the NATS library; see ``standby.bus.translate``.
    """

    def __init__(self, settings: BusSettings, name: str) -> None:
        self.settings = settings
        self.name = name
        self.counters = Counters()
        self._client = Client()
        self._jetstream = (self._client, self._client.jetstream(timeout=settings.nats_request_timeout))
        self._subscriptions: set[Subscription] = set()
        self._callbacks: list[Callable[[], Awaitable[None]]] = []
        self._asking: set[asyncio.Timeout] = set()
        self._lost_at: float | None = None
        self._closing = False
        self._came_back = asyncio.Event()
        self._refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    async def connect(cls, settings: BusSettings, *, name: str) -> Bus:
        """Return a connected bus; tries until ``nats_connect_timeout`` is over.

        Raises BusUnavailable naming the URL (without password) and the last failure.
        """
        bus = cls(settings, name)
        await bus._open()
        bus._spawn(bus._serve_reconnects())
        return bus

    async def close(self) -> None:
        """Deliver what is buffered, end all subscriptions and close; bounded by a few seconds, never raises."""
        self._closing = True
        await host_tasks.end(tuple(self._tasks))
        if self._client.is_connected:
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await asyncio.wait_for(self._client.drain(), CLOSE_LIMIT_S)
        with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
            await asyncio.wait_for(self._client.close(), CLOSE_LIMIT_S)
        self._close_failed_attempt()

    @property
    def connected(self) -> bool:
        """Whether the server answers; a silent partition is noticed after about three ping intervals."""
        return self._client.is_connected and not self._closing

    def disconnected_for(self) -> float:
        """Seconds since the connection was lost; 0 while connected."""
        if self.connected or self._lost_at is None:
            return 0.0
        return time.monotonic() - self._lost_at

    @property
    def where(self) -> str:
        """The servers, without credentials, for messages."""
        return self.settings.shown_url

    @property
    def jetstream(self) -> JetStreamContext:
        """The stream interface of the present connection; for standby.bus only."""
        client, context = self._jetstream
        if client is not self._client:
            context = self._client.jetstream(timeout=self.settings.nats_request_timeout)
            self._jetstream = (self._client, context)
        return context

    def statistics(self) -> BusStatistics:
        """Return the counts as they are now."""
        return self.counters.frozen(connected=self.connected)

    def on_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback`` after each reconnect; all in turn.

        One that raises BusUnavailable is repeated until the streams answer; one that fails otherwise is logged and counted.
        """
        self._callbacks.append(callback)

    def off_reconnect(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Forget ``callback``; unknown ones are ignored."""
        with contextlib.suppress(ValueError):
            self._callbacks.remove(callback)

    @asynccontextmanager
    async def asking(self, doing: str) -> AsyncIterator[None]:
        """Around every request: refused while the server is away, ended when it goes, errors translated.

        The library would let a request wait for its whole time limit when the connection is lost under it.
        """
        self.require_connection(doing)
        with translated(doing, self.where):
            async with asyncio.timeout(None) as limit:
                self._asking.add(limit)
                try:
                    yield
                finally:
                    self._asking.discard(limit)

    def require_connection(self, doing: str) -> None:
        """Raise BusUnavailable at once while the server is away.

        The library would buffer and send later, when the decision behind a write may have been overtaken.
        """
        if not self.connected:
            raise BusUnavailable(
                f"NATS at {self.where}: {doing}: not connected for {self.disconnected_for():.1f} s",
                remedy="check that the server runs; the connection comes back by itself",
                retry_after_s=1.0,
            )

    async def publish(self, subject: str, payload: bytes) -> None:
        """Send to whoever listens now, without a receipt. Raises BusUnavailable when not connected."""
        async with self.asking(f"publish to {subject}"):
            await self._client.publish(subject, payload)

    async def subscribe(self, subject: str, handler: Handler, *, pending_limit: int = PENDING_MESSAGES) -> Subscription:
        """Call ``handler(subject, payload)`` in the event loop for each message; the server has it when this returns.

        A handler that raises is logged and counted; it never ends the subscription. Raises BusUnavailable.
        """
        return await self.subscribe_messages(
            subject, lambda message: handler(message.subject, message.data), pending_limit=pending_limit
        )

    async def subscribe_messages(
        self,
        subject: str,
        handler: MessageHandler,
        *,
        on_drop: Callable[[], None] | None = None,
        pending_limit: int = PENDING_MESSAGES,
    ) -> Subscription:
        """Like ``subscribe``, with headers; ``on_drop`` is called when the client had to drop messages."""
        subscription = Subscription(self, subject, handler, on_drop=on_drop, pending_limit=pending_limit)
        self._subscriptions.add(subscription)
        try:
            async with self.asking(f"subscribe to {subject}"):
                await subscription.attach(self._client)
                await self._flush()
        except BusUnavailable:
            await subscription.unsubscribe()
            raise
        return subscription

    async def request(self, subject: str, payload: bytes, timeout: float) -> bytes:
        """Ask whoever serves ``subject`` and return the answer; ``timeout`` in seconds.

        Raises the StandbyError that the other side raised; Unavailable when nobody serves it or no answer came in time;
        BusUnavailable when not connected.
        """
        async with self.asking(f"ask {subject}"):
            try:
                answer = await self._client.request(subject, payload, timeout=timeout)
            except nats.errors.NoRespondersError:
                raise nobody_answers(subject) from None
            except nats.errors.TimeoutError:
                raise no_answer(subject, timeout) from None
        raise_error(answer.headers, answer.data)
        return answer.data

    async def serve(self, subject: str, handler: RequestHandler) -> Subscription:
        """Answer each question on ``subject`` with what ``handler`` returns, several at once.

        A StandbyError that it raises goes to the asker; anything else is logged here, and the asker hears of an internal
        error. Raises BusUnavailable.
        """
        served: set[asyncio.Task[None]] = set()

        def take(message: Message) -> None:
            task = self._spawn(self._answer(message, _refuse if len(served) >= MAX_SERVED else handler))
            served.add(task)
            task.add_done_callback(served.discard)

        return await self.subscribe_messages(subject, take)

    async def _answer(self, message: Message, handler: RequestHandler) -> None:
        headers: dict[str, str] | None = None
        try:
            body = await handler(message.subject, message.data)
        except StandbyError as error:
            headers, body = encode_error(error)
        except Exception:  # a handler's bug must not leave the asker waiting
            self.counters.callback_failures += 1
            log.exception("the handler of %s failed", message.subject)
            headers, body = encode_error(StandbyError(f"the handler of {message.subject} failed", remedy="see its log"))
        if message.reply:
            with contextlib.suppress(StandbyError):  # the asker's own wait ends
                async with self.asking(f"answer {message.subject}"):
                    await self._client.publish(message.reply, body, headers=headers)

    def forget(self, subscription: Subscription) -> None:
        """Stop keeping ``subscription`` alive over reconnects; called by it."""
        self._subscriptions.discard(subscription)

    async def flush(self) -> None:
        """Wait until the server has taken everything sent so far. Raises BusUnavailable."""
        async with self.asking("flush"):
            await self._flush()

    def guard(self, call: Callable[[], None], what: str) -> None:
        """Call ``call``; whatever it raises is logged and counted."""
        try:
            call()
        except Exception:  # a handler's bug must not deafen the process
            self.counters.callback_failures += 1
            log.exception("%s failed", what)

    async def _flush(self) -> None:
        # The library's hint says whole seconds; any number works.
        await self._client.flush(timeout=self.settings.nats_request_timeout)  # type: ignore[arg-type]

    # ---- connecting and coming back -------------------------------------------------------------------

    async def _open(self) -> None:
        """Connect ``self._client``; raises BusUnavailable at the limit or when the server refuses us."""
        attempt: asyncio.Future[Any] = asyncio.ensure_future(self._client.connect(**self._options()))
        done, _ = await asyncio.wait(
            [attempt, self._refused], timeout=self.settings.nats_connect_timeout, return_when=asyncio.FIRST_COMPLETED
        )
        if attempt in done and attempt.exception() is None:
            self._lost_at = None
            return
        await host_tasks.end([attempt])
        self._closing = True
        await self._client.close()
        self._close_failed_attempt()
        reason = self._refused.result() if self._refused.done() else self.counters.last_error or "no answer"
        raise BusUnavailable(
            f"cannot connect to NATS at {self.where} within {self.settings.nats_connect_timeout:g} s: {reason}",
            remedy="start nats-server (or `standby up`), or correct STANDBY_NATS_URL, STANDBY_NATS_USER and "
            "STANDBY_NATS_PASSWORD",
        )

    def _options(self) -> dict[str, Any]:
        settings = self.settings
        password = settings.nats_password
        return {
            "servers": settings.servers,
            "name": self.name,
            "user": settings.nats_user,
            "password": password.get_secret_value() if password else None,
            "ping_interval": settings.nats_ping_interval,
            "max_outstanding_pings": MAX_OUTSTANDING_PINGS,
            "connect_timeout": settings.nats_connect_timeout,
            "max_reconnect_attempts": -1,
            # Jittered per process, so that a fleet does not return in lockstep.
            "reconnect_time_wait": settings.nats_reconnect_wait * random.uniform(1 - JITTER, 1 + JITTER),  # noqa: S311 (no secret)
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    async def _on_error(self, error: Exception) -> None:
        self.counters.errors += 1
        self.counters.last_error = str(error) or type(error).__name__
        if not self._client.is_connected:
            self._close_failed_attempt()
        if isinstance(error, nats.errors.SlowConsumerError):
            self._on_slow_consumer(error)
        elif any(word in self.counters.last_error.lower() for word in REFUSED_WORDS) and not self._refused.done():
            self._refused.set_result(self.counters.last_error)
        else:
            log.debug("nats: %s", self.counters.last_error)

    def _close_failed_attempt(self) -> None:
        # The library forgets the socket of each attempt that fails after the TCP connect, and leaks it.
        if (transport := self._client._transport) is not None and transport:  # noqa: SLF001 (no public way)
            transport.close()  # type: ignore[no-untyped-call]

    def _on_slow_consumer(self, error: nats.errors.SlowConsumerError) -> None:
        self.counters.slow_consumer_drops += 1
        for subscription in tuple(self._subscriptions):
            if subscription.is_attached_as(error.sub):
                subscription.dropped(error.subject)

    async def _on_disconnected(self) -> None:
        if self._closing:
            return
        if self._lost_at is None:
            self._lost_at = time.monotonic()
        self.counters.disconnects += 1
        while self._asking:
            self._asking.pop().reschedule(0.0)
        log.warning("lost NATS at %s: %s", self.where, self.counters.last_error or "connection ended")

    async def _on_reconnected(self) -> None:
        log.info("NATS at %s is back after %.2f s", self.where, time.monotonic() - (self._lost_at or time.monotonic()))
        self._lost_at = None
        self.counters.reconnects += 1
        self._came_back.set()

    async def _on_closed(self) -> None:
        # The library closes for good on e.g. an authorization error after a reload; a server process must outlive that.
        if not self._closing:
            log.error("NATS at %s closed the connection: %s; connecting anew", self.where, self.counters.last_error)
            self._spawn(self._revive())

    async def _revive(self) -> None:
        """Replace a client that the library has given up, and subscribe again to everything."""
        while not self._closing:
            self._client = Client()
            with contextlib.suppress(nats.errors.Error, TimeoutError, OSError):
                await self._client.connect(**self._options())
                for subscription in tuple(self._subscriptions):
                    await subscription.attach(self._client)
                self.counters.revivals += 1
                await self._on_reconnected()
                return
            await asyncio.sleep(self.settings.nats_reconnect_wait)

    async def _serve_reconnects(self) -> None:
        while True:
            await self._came_back.wait()
            self._came_back.clear()
            for callback in tuple(self._callbacks):
                await self._resynchronise(callback)

    async def _resynchronise(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Await ``callback``; repeated while the server is there and its streams are not yet, for RESYNC_LIMIT_S seconds."""
        deadline = time.monotonic() + RESYNC_LIMIT_S
        while True:
            try:
                await callback()
                return
            except BusUnavailable as error:
                if not self.connected or self._came_back.is_set():
                    return  # lost again: the next reconnect calls it
                if time.monotonic() > deadline:
                    self.counters.callback_failures += 1
                    log.error("a reconnect callback found no streams for %g s: %s", RESYNC_LIMIT_S, error)
                    return
                await asyncio.sleep(self.settings.nats_reconnect_wait)
            except Exception:  # one component's failure must not keep the others from resynchronising
                self.counters.callback_failures += 1
                log.exception("a reconnect callback failed")
                return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _refuse(subject: str, _payload: bytes) -> bytes:
    raise Unavailable(f"{subject} answers {MAX_SERVED} questions already", remedy="ask again later", retry_after_s=1.0)
