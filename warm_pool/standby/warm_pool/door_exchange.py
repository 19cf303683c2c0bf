"""One request on its way through the door: from its first body byte to the slot given back.

| state | becomes | when |
|---|---|---|
| GATHERING | CONNECTING or SENT | the body is complete, or too large to hold |
| CONNECTING | SENT | the engine's socket accepts |
| SENT | CONNECTING | a reused connection closed before any response byte: once more on a fresh one |
| SENT | STREAMING | the first body byte, or the end of an answer without one |
| any | ENDED | answer complete, gateway gone, engine fault, limit, abort |

The head of the answer is held until its first body byte, so that an engine that dies between the two is still an honest
502 which the gateway may send elsewhere (field case B27).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from standby.warm_pool.door_dial import dial
from standby.warm_pool.door_evidence import sight_of
from standby.warm_pool.door_load import SERVER_ERROR
from standby.warm_pool.door_slots import Gate
from standby.warm_pool.door_spans import UNTRACED, DoorTrace
from standby.wire.connection import Loss, ResponseHead, WireConnection
from standby.wire.headers import ENGINE_ERROR, ENGINE_GONE, ENGINE_SAW, EngineFault, Sight, header_lines, status_line
from standby.wire.pool import STALE_WITHIN_S
from standby.wire.sockets import nobody_listens
from standby.wire.sse import error_event

# A body up to this size is sent in one piece on a kept connection, and can be sent again when that one turns out stale.
GATHER_LIMIT: Final = 256 * 1024
# A process that ends closes its sockets one after the other, and the one at which it listens may be the last. A busy machine
# may let it wait in between.
_LOOK_S: Final = 0.02
_LOOKS: Final = 10


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """How long and how large: seconds and bytes."""

    first_byte_s: float = 900.0
    between_bytes_s: float = 120.0
    gateway_s: float = 120.0
    check_every_s: float = 1.0
    head_s: float = 20.0
    head_bytes: int = 64 * 1024
    body_bytes: int = 64 * 1024 * 1024


class ExchangeState(Enum):
    """Where a request is; the transition table is in the module's docstring."""

    GATHERING = "gathering"
    CONNECTING = "connecting"
    SENT = "sent"
    STREAMING = "streaming"
    ENDED = "ended"


# Each request asks for them: up to Python 3.11 an enum's member takes ten times as long to look up as a name of the module.
_GATHERING: Final = ExchangeState.GATHERING
_CONNECTING: Final = ExchangeState.CONNECTING
_SENT: Final = ExchangeState.SENT
_STREAMING: Final = ExchangeState.STREAMING
_ENDED: Final = ExchangeState.ENDED
_UNSEEN: Final = Sight.NOTHING
_PERHAPS: Final = Sight.PERHAPS


class GatewaySide(Protocol):
    """The connection to the gateway, as an exchange sees it."""

    transport: asyncio.Transport
    writing_paused: bool

    def answer(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole answer of the door's own."""

    def hold_request(self, hold: bool) -> None:
        """Stop (True) or go on (False) reading request bytes."""

    def exchange_over(self, *, cut: bool) -> None:
        """The exchange has ended; ``cut`` closes the connection, so that the answer is seen to be incomplete."""

    @property
    def closing_after(self) -> bytes:
        """The header line to add when this answer is the connection's last, or nothing."""


class Exchange:
    """One admitted request. It holds its slot from its creation until ``ENDED``, and every ending goes through ``_end``."""

    __slots__ = (
        "_chunked_answer",
        "_chunked_request",
        "_clock",
        "_gate",
        "_gateway",
        "_head",
        "_heard",
        "_held",
        "_held_bytes",
        "_limits",
        "_moved",
        "_quiet_since",
        "_replay",
        "_request_complete",
        "_seen_before",
        "_sent",
        "_sent_at",
        "_sight",
        "_size",
        "_spawn",
        "_state",
        "_tail",
        "_trace",
        "_upload_blocked",
        "_upstream",
    )

    def __init__(
        self,
        gate: Gate,
        gateway: GatewaySide,
        head: bytes,
        *,
        chunked: bool,
        limits: DoorLimits,
        clock: Callable[[], float],
        spawn: Callable[[Exchange], None],
        trace: DoorTrace = UNTRACED,
    ) -> None:
        """``head`` is the request head for the engine; ``spawn`` runs ``connect`` as a task that the door owns."""
        self._gate = gate
        self._gateway = gateway
        self._limits = limits
        self._clock = clock
        self._spawn = spawn
        self._trace = trace
        self._state = _GATHERING
        self._chunked_request = chunked
        self._held = [head]
        self._held_bytes = 0
        self._size = 0
        self._replay = b""
        self._sight = self._seen_before = _UNSEEN
        self._sent = 0
        self._sent_at = 0.0
        self._upstream: WireConnection | None = None
        self._head: ResponseHead | None = None
        self._tail = b""
        self._request_complete = self._upload_blocked = self._chunked_answer = self._heard = False
        self._moved = True
        self._quiet_since = 0.0
        gate.take(self, clock())

    # -- from the gateway ----------------------------------------------------------------------------------

    def on_request_body(self, data: bytes, last: bool) -> None:
        """Take body bytes of the request; ``last`` ends it."""
        self._moved = True
        self._request_complete = last
        self._size += len(data)
        if self._size > self._limits.body_bytes:
            self._refuse_body()
            return
        if self._chunked_request:
            data = _chunk(data) + (b"0\r\n\r\n" if last else b"")
        if self._state in (_GATHERING, _CONNECTING):
            self._hold(data)
        elif self._upstream is not None:
            self._upstream.transport.write(data)

    def on_gateway_gone(self) -> None:
        """The gateway closed its connection: close the engine's at once, which makes the engine stop generating."""
        self._trace.failed("gateway_gone")
        self._end(served=False, cut=True)

    def on_gateway_full(self, full: bool) -> None:
        """The gateway takes the answer more slowly (True) or again (False)."""
        if self._upstream is not None:
            if full:
                self._upstream.pause()
            else:
                self._moved = True
                self._upstream.resume()

    # -- to the engine -------------------------------------------------------------------------------------

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)
        if self._state is _CONNECTING:
            self._gateway.hold_request(self._held_bytes > GATHER_LIMIT)
        elif self._request_complete and self._held_bytes <= GATHER_LIMIT:
            self._send_on_kept_connection()
        elif self._request_complete or self._held_bytes > GATHER_LIMIT:
            self._connect()

    def _send_on_kept_connection(self) -> None:
        upstream = self._gate.pool.take()
        if upstream is None:
            self._connect()
            return
        self._replay = b"".join(self._held)
        self._attach(upstream)

    def _connect(self) -> None:
        # An engine may spend a thread on each connection: none is left idle beside the one that is now opened, so that
        # an instance never has more connections than slots.
        spare = self._gate.pool.take()
        if spare is not None:
            spare.abort()
        self._state = _CONNECTING
        self._spawn(self)

    async def connect(self) -> None:
        """Open a connection to the engine and send what is held; the door runs this as a task."""
        try:
            upstream = await dial(self._gate.pool, lambda: self._state is _CONNECTING, self._clock)
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError | FileNotFoundError)
            if refused:
                self._gate.pulse.refused_connection()
            if self._state is _CONNECTING:
                # Where a kept connection has broken under this request before, the engine may have ended with it.
                gone = refused and self._sight is not _UNSEEN
                self._fail(EngineFault.CONNECT, f"the engine's socket does not accept: {error}", gone=gone)
            return
        if self._state is _CONNECTING:
            self._attach(upstream)
        else:
            upstream.abort()

    def _attach(self, upstream: WireConnection) -> None:
        self._upstream = upstream
        self._state = _SENT
        self._seen_before, self._sight = self._sight, max(self._sight, _PERHAPS)
        self._sent_at = self._clock()
        data = b"".join(self._held)
        self._sent = len(data)
        self._held.clear()
        upstream.start(self, data)
        if self._gateway.writing_paused:
            upstream.pause()
        if not self._request_complete:
            self._gateway.hold_request(upstream.transport.get_write_buffer_size() > GATHER_LIMIT)

    # -- ResponseSink: from the engine ---------------------------------------------------------------------

    def on_head(self, head: ResponseHead) -> None:
        self._head = head
        self._moved = True  # but not heard: an engine that hangs may still send heads

    def on_body(self, data: bytes, last: bool) -> None:
        self._moved = self._heard = True
        if self._state is not _STREAMING:
            data = self._begin_answer(data)
        elif self._chunked_answer and data:
            self._tail = data
            data = _chunk(data)
        if last:
            if self._chunked_answer:
                data += b"0\r\n\r\n"
            if data:
                self._gateway.transport.write(data)
            self._end(served=True)
        else:
            self._gateway.transport.write(data)

    def on_lost(self, loss: Loss) -> None:
        upstream = self._upstream
        self._upstream = None
        assert upstream is not None  # only called by the one that is attached
        self._sight = sight_of(self._gate.address, loss, self._sent, heard=upstream.heard, before=self._seen_before)
        if self._was_stale(upstream):
            self._held = [self._replay]
            self._replay = b""
            self._connect()
        elif loss is Loss.MALFORMED:
            self._fail(EngineFault.MALFORMED, "the engine's answer is not HTTP")
        else:
            # Of TCP no look tells anything, and a slot is not held for nothing.
            self._died_or_not(_LOOKS if isinstance(self._gate.address, Path) else 0)

    def on_writable(self, writable: bool) -> None:
        if not self._request_complete:
            self._moved = True
            self._upload_blocked = not writable
            self._gateway.hold_request(not writable)

    def _begin_answer(self, data: bytes) -> bytes:
        """Return the answer's head with its first body bytes, framed for the gateway."""
        head = self._head
        assert head is not None  # a connection tells the head before any body
        self._state = _STREAMING
        self._trace.first_byte()
        self._replay = b""
        self._tail = data
        # A body that ends with the connection is sent on as chunks, so that its end is explicit from here on.
        self._chunked_answer = head.chunked or head.ends_at_eof
        framing = b""
        if self._chunked_answer:
            framing = b"transfer-encoding: chunked\r\n"
            data = _chunk(data)
        elif head.content_length is not None:
            framing = b"content-length: %d\r\n" % head.content_length
        lines = header_lines(head.headers)
        return b"".join((status_line(head.status), lines, framing, self._gateway.closing_after, b"\r\n", data))

    # -- endings -------------------------------------------------------------------------------------------

    def abort(self, reason: str) -> None:
        """End the request on the node's behalf with an explicit error."""
        if self._state is not _ENDED:
            self._fail(EngineFault.ABORTED, reason)

    def check(self, now: float) -> None:
        """Count quiet time from the first check without progress; the limit depends on who is awaited."""
        if self._heard and self._status < SERVER_ERROR:
            self._heard = False
            self._gate.pulse.moved(now, busy=True)
        if self._moved:
            self._moved = False
            self._quiet_since = now
            return
        quiet = now - self._quiet_since
        limits = self._limits
        awaits_upload = not self._request_complete and not self._upload_blocked
        if awaits_upload or self._gateway.writing_paused:
            if quiet > limits.gateway_s:
                self._gateway.transport.abort()
                self.on_gateway_gone()
        elif self._state is _STREAMING:
            if quiet > limits.between_bytes_s:
                self._fail(EngineFault.TIMEOUT, f"the engine sent nothing for {limits.between_bytes_s:g} s")
        elif quiet > limits.first_byte_s:
            self._fail(EngineFault.TIMEOUT, f"the engine gave no first byte within {limits.first_byte_s:g} s")

    def _refuse_body(self) -> None:
        limit = self._limits.body_bytes
        if self._state is not _STREAMING:
            self._gateway.answer(413, [], b"request body is larger than the door's limit of %d bytes" % limit)
        self._end(served=False, cut=True)

    def _was_stale(self, upstream: WireConnection) -> bool:
        """A stale connection shows itself at once; one that is lost later may have carried the request to its end."""
        soon = self._clock() - self._sent_at < STALE_WITHIN_S
        return bool(self._replay) and upstream.reused and not upstream.heard and soon

    def _died_or_not(self, looks: int) -> None:
        if self._state is _ENDED:
            return
        gone = nobody_listens(self._gate.address)
        if gone or not looks:
            self._died(gone=gone)
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._died_or_not, looks - 1)

    def _died(self, *, gone: bool) -> None:
        """Whether the engine is gone makes the difference between a broken connection and a request that kills engines."""
        before = "it had read the request" if self._sight is _UNSEEN else "its answer was complete"
        self._fail(EngineFault.DIED, f"the engine closed the connection before {before}", gone=gone)

    def _fail(self, fault: EngineFault, message: str, *, gone: bool = False) -> None:
        cut = False
        self._trace.failed(fault.value)
        beside = self._gate.dying() if gone or fault is EngineFault.DIED else 0
        if fault in (EngineFault.DIED, EngineFault.MALFORMED):
            self._gate.pulse.broken(self._clock())
        if self._state is not _STREAMING:
            marks = [(ENGINE_ERROR, fault.encode()), (ENGINE_SAW, self._sight.encode())]
            if gone:
                marks.append((ENGINE_GONE, b"%d" % beside))
            self._gateway.answer(502, marks, message.encode())
        elif self._chunked_answer and self._head is not None and self._head.event_stream:
            event = error_event(f"engine_{fault}", message, self._tail)
            trailer = b"%b: %b\r\n" % (ENGINE_ERROR, fault.encode())
            if gone:
                trailer += b"%b: %d\r\n" % (ENGINE_GONE, beside)
            last = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(event), event, trailer)
            self._gateway.transport.write(last)
        else:
            cut = True
        self._end(served=False, engine_failed=fault is not EngineFault.ABORTED, cut=cut)

    @property
    def _status(self) -> int:
        return 0 if self._head is None else self._head.status

    def _end(self, *, served: bool, engine_failed: bool = False, cut: bool = False) -> None:
        if self._state is _ENDED:
            return
        self._state = _ENDED
        upstream = self._upstream
        self._upstream = None
        self._held.clear()
        self._replay = b""
        if upstream is not None:
            if served and self._request_complete:
                self._gate.pool.give_back(upstream)
            else:
                upstream.abort()
        status = self._status if self._heard or served else 0
        self._trace.over(self._status)
        self._gate.give_back(self, now=self._clock(), status=status, served=served, engine_failed=engine_failed)
        self._gateway.exchange_over(cut=cut)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data) if data else b""
