"""The public side of a connection: uvicorn's HTTP/1.1 protocol with the bounds that it lacks.

Nobody has shown a key yet when a head is read, so its size and its time are bounded here; a stalled body ends too. A
second request behind one that is still being answered is not read: uvicorn would pause the connection for it, and then
notice neither that the caller left nor end the work behind it (field case B25).
"""

from __future__ import annotations

import asyncio
import urllib.parse
from enum import Enum
from functools import lru_cache
from typing import ClassVar, Final

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from standby.gateway.public_cycle import PublicCycle
from standby.wire.headers import status_line
from standby.wire.sockets import tune

_NO_HTTP: Final = "Invalid HTTP request received."
# Longer than any path of a data route.
_LONGEST_REMEMBERED: Final = 256


class Awaited(Enum):
    """What the caller owes."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"


# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_NOTHING: Final = Awaited.NOTHING
_HEAD: Final = Awaited.HEAD
_BODY: Final = Awaited.BODY


class _Pipelined(Exception):
    """Ends the parsing of a connection whose next request came too early."""


class PublicProtocol(HttpToolsProtocol):
    """``head_limit`` in bytes; ``head_s`` for a whole head, from the connection or its first byte; ``body_quiet_s``
    between two pieces of a body. One late caller is noticed up to once the limit later. ``last_head_s``: for a request
    that is on its way when the server closes.
    """

    head_limit: ClassVar[int] = 64 * 1024
    head_s: ClassVar[float] = 20.0
    body_quiet_s: ClassVar[float] = 60.0
    last_head_s: ClassVar[float] = 0.5

    _awaited: Awaited = _HEAD
    _head_bytes = 0
    _deaf = False
    _last = False
    _since = 0.0
    _watchdog: asyncio.TimerHandle | None = None
    _idle_since: float | None = None
    _idle_timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        tune(transport)
        self._last = getattr(self.server_state, "draining", False)
        self._since = self.loop.time()
        self._watchdog = self.loop.call_later(self.head_s, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._watchdog, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._watchdog = self._idle_timer = None
        if isinstance(self.cycle, PublicCycle):
            self.cycle.caller_left()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._idle_since = None
        if self._awaited is _NOTHING and self.cycle.response_complete:
            # Whatever comes, even an empty line, has ended the idle time: from here on a head is owed.
            self._owe(_HEAD)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.logger.warning(_NO_HTTP)
            self.send_400_response(_NO_HTTP)
        except httptools.HttpParserUpgrade:
            self._unsupported_upgrade_warning()
        if self._awaited is _NOTHING:
            return
        if self._awaited is _BODY:
            # The rest of a body that was refused buys no more time. CONNECT gets as far as here without a cycle.
            if self.cycle is not None and not self.cycle.response_complete:
                self._since = self.loop.time()
        elif self.parser is not None:
            self._head_bytes += len(data)
            if self._head_bytes > self.head_limit:
                self._refuse_head()
                return
        if self._watchdog is None and not self.transport.is_closing():
            self._watchdog = self.loop.call_later(self._limit, self._check)

    # -- httptools callbacks -----------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._deaf = True
            self.cycle.keep_alive = False
            raise _Pipelined
        if self._awaited is not _HEAD:
            self._owe(_HEAD)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Start the request: as uvicorn does, without what this gateway never has (WebSockets, pipelines, access logs)."""
        self._awaited = _BODY
        parser, scope = self.parser, self.scope
        version = parser.get_http_version()
        scope["method"] = parser.get_method().decode("ascii")
        if version != "1.1":
            scope["http_version"] = version
        # Raises for CONNECT, whose target is no URL: it gets no cycle.
        url = self.url
        path, raw_path, query = _remembered(url) if len(url) <= _LONGEST_REMEMBERED else _taken_apart(url)
        scope["path"], scope["raw_path"], scope["query_string"] = path, raw_path, query
        keep_alive = version != "1.0" and not self._last and parser.should_keep_alive()
        self.cycle = PublicCycle(self, scope, keep_alive=keep_alive)
        task = self.loop.create_task(self.cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._awaited = _NOTHING
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """The connection is idle. One timer for all such times: starting and ending one for each answer costs more."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self._idle_timer is None:
            self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._check_idle)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP, unless an answer is on its way: it must not get another into its middle."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or not (cycle.response_started or self._awaited is _NOTHING):
            super().send_400_response(msg)
        elif self._awaited is _NOTHING:
            self._deaf = True
            cycle.keep_alive = False
        else:
            self.transport.close()

    # -- the server's end --------------------------------------------------------------------------------------

    def answer_is_last(self) -> None:
        """Say ``connection: close`` in the answer that is under way, or in the next one."""
        self._last = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def shutdown(self) -> None:
        """Close once the request that is here, or that the caller has just begun to send, is answered."""
        self.answer_is_last()
        if self.cycle is not None and not self.cycle.response_complete:
            return
        if self.cycle is None or (self._awaited is _HEAD and self._head_bytes):
            self.loop.call_later(self.last_head_s, self._close_if_idle)
        else:
            self.transport.close()

    def _close_if_idle(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()

    # -- inside ------------------------------------------------------------------------------------------------

    @property
    def _limit(self) -> float:
        return self.head_s if self._awaited is _HEAD else self.body_quiet_s

    def _owe(self, what: Awaited) -> None:
        self._awaited = what
        self._head_bytes = 0
        self._since = self.loop.time()

    def _refuse_head(self) -> None:
        self._deaf = True
        message = b"the request head is larger than %d bytes" % self.head_limit
        framing = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(message)
        self.transport.write(status_line(431) + framing + message)
        self.transport.close()

    def _check_idle(self) -> None:
        self._idle_timer = None
        if self._idle_since is None or self.transport.is_closing():
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._idle_timer = self.loop.call_later(left, self._check_idle)

    def _check(self) -> None:
        self._watchdog = None
        if self._awaited is _NOTHING or self.transport.is_closing():
            return
        left = self._since + self._limit - self.loop.time()
        if left <= 0:
            self.transport.close()
        else:
            self._watchdog = self.loop.call_later(left, self._check)


def _taken_apart(url: bytes) -> tuple[str, bytes, bytes]:
    """Return decoded path, path and query of a request's target. Raises HttpParserInvalidURLError."""
    parsed = httptools.parse_url(url)
    raw_path: bytes = parsed.path
    path = raw_path.decode("ascii")
    return urllib.parse.unquote(path) if "%" in path else path, raw_path, parsed.query or b""


# Nobody has shown a key yet: long targets of strangers are not remembered.
_remembered: Final = lru_cache(maxsize=1024)(_taken_apart)
