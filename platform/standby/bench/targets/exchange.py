"""One request and its answer over the lean HTTP client, with the moment of everything that matters."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from standby.bench.load import Clock
from standby.bench.targets.answer import Facts, Reader, reader_of
from standby.bench.targets.requests import Place
from standby.bench.values import ErrorClass, Planned, Sample
from standby.domain.instance import Phase, Rung
from standby.wire.connection import Loss, ResponseHead, WireConnection
from standby.wire.headers import PHASES_MS, REQUEST_ID, RUNG, SHADOW, WAIT_MS
from standby.wire.pool import CONNECT_LIMIT_S, STALE_WITHIN_S, ConnectionPool

IDLE_LIMIT: Final = 4096

_IDS: Final = (b"x-amzn-requestid", REQUEST_ID)
# Others are no split of ours: a server that makes one up for each answer must not make a thousand rows.
_RUNGS: Final = {rung.label.encode(): rung.label for rung in Rung}
_PHASE_NAMES: Final = frozenset(phase.value for phase in Phase)


class Exchange:
    """Receives one response (``standby.wire.connection.ResponseSink``); ``done`` is set at its end, however it ends."""

    __slots__ = ("_clock", "_reader", "complete", "done", "ended_s", "facts", "first_byte_s", "head", "lost", "sent_s")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._reader: Reader | None = None
        self.complete = False  # the connection is fit for another exchange, as far as this one goes
        self.done: asyncio.Future[None] = loop.create_future()
        self.head: ResponseHead | None = None
        self.facts = Facts()
        self.first_byte_s: float | None = None
        self.sent_s = self.ended_s = clock()
        self.lost: Loss | None = None

    # ---- ResponseSink ------------------------------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        """The head is complete."""
        self.first_byte_s = self._clock()
        self.head = head
        headers = dict(head.headers)
        # AWS refuses what is too much with 400 and says so by the kind of the error.
        throttled = head.status == 400 and headers.get(b"x-amzn-errortype", b"").startswith(b"Throttling")
        self._reader = reader_of(429 if throttled else head.status, headers, self.facts)

    def on_body(self, data: bytes, last: bool) -> None:
        """Body bytes as they came."""
        now = self._clock()
        assert self._reader is not None, "the head comes first"
        if data:
            self._reader.feed(data, now)
        if last:
            self.complete = True
            self._reader.end(now)
        if last or self.facts.error:
            self._over(now)

    def on_lost(self, loss: Loss) -> None:
        """The connection is gone and the response is not complete."""
        self.lost = loss
        self._over(self._clock())

    def on_writable(self, writable: bool) -> None:
        """Bodies are small: nothing waits for the peer."""

    # ---- the owner's -------------------------------------------------------------------------------------------

    def end(self, error: ErrorClass, message: str) -> None:
        """End it from outside."""
        self.facts.failed(error, message)
        self._over(self._clock())

    def _over(self, now: float) -> None:
        if not self.done.done():
            self.ended_s = now
            self.done.set_result(None)

    def judge(self) -> None:
        """Say what a lost connection means, once all is over."""
        if self.lost is None or self.facts.error:
            return
        if self.lost is Loss.MALFORMED:
            self.facts.failed(ErrorClass.RUBBISH, "what came back is not HTTP")
        elif self.head is None:
            self.facts.failed(ErrorClass.RESET, f"the connection was {self.lost.value} before an answer began")
        else:
            self.facts.failed(ErrorClass.BROKEN_STREAM, f"the connection was {self.lost.value} in the middle of the answer")


def pool_of(place: Place, timeout_s: float) -> ConnectionPool:
    """Return the connections to a place, as many as may be; ``timeout_s`` bounds connecting where it is the shorter limit."""
    return ConnectionPool(
        (place.host, place.port),
        reuse_chunked=True,
        idle_limit=IDLE_LIMIT,
        connect_limit_s=min(CONNECT_LIMIT_S, timeout_s),
        tls=place.tls(),
    )


async def carry_out(pool: ConnectionPool, data: bytes, clock: Clock, timeout_s: float) -> Exchange:
    """Send a request and return what became of it; a kept connection that was closed meanwhile is replaced once.

    ``timeout_s`` bounds the answer from the connection on; connecting has the pool's limit.
    """
    connection = pool.take()
    if connection is not None:
        exchange = await _on(connection, pool, data, clock, timeout_s)
        stale = exchange.lost is not None and not connection.heard and clock() - exchange.sent_s < STALE_WITHIN_S
        if not stale:
            return exchange
        try:
            connection = await pool.connect()
        except OSError:
            # Nobody listens any more: it was no idle connection's end, but the server's.
            return exchange
        again = await _on(connection, pool, data, clock, timeout_s)
        again.sent_s = exchange.sent_s
        return again
    sent_s = clock()
    try:
        connection = await pool.connect()
    except (OSError, ValueError) as error:
        # A name that no resolver takes is a ValueError (UnicodeError).
        failed = Exchange(clock, asyncio.get_running_loop())
        failed.end(ErrorClass.CONNECT, str(error) or f"no connection within the limit ({type(error).__name__})")
        failed.sent_s = sent_s
        return failed
    exchange = await _on(connection, pool, data, clock, timeout_s)
    exchange.sent_s = sent_s
    return exchange


async def _on(connection: WireConnection, pool: ConnectionPool, data: bytes, clock: Clock, timeout_s: float) -> Exchange:
    """Carry out one exchange on a connection, which is kept where it is fit for another one."""
    loop = asyncio.get_running_loop()
    exchange = Exchange(clock, loop)
    timer = loop.call_later(timeout_s, exchange.end, ErrorClass.TIMEOUT, f"no whole answer within {timeout_s:g} s")
    try:
        connection.start(exchange, data)
        await exchange.done
    finally:
        timer.cancel()
        if exchange.complete:
            pool.give_back(connection)
        else:
            connection.abort()
    exchange.judge()
    return exchange


def sample_of(exchange: Exchange, planned: Planned, *, target: str, request_id: str, trace_id: str) -> Sample:
    """Return the request's sample; tokens that nobody has counted are the events that had text."""
    facts, head = exchange.facts, exchange.head
    marks = {} if head is None else head.marks
    return Sample(
        due_s=planned.due_s,
        sent_s=exchange.sent_s,
        first_byte_s=exchange.first_byte_s,
        first_token_s=facts.first_token_s,
        ended_s=exchange.ended_s,
        status=0 if head is None else head.status,
        error=facts.error,
        prompt_tokens=planned.prompt_tokens if facts.prompt is None else facts.prompt,
        completion_tokens=facts.events if facts.completion is None else facts.completion,
        gaps_s=tuple(facts.gaps),
        rung=_RUNGS.get(marks.get(RUNG, b""), ""),
        waited_s=_seconds(marks.get(WAIT_MS)),
        request_id=_id_of(head) or request_id,
        trace_id=trace_id,
        target=target,
        phases_ms=_phases(marks.get(PHASES_MS, b"")),
        step=planned.step,
        message=facts.message,
    )


def _id_of(head: ResponseHead | None) -> str:
    headers = {} if head is None else dict(head.headers)
    return next((headers[name].decode("latin-1") for name in _IDS if name in headers), "")


def _seconds(milliseconds: bytes | None) -> float | None:
    try:
        seconds = None if milliseconds is None else float(milliseconds) / 1000
    except ValueError:
        return None
    # Of a number that is none ("nan") no order could be made, and so no percentile of any request.
    return seconds if seconds is not None and 0.0 <= seconds < math.inf else None


def _phases(header: bytes) -> tuple[tuple[str, float], ...]:
    """Read ``queued=1.2,placed=3.4,…``; of a header that is none nothing is kept."""
    if not header:
        return ()
    try:
        pairs = (part.split("=") for part in header.decode("latin-1").split(","))
        phases = tuple((name.strip(), float(value)) for name, value in pairs)
    except ValueError:
        return ()
    return tuple((name, ms) for name, ms in phases if name in _PHASE_NAMES and 0.0 <= ms < math.inf)


def shadowed(exchange: Exchange) -> bool | None:
    """Say whether the answer says that it was left out of the metering; None: it says nothing."""
    mark = None if exchange.head is None else exchange.head.marks.get(SHADOW)
    return None if mark is None else mark == b"1"
