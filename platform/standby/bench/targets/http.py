"""An endpoint that speaks OpenAI's API over plain HTTP/1.1: standby, an engine by itself, any other server."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from standby.bench.targets.exchange import Clock, carry_out, sample_of, shadowed
from standby.bench.targets.requests import SHADOW, Asking, Place, head_of
from standby.bench.values import Planned, Sample
from standby.wire.pool import CONNECT_LIMIT_S, ConnectionPool

IDLE_LIMIT: Final = 4096
COUNTED: Final = "the gateway counted these requests: its settings do not let this key mark them as a test (x-standby-shadow)"


@dataclass
class HttpTarget:
    """``path`` is where bodies are posted; ``headers`` go with each; ``shadow`` asks a gateway to leave them out of metering.

    ``sampled`` marks the requests' traces for whoever collects them (W3C trace context).
    """

    name: str
    place: Place
    path: str
    asking: Asking
    headers: Mapping[bytes, bytes] = field(default_factory=dict, repr=False)
    timeout_s: float = 300.0
    shadow: bool = True
    sampled: bool = False

    def __post_init__(self) -> None:
        self._pool = ConnectionPool(
            (self.place.host, self.place.port),
            reuse_chunked=True,
            idle_limit=IDLE_LIMIT,
            connect_limit_s=min(CONNECT_LIMIT_S, self.timeout_s),
            tls=self.place.tls(),
        )
        accept = b"text/event-stream" if self.asking.stream else b"application/json"
        fixed = {b"content-type": b"application/json", b"accept": accept, b"user-agent": b"standby-bench", **self.headers}
        if self.shadow:
            fixed[SHADOW] = b"1"
        self._head = head_of(self.place, self.path, fixed)
        self._prefix = f"bench-{secrets.token_hex(6)}"
        self._numbers = itertools.count(1)
        self._flag = "01" if self.sampled else "00"
        self._counted = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know."""
        return (COUNTED,) if self._counted else ()

    async def ask(self, planned: Planned, clock: Clock) -> Sample:
        """Send one request and return what became of it."""
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
        body = self.asking.body(planned)
        own = f"x-request-id: {request_id}\r\ntraceparent: 00-{trace_id}-{span_id}-{self._flag}\r\n"
        data = b"%b%bcontent-length: %d\r\n\r\n%b" % (self._head, own.encode(), len(body), body)
        exchange = await carry_out(self._pool, data, clock, self.timeout_s)
        if self.shadow and shadowed(exchange) is False:
            self._counted = True
        return sample_of(exchange, planned, target=self.name, request_id=request_id, trace_id=trace_id)

    async def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()
