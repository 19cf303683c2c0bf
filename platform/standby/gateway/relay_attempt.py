"""One attempt at one door: the sink between a door connection and an ASGI ``send``, with backpressure both ways."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

from standby.gateway.door_client import COPY_LIMIT, DoorPools, OutcomeKind, RelayOutcome, RelayRequest
from standby.gateway.inline import DONE, Inline
from standby.wire.connection import Loss, ResponseHead, WireConnection
from standby.wire.headers import ENGINE_ERROR, ENGINE_GONE, ENGINE_SAW, REFUSED, Sight
from standby.wire.pool import STALE_WITHIN_S
from standby.wire.sse import error_event

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


@dataclass(frozen=True, slots=True)
class _Ending:
    kind: OutcomeKind
    reason: str = ""
    saw: bool = False
    fault: str = ""
    gone: int = 0
    read: bool = False


_UNAVAILABLE: Final = HTTPStatus.SERVICE_UNAVAILABLE.value
_NOTHING: Final = Sight.NOTHING.encode()
_ALL: Final = Sight.ALL.encode()
_DONE: Final = _Ending(OutcomeKind.DONE, saw=True)
_DECLINED: Final = _Ending(OutcomeKind.DECLINED, "the engine answered 503", saw=True)


class Attempt:
    """The sink of one exchange with a door. It ends once: ``_turn`` gets the outcome, or None to connect anew."""

    __slots__ = (
        "_bytes",
        "_connection",
        "_ending",
        "_extra_headers",
        "_first_byte_at",
        "_gone",
        "_head",
        "_pending",
        "_pool",
        "_pools",
        "_refused",
        "_request",
        "_retried",
        "_send",
        "_sending",
        "_started_at",
        "_tail",
        "_turn",
    )

    def __init__(
        self,
        pools: DoorPools,
        request: RelayRequest,
        send: Send,
        extra_headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self._pools = pools
        self._request = request
        self._send = send
        self._extra_headers = extra_headers
        self._pool = pools.of(request.door)
        self._turn: asyncio.Future[RelayOutcome | None] = pools.loop.create_future()
        self._connection: WireConnection | None = None
        self._head: ResponseHead | None = None
        self._refused: _Ending | None = None
        self._ending: _Ending | None = None
        self._bytes = 0
        self._first_byte_at: float | None = None
        self._tail = b""
        self._retried = False
        self._started_at = 0.0
        self._gone = False
        self._pending: deque[Message] = deque()
        self._sending: Inline | None = None

    # -- the course of an attempt ------------------------------------------------------------------------

    def begin(self) -> asyncio.Future[RelayOutcome | None] | None:
        """Send the request by an idle connection and return the future of the outcome; None: ``run`` is to connect.

        An outcome of None asks for ``run``, too.
        """
        if not self._turn.done():
            connection = self._pool.take()
            if connection is None:
                return None
            self._start(connection)
        return self._turn

    async def run(self) -> RelayOutcome:
        """Connect, send the request and wait for the ending; once more where a kept connection turned out to be stale."""
        outcome: RelayOutcome | None = None
        while outcome is None:
            if self._turn.done():
                self._turn = self._pools.loop.create_future()
            if self._gone:
                self.client_gone()
            else:
                await self._connect()
            outcome = await self._turn
        return outcome

    def close(self) -> None:
        """Let go of everything; a door connection that is still in use is closed, which ends the work behind it."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def client_gone(self) -> None:
        """End the attempt because its client has closed the connection."""
        self._gone = True
        if not self._turn.done():
            self._pending.clear()
            self.close()
            self._end(_Ending(OutcomeKind.CLIENT_GONE, "the client closed its connection", saw=True))

    @property
    def sent(self) -> bool:
        """Whether a door has got anything of the request, as far as an attempt without an outcome goes."""
        return self._retried or self._connection is not None

    def cut_off(self, reason: str) -> bool:
        """End an answer that has begun in the honest way; False when the client has not got anything yet."""
        if self._first_byte_at is None:
            return False
        if self._turn.cancelled():
            self._turn = self._pools.loop.create_future()
            self._break_off(reason)
        return True

    async def _connect(self) -> None:
        try:
            connection = await self._pool.connect()
        except OSError as error:
            host, port = self._request.door
            reason = f"door {host}:{port} does not accept: {error or type(error).__name__}"
            # After a retry the first connection may have delivered the request: that is not a mere failure to connect.
            kind = OutcomeKind.ENGINE_FAILED if self._retried else OutcomeKind.CONNECT_FAILED
            self._end(_Ending(kind, reason, saw=self._retried))
            return
        if self._turn.done():
            connection.abort()
        else:
            self._start(connection)

    def _start(self, connection: WireConnection) -> None:
        self._connection = connection
        self._started_at = self._pools.clock()
        request = self._request
        if len(request.body) <= COPY_LIMIT:
            connection.start(self, request.head() + request.body)
        else:
            connection.start(self, request.head())
            connection.transport.write(request.body)

    # -- ResponseSink: from the door -----------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        self._head = head
        marks = head.marks
        if REFUSED in marks:
            self._refused = _Ending(OutcomeKind.REFUSED, marks[REFUSED].decode("latin-1"))
        elif ENGINE_ERROR in marks:
            fault = marks[ENGINE_ERROR].decode("latin-1")
            seen = marks.get(ENGINE_SAW)
            saw, read = seen != _NOTHING, seen == _ALL
            self._refused = _Ending(OutcomeKind.ENGINE_FAILED, fault, saw, fault, int(marks.get(ENGINE_GONE, b"0")), read)
        elif head.status == _UNAVAILABLE and self._request.declinable:
            self._refused = _DECLINED

    def on_body(self, data: bytes, last: bool) -> None:
        if self._refused is not None:
            if last:
                self._leave_door()
                self._end(self._refused)
            return
        if self._first_byte_at is None:
            self._begin_answer()
        self._bytes += len(data)
        if not last:
            self._tail = data
            self._emit({"type": "http.response.body", "body": data, "more_body": True})
            return
        connection = self._leave_door()
        if connection.trailer_fault:
            fault = connection.trailer_fault.decode("latin-1")
            # The door has closed the stream with its error event; it was no success all the same.
            self._emit(_broken_off(data, fault))
            self._end(_Ending(OutcomeKind.BROKEN_MID_STREAM, fault, True, fault, int(connection.trailer_gone or b"0"), True))
        else:
            self._emit({"type": "http.response.body", "body": data, "more_body": False})
            self._end(_DONE)

    def on_lost(self, loss: Loss) -> None:
        connection = self._connection
        self._connection = None
        if self._refused is not None:
            self._end(self._refused)
        elif connection is not None and not self._turn.done() and self._was_stale(connection):
            self._retried = True
            # An engine that has got the first one after all must not meet its id again (field case B34).
            self._request = self._request._replace(request_id=f"{self._request.request_id}.again")
            self._turn.set_result(None)
        elif self._first_byte_at is None:
            reason = f"door connection {loss} before the first byte"
            self._end(_Ending(OutcomeKind.ENGINE_FAILED, reason, saw=True))
        else:
            self._break_off(f"door connection {loss} in the middle of the answer")

    def _was_stale(self, connection: WireConnection) -> bool:
        """A kept connection that its door had closed before the request came.

        That shows at once. One that is lost later, without a byte yet, may have carried the request to an engine that was
        at work on it, and an inference is not repeated (field case B34).
        """
        fresh_loss = self._pools.clock() - self._started_at < STALE_WITHIN_S
        return connection.reused and not connection.heard and not self._retried and fresh_loss

    def on_writable(self, writable: bool) -> None:
        """The request's body is already in memory: there is nobody to slow down."""

    def _begin_answer(self) -> None:
        head = self._head
        assert head is not None  # a connection tells the head before any body
        self._first_byte_at = self._pools.clock()
        headers = [*head.headers, *self._extra_headers]
        if head.content_length is not None:
            headers.append((b"content-length", b"%d" % head.content_length))
        self._emit({"type": "http.response.start", "status": head.status, "headers": headers})

    def _break_off(self, reason: str) -> None:
        head = self._head
        if head is not None and head.event_stream and head.content_length is None:
            event = error_event("connection_lost", reason, self._tail)
            self._emit(_broken_off(event, reason))
        self._end(_Ending(OutcomeKind.BROKEN_MID_STREAM, reason, saw=True))

    def _leave_door(self) -> WireConnection:
        """Give the connection back after a whole answer; what the door put into the trailer stays with it till its next use."""
        connection = self._connection
        assert connection is not None  # only called from its callback
        self._connection = None
        self._pool.give_back(connection)
        return connection

    # -- to the client -------------------------------------------------------------------------------------

    def _emit(self, message: Message) -> None:
        if self._sending is not None:
            self._pending.append(message)
            return
        if self._turn.done():
            return
        try:
            sent = self._send(message)
            if sent is DONE:
                return
            finished, _, self._sending = Inline.run(sent, self._sent)
        except Exception as error:  # noqa: BLE001 - it belongs to relay's caller, not to the protocol callback
            self._give_up(error)
            return
        if not finished and self._connection is not None:
            # What has been read already waits in ``_pending``, at most one read of the socket.
            self._connection.pause()

    def _sent(self, _: object, error: Exception | None) -> None:
        self._sending = None
        if error is not None:
            self._give_up(error)
            return
        while self._pending and self._sending is None:
            self._emit(self._pending.popleft())
        if self._sending is None:
            if self._ending is not None:
                self._end(self._ending)
            elif self._connection is not None:
                self._connection.resume()

    def _give_up(self, error: Exception) -> None:
        self._pending.clear()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
        if not self._turn.done():
            self._turn.set_exception(error)

    def _end(self, ending: _Ending) -> None:
        """Resolve the attempt, once everything has been sent."""
        if self._sending is not None or self._pending:
            self._ending = ending
        elif not self._turn.done():
            status = self._head.status if self._head is not None else 0
            self._turn.set_result(
                RelayOutcome(
                    ending.kind,
                    status,
                    self._bytes,
                    self._first_byte_at,
                    ending.reason,
                    ending.saw,
                    ending.fault,
                    ending.gone,
                    ending.read,
                )
            )


def _broken_off(body: bytes, reason: str) -> Message:
    """Return the last message of a broken event stream; who frames the answer anew reads ``fault`` and ends it by itself."""
    return {"type": "http.response.body", "body": body, "more_body": False, "fault": reason}
