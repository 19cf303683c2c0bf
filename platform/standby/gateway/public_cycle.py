"""How a public connection writes an answer: uvicorn's cycle, with the head and the first bytes of the body in one write.

Two writes are two system calls and two packets for each answer, which is a sixth of what the gateway spends on one.
A head whose body does not follow in the same turn of the loop goes out alone, so that nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from standby.gateway.inline import DONE
from standby.wire.headers import status_line

if TYPE_CHECKING:
    from uvicorn._types import ASGISendEvent, HTTPScope

    from standby.gateway.public_port import PublicProtocol

_BODILESS: Final = frozenset({204, 304})
_FRAMING: Final = frozenset({b"content-length", b"transfer-encoding", b"connection"})


class Signal(asyncio.Event):
    """uvicorn's event, with its loop given: asyncio's asks for it at each wait, and up to Python 3.11 that is a system call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._given = loop

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        return self._given


class PublicCycle(RequestResponseCycle):
    """Sends as uvicorn's own does: same framing, same rules for what an application may send when."""

    def __init__(self, port: PublicProtocol, scope: HTTPScope, *, keep_alive: bool) -> None:
        super().__init__(
            scope,
            port.transport,
            port.flow,
            port.logger,
            port.access_logger,
            False,  # no access log; by position, since each request pays
            port.server_state.default_headers,
            Signal(port.loop),
            port.expect_100_continue,
            keep_alive,
            port.on_response_complete,
        )
        self._loop = port.loop
        self._held = b""
        self._flush: asyncio.Handle | None = None
        self.on_gone: Callable[[], object] | None = None

    def watch(self, on_gone: Callable[[], object]) -> None:
        """Call ``on_gone`` once when the caller has left, in the next turn of the loop; at once if it has.

        As ``receive`` would tell it, without a coroutine that waits for it. The request's body must have been read. Set
        ``on_gone`` to None to hear no more.
        """
        if self.disconnected or self.response_complete:
            on_gone()
            return
        self.on_gone = on_gone
        if self.flow.read_paused:
            # A large body has stopped the reading; unread, an end would not be noticed.
            self.flow.resume_reading()

    def take_body(self) -> bytes | None:
        """Return the request's body where all of it is here, as ``receive`` would; None: it must be awaited."""
        if self.more_body or self.waiting_for_100_continue or self.disconnected or self.response_complete:
            return None
        self.flow.resume_reading()
        self.message_event.clear()
        body, self.body = bytes(self.body), bytearray()
        return body

    def caller_left(self) -> None:
        """The connection is lost."""
        if self.on_gone is not None and not self.response_complete:
            self._loop.call_soon(self._tell_gone)

    def _tell_gone(self) -> None:
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def send(self, message: ASGISendEvent) -> Awaitable[None]:  # type: ignore[override] # any awaitable is one
        """Take one ASGI message. Raises RuntimeError for one out of turn, and for a body that is not as long as announced.

        What need not wait is done by the call itself, without a coroutine.
        """
        if self.disconnected:
            return DONE
        if self.flow.write_paused:
            return self._send_later(message)
        kind = message["type"]
        if not self.response_started:
            if kind != "http.response.start":
                raise RuntimeError(f"'{kind}' was sent before the head of the answer")
            self._hold(message["status"], message.get("headers", ()))  # type: ignore[typeddict-item, arg-type] # a head, as asked
        elif self.response_complete or kind != "http.response.body":
            raise RuntimeError(f"'{kind}' was sent {'behind' if self.response_complete else 'inside'} an answer")
        else:
            self._write(message.get("body", b""), message.get("more_body", False))  # type: ignore[arg-type]
        return DONE

    async def _send_later(self, message: ASGISendEvent) -> None:
        self._flush_head()
        await self.flow.drain()
        await self.send(message)

    def _hold(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Keep the head until the body comes, or until the next turn of the loop."""
        self.response_started = True
        self.waiting_for_100_continue = False
        told = [*self.default_headers, *headers]
        lines = [status_line(status), *[b"%b: %b\r\n" % (name, value) for name, value in told]]
        closes = False
        for name, value in [header for header in told if header[0].lower() in _FRAMING]:
            lowered = name.lower()
            if lowered == b"content-length" and self.chunked_encoding is None:
                self.expected_content_length = int(value)
                self.chunked_encoding = False
            elif lowered == b"transfer-encoding" and value.lower() == b"chunked":
                self.expected_content_length, self.chunked_encoding = 0, True
            elif lowered == b"connection" and b"close" in value.lower():
                self.keep_alive, closes = False, True
        if not self.keep_alive and not closes:
            lines.append(b"connection: close\r\n")
        if self.chunked_encoding is None and self.scope["method"] != "HEAD" and status not in _BODILESS:
            self.chunked_encoding = True
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        # One count sees what a line break inside a name or value would do: the answer would be split into two.
        if head.count(b"\n") != len(lines) or b"\0" in head:
            raise RuntimeError("a header of the answer has a line break or a zero byte in it")
        self._held = head + b"\r\n"
        self._flush = self._loop.call_soon(self._flush_head)

    def _flush_head(self) -> None:
        held = self._take_held()
        if held and not self.disconnected:
            self.transport.write(held)

    def _take_held(self) -> bytes:
        held, self._held = self._held, b""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        return held

    def _write(self, body: bytes, more_body: bool) -> None:
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            body = b""
        elif self.chunked_encoding:
            body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more_body:
                body += b"0\r\n\r\n"
        else:
            self.expected_content_length -= len(body)
            if self.expected_content_length < 0:
                raise RuntimeError("the body is longer than its content-length")
        if self._held:
            body = self._take_held() + body
        if body:
            self.transport.write(body)
        if not more_body:
            self._complete()

    def _complete(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("the body is shorter than its content-length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
