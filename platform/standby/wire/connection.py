"""One client connection speaking HTTP/1.1 over httptools: bytes in, callbacks to a sink out, no task of its own.

A general HTTP client costs several times more CPU than the rest of a hop, so this one does only what the relay and the
door need: one request at a time, keep-alive, chunked, content-length and EOF framing, backpressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import httptools

from standby.wire.headers import ENGINE_ERROR, ENGINE_GONE, HOP_BY_HOP, PREFIX, listed_in_connection
from standby.wire.sockets import tune
from standby.wire.sse import EVENT_STREAM

HEAD_LIMIT: Final = 64 * 1024
_OF_ONE_HOP: Final = HOP_BY_HOP | {b"content-length"}


class Loss(StrEnum):
    """Why a connection ended before its response was complete."""

    CLOSED = "closed"
    RESET = "reset"  # with something of what was sent not taken by the peer
    MALFORMED = "malformed"


class _UnaskedAnswerError(Exception):
    """The peer answers what nobody asked."""


class ResponseHead:
    """Status and end-to-end headers of a response; ``marks`` holds the x-standby-* headers, taken out of ``headers``."""

    __slots__ = ("chunked", "connection", "content_length", "event_stream", "headers", "marks", "status")

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.marks: dict[bytes, bytes] = {}
        self.content_length: int | None = None
        self.chunked = False
        self.event_stream = False
        self.connection = b""

    def add(self, name: bytes, value: bytes) -> None:
        """Take one header line, its name in lower case; those of framing and of one hop are understood here, not passed on."""
        if name in _OF_ONE_HOP:
            if name == b"content-length":
                self.content_length = int(value)
            elif name == b"transfer-encoding":
                self.chunked = True
            elif name == b"connection":
                self.connection = value
        elif name.startswith(PREFIX):
            self.marks[name] = value
        else:
            if name == b"content-type":
                self.event_stream = value.lower().startswith(EVENT_STREAM)
            self.headers.append((name, value))

    def close(self, status: int) -> None:
        """Note the status once all lines are in, and drop what the Connection header declares as one hop's own."""
        self.status = status
        if self.connection:
            own = listed_in_connection(self.connection)
            if own:
                self.headers = [header for header in self.headers if header[0] not in own]

    @property
    def bodiless(self) -> bool:
        """True when the status forbids a body."""
        return self.status in (204, 304)

    @property
    def ends_at_eof(self) -> bool:
        """True when only the end of the connection ends the body (HTTP/1.0 style)."""
        return not self.chunked and self.content_length is None and not self.bodiless


class ResponseSink(Protocol):
    """Who receives one response; the methods are called from the event loop and must not raise."""

    def on_head(self, head: ResponseHead) -> None:
        """The head is complete."""

    def on_body(self, data: bytes, last: bool) -> None:
        """Body bytes as they came; ``last`` ends the response (``data`` may then be empty)."""

    def on_lost(self, loss: Loss) -> None:
        """The connection is gone and the response is not complete."""

    def on_writable(self, writable: bool) -> None:
        """The peer takes request bytes more slowly (False) or again (True)."""


class WireConnection(asyncio.Protocol):
    """A keep-alive client connection. ``start`` begins an exchange; the sink hears of exactly one ending, unless ``abort``."""

    __slots__ = (
        "_complete",
        "_head",
        "_head_bytes",
        "_head_complete",
        "_head_told",
        "_informational",
        "_keep_alive",
        "_parser",
        "_parts",
        "_paused",
        "_reuse_chunked",
        "_sink",
        "closed",
        "heard",
        "on_body",
        "on_idle_close",
        "reused",
        "trailer_fault",
        "trailer_gone",
        "transport",
    )

    def __init__(self, *, reuse_chunked: bool) -> None:
        """``reuse_chunked`` says whether the peer keeps the connection after a chunked response.

        llama.cpp's server announces keep-alive and closes all the same, so connections to engines are not reused then.
        """
        self.transport: asyncio.Transport = None  # type: ignore[assignment] # set by connection_made
        self.closed = False
        self.reused = False
        self.heard = False
        self._paused = False
        self.trailer_fault = b""
        self.trailer_gone = b""
        self.on_idle_close: Callable[[WireConnection], None] | None = None
        self._reuse_chunked = reuse_chunked
        self._sink: ResponseSink | None = None
        self._parts: list[bytes] = []
        # The parser calls this for each piece: a bound append costs no Python frame.
        self.on_body = self._parts.append
        self._parser = httptools.HttpResponseParser(self)
        self._reset()

    def _reset(self) -> None:
        self._head = ResponseHead()
        self._head_bytes = 0
        self._head_complete = self._head_told = False
        self._informational = self._complete = self._keep_alive = False

    # -- what the owner calls ----------------------------------------------------------------------------

    def start(self, sink: ResponseSink, data: bytes) -> None:
        """Begin an exchange: ``data`` is the request's head and as much of its body as there is."""
        self._sink = sink
        self.heard = False
        self.trailer_fault = b""
        self.trailer_gone = b""
        self.transport.write(data)

    def pause(self) -> None:
        """Stop reading: the response's consumer is full."""
        if not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close at once, without telling the sink; the peer sees the connection end."""
        self._sink = None
        self.closed = True
        if self.transport is not None:
            self.transport.abort()

    @property
    def reusable(self) -> bool:
        """True when the last exchange left the connection fit for another one."""
        return (
            self._keep_alive
            and not self.closed
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )

    # -- asyncio.Protocol --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # always a stream transport here
        tune(transport)
        if self.closed:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            # Bytes nobody asked for: the next response could not be told from them.
            self._keep_alive = False
            self.transport.abort()
            return
        self.heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._keep_alive = False
            if not self._complete:
                self._lose(Loss.MALFORMED)
                return
        if not self._head_told and not self._tell_head(sink, len(data)):
            return
        parts = self._parts
        if self._complete:
            body = b"".join(parts)
            parts.clear()
            self._finish(sink, body)
        elif parts:
            body = parts[0] if len(parts) == 1 else b"".join(parts)
            parts.clear()
            sink.on_body(body, False)

    def eof_received(self) -> None:
        sink = self._sink
        if sink is not None and self._head_told and self._head.ends_at_eof:
            self._finish(sink, b"")
        else:
            self._lose(Loss.RESET if self.transport.get_write_buffer_size() else Loss.CLOSED)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._lose(Loss.CLOSED if exc is None else Loss.RESET)
        if self.on_idle_close is not None:
            self.on_idle_close(self)
        self._parser = None  # type: ignore[assignment] # breaks the cycle with the parser's callbacks

    def pause_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_writable(False)

    def resume_writing(self) -> None:
        if self._sink is not None:
            self._sink.on_writable(True)

    # -- httptools callbacks -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._complete:
            # A second answer behind the first: its bytes would go out behind the first one's length, into a connection on
            # which other callers' answers travel. The error ends the parsing; the first answer stands.
            raise _UnaskedAnswerError

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if not self._head_complete:
            self._head.add(name, value)
        elif name == ENGINE_ERROR:
            self.trailer_fault = value
        elif name == ENGINE_GONE:
            self.trailer_gone = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self._informational = True
            return
        self._head_complete = True
        self._head.close(status)
        self._keep_alive = self._parser.should_keep_alive() and (self._reuse_chunked or not self._head.chunked)

    def on_message_complete(self) -> None:
        if self._informational:
            self._informational = False
            self._head = ResponseHead()
        else:
            self._complete = True

    # -- inside ------------------------------------------------------------------------------------------

    def _tell_head(self, sink: ResponseSink, size: int) -> bool:
        """Hand the head over once it is complete; False when there is nothing more to do for these bytes."""
        if not self._head_complete:
            self._head_bytes += size
            if self._head_bytes > HEAD_LIMIT:
                self._lose(Loss.MALFORMED)
            return False
        self._head_told = True
        sink.on_head(self._head)
        return self._sink is sink

    def _finish(self, sink: ResponseSink, body: bytes) -> None:
        self._sink = None
        keep_alive = self._keep_alive
        self._reset()
        self._keep_alive = keep_alive
        # The state is fresh before the sink hears of the end, because the sink may start the next exchange at once.
        sink.on_body(body, True)

    def _lose(self, loss: Loss) -> None:
        sink = self._sink
        self._sink = None
        self.closed = True
        self.transport.abort()
        if sink is not None:
            if self._parts:
                body = b"".join(self._parts)
                self._parts.clear()
                if self._head_told:
                    sink.on_body(body, False)
            sink.on_lost(loss)
