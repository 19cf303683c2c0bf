"""The door's side of a connection from a gateway: reads requests, asks the gate, hands admitted ones to an exchange."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final, Protocol

import httptools

from standby.warm_pool.door_exchange import DoorLimits, Exchange
from standby.warm_pool.door_slots import DoorSlots
from standby.warm_pool.door_spans import UNTRACED, DoorTraces
from standby.wire.headers import (
    EPOCH,
    INSTANCE,
    PREFIX,
    REFUSED,
    REWRITTEN,
    TOKEN,
    Refusal,
    header_lines,
    listed_in_connection,
    status_line,
)
from standby.wire.sockets import tune

NOT_SERVED: Final = frozenset({b"HEAD", b"CONNECT", b"TRACE"})


class DoorOwner(Protocol):
    """What a connection needs of the door that accepted it."""

    token: bytes
    slots: DoorSlots
    limits: DoorLimits
    traces: DoorTraces | None

    def connection_made(self, connection: DoorConnection) -> None:
        """A gateway has connected."""

    def connection_lost(self, connection: DoorConnection) -> None:
        """The connection is closed."""

    def begin(self, exchange: Exchange) -> None:
        """Run the exchange's ``connect`` as a task."""

    def exchange_started(self) -> None:
        """Something is in flight: quiet requests have to be looked for."""

    def clock(self) -> float:
        """The loop's clock, in seconds."""


class DoorConnection(asyncio.Protocol):
    """One keep-alive connection from a gateway: one request at a time."""

    __slots__ = (
        "_admitted",
        "_chunked",
        "_close_after",
        "_connection_header",
        "_content_length",
        "_deaf",
        "_door",
        "_exchange",
        "_head_bytes",
        "_head_complete",
        "_head_due",
        "_lines",
        "_marks",
        "_own_parts",
        "_parser",
        "_parts",
        "_request_complete",
        "_url",
        "on_body",
        "transport",
        "writing_paused",
    )

    def __init__(self, door: DoorOwner) -> None:
        self.transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made
        self.writing_paused = False
        self._door = door
        self._exchange: Exchange | None = None
        self._deaf = False
        self._own_parts = 0  # how many of the parts belong to the request before a pipelined one
        self._close_after = False
        self._head_due: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []
        # The parser calls this for each piece: a bound append costs no Python frame.
        self.on_body = self._parts.append
        self._parser = httptools.HttpRequestParser(self)
        self._reset()

    def _reset(self) -> None:
        self._url = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._marks: dict[bytes, bytes] = {}
        self._connection_header = b""
        self._content_length: int | None = None
        self._chunked = False
        self._head_bytes = 0
        self._head_complete = self._request_complete = self._admitted = False

    # -- asyncio.Protocol ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # always a stream transport here
        tune(transport)
        self._door.connection_made(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - a reset and a close are the same here
        self._door.connection_lost(self)
        self._head_arrived()
        self._gateway_gone()
        self._parser = None  # type: ignore[assignment] # breaks the cycle with the parser's callbacks

    def eof_received(self) -> None:
        # Before connection_lost, which waits until everything written has been taken.
        self._gateway_gone()

    def pause_writing(self) -> None:
        self.writing_paused = True
        if self._exchange is not None:
            self._exchange.on_gateway_full(True)

    def resume_writing(self) -> None:
        self.writing_paused = False
        if self._exchange is not None:
            self._exchange.on_gateway_full(False)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reject(400, b"the request is not HTTP/1.1")
            return
        if not self._head_complete:
            self._head_bytes += len(data)
            if self._head_bytes > self._door.limits.head_bytes:
                self._reject(431, b"the request head is larger than %d bytes" % self._door.limits.head_bytes)
            else:
                self._expect_head()
            return
        if not self._admitted:
            self._admitted = True
            self._head_arrived()
            self._admit()
        body = b"".join(self._parts[: self._own_parts] if self._deaf else self._parts)
        self._parts.clear()
        exchange = self._exchange
        if exchange is None:
            # Refused, or answered early: the rest of the body is read and thrown away, so that the connection can be kept.
            if self._request_complete:
                self._next_request()
        elif body or self._request_complete:
            exchange.on_request_body(body, self._request_complete)

    def _expect_head(self) -> None:
        """A connection that is new, or in the middle of a head, has not shown its token yet: it does not stay for ever."""
        if self._head_due is None:
            self._head_due = asyncio.get_running_loop().call_later(self._door.limits.head_s, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    # -- httptools callbacks -------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if not self._head_complete:
            return
        if self._admitted and self._exchange is None and not self._close_after:
            # The request before was answered early, and the end of its body came in the same read as this one.
            self._parts.clear()
            self._reset()
        else:
            # A gateway never pipelines. The request being served is finished, then the connection closes.
            self._deaf = self._close_after = True
            self._own_parts = len(self._parts)

    def on_url(self, url: bytes) -> None:
        if not self._deaf:
            self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_complete:
            return  # a trailer, or a second request
        name = name.lower()
        if name.startswith(PREFIX):
            self._marks[name] = value
        elif name in REWRITTEN:
            if name == b"content-length":
                self._content_length = int(value)
            elif name == b"transfer-encoding":
                self._chunked = True
            elif name == b"connection":
                self._connection_header = value
        else:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        if not self._deaf:
            self._head_complete = True
            if not self._parser.should_keep_alive():
                self._close_after = True

    def on_message_complete(self) -> None:
        if not self._deaf:
            self._request_complete = True

    # -- admission -----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        door = self._door
        marks = self._marks
        if not hmac.compare_digest(marks.get(TOKEN, b""), door.token):
            self._refuse(Refusal.BAD_TOKEN)
            return
        gate = door.slots.find_by_header(marks.get(INSTANCE, b""))
        if gate is None:
            self._refuse(Refusal.UNKNOWN_INSTANCE)
            return
        refusal = gate.refusal(marks.get(EPOCH, b""))
        if refusal is not None:
            self._refuse(refusal)
            return
        method = self._parser.get_method()
        if method in NOT_SERVED or not self._url.startswith(b"/"):
            self._reject(501, b"the door does not serve this method or form of URL")
            return
        if (self._content_length or 0) > door.limits.body_bytes:
            self._reject(413, b"request body is larger than the door's limit of %d bytes" % door.limits.body_bytes)
            return
        trace = None if door.traces is None else door.traces.begin(self._lines, gate)
        if trace is not None:
            self._lines = trace.told(self._lines)
        head = self._engine_head(method)
        if len(head) > door.limits.head_bytes:
            self._reject(431, b"the request head is larger than %d bytes" % door.limits.head_bytes)
            return
        self._exchange = Exchange(
            gate,
            self,
            head,
            chunked=self._chunked,
            limits=door.limits,
            clock=door.clock,
            spawn=door.begin,
            trace=trace or UNTRACED,
        )
        door.exchange_started()

    def _engine_head(self, method: bytes) -> bytes:
        lines = self._lines
        if self._connection_header:
            own = listed_in_connection(self._connection_header)
            if own:
                lines = [line for line in lines if line[0] not in own]
        if self._chunked:
            framing = b"transfer-encoding: chunked\r\n"
        elif self._content_length is not None:
            framing = b"content-length: %d\r\n" % self._content_length
        else:
            framing = b""
        return b"%b %b HTTP/1.1\r\nhost: localhost\r\n%b%b\r\n" % (method, self._url, header_lines(lines), framing)

    def _refuse(self, refusal: Refusal) -> None:
        self._door.slots.results.refused += 1
        self.answer(refusal.status, [(REFUSED, refusal.encode())], b"the door refuses: " + refusal.encode())

    def _reject(self, status: int, message: bytes) -> None:
        """Answer a request that this door does not understand, and close: the rest of the bytes cannot be trusted."""
        self._deaf = self._close_after = True
        if self._exchange is not None:
            # Garbage after a good request: the engine's answer would be cut by the close, so it ends here.
            self._exchange.on_gateway_gone()
        elif not self.transport.is_closing():
            self.answer(status, [], message)
            self.transport.close()

    # -- GatewaySide: what an exchange calls ---------------------------------------------------------------

    @property
    def closing_after(self) -> bytes:
        """The header line that announces the close, when this answer is the connection's last."""
        return b"connection: close\r\n" if self._close_after else b""

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer of the door's own."""
        framing = b"content-type: text/plain\r\ncontent-length: %d\r\n" % len(body)
        lines = header_lines(headers)
        self.transport.write(b"".join((status_line(status), lines, framing, self.closing_after, b"\r\n", body)))

    def hold_request(self, hold: bool) -> None:
        """Stop (True) or go on (False) reading request bytes."""
        if self.transport.is_closing():
            return
        if hold:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def exchange_over(self, *, cut: bool) -> None:
        """The exchange has ended: make ready for the next request, or close."""
        self._exchange = None
        self.hold_request(False)
        if cut:
            self._deaf = True
            self.transport.close()
        elif self._request_complete:
            self._next_request()

    def _next_request(self) -> None:
        if self._close_after:
            self.transport.close()
        else:
            self._reset()

    def _gateway_gone(self) -> None:
        if self._exchange is not None:
            self._exchange.on_gateway_gone()
