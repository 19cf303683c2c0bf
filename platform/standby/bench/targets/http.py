"""An endpoint that speaks OpenAI's API over plain HTTP/1.1: standby, an engine by itself, any other server."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

from standby.bench.load import Clock
from standby.bench.targets.exchange import carry_out, pool_of, sample_of
from standby.bench.targets.findings import Findings
from standby.bench.targets.requests import Asking, Place, head_of
from standby.bench.values import Planned, Sample
from standby.wire.headers import SHADOW
from standby.wire.sse import EVENT_STREAM


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
        self._pool = pool_of(self.place, self.timeout_s)
        accept = EVENT_STREAM if self.asking.stream else b"application/json"
        fixed = {b"content-type": b"application/json", b"accept": accept, b"user-agent": b"standby-bench", **self.headers}
        if self.shadow:
            fixed[SHADOW] = b"1"
        self._head = head_of(self.place, self.path, fixed)
        self._prefix = f"bench-{secrets.token_hex(6)}"
        self._numbers = itertools.count(1)
        self._flag = "01" if self.sampled else "00"
        self._findings = Findings(shadow=self.shadow)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the report must know."""
        return self._findings.notes

    async def ask(self, planned: Planned, clock: Clock) -> Sample:
        """Send one request and return what became of it."""
        request_id = f"{self._prefix}-{next(self._numbers):x}"
        trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
        body = self.asking.body(planned)
        own = f"x-request-id: {request_id}\r\ntraceparent: 00-{trace_id}-{span_id}-{self._flag}\r\n"
        data = b"%b%bcontent-length: %d\r\n\r\n%b" % (self._head, own.encode(), len(body), body)
        exchange = await carry_out(self._pool, data, clock, self.timeout_s)
        self._findings.add(exchange)
        return sample_of(exchange, planned, target=self.name, request_id=request_id, trace_id=trace_id)

    async def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()
