"""A lean load generator: keep-alive HTTP/1.1 clients as protocols, no task for each request."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import httptools

Address = Path | tuple[str, int]


@dataclass
class Tally:
    """What a run saw. Times in seconds; ``body_bytes`` counts what arrived."""

    requests: int = 0
    errors: int = 0
    body_bytes: int = 0
    latencies: list[float] = field(default_factory=list)
    first_bytes: list[float] = field(default_factory=list)

    @property
    def latency_p50_us(self) -> float:
        return statistics.median(self.latencies) * 1e6

    @property
    def first_byte_p50_us(self) -> float:
        return statistics.median(self.first_bytes) * 1e6


class _Caller(asyncio.Protocol):
    """Sends the same request again and again until ``until`` (loop time) or ``count`` requests, then resolves ``done``."""

    def __init__(self, payload: bytes, tally: Tally, until: float, count: int) -> None:
        self.payload = payload
        self.tally = tally
        self.until = until
        self.count = count
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[None] = self.loop.create_future()
        self.parser = httptools.HttpResponseParser(self)
        self.first = 0.0
        self.answered = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] # a stream
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.tally.errors += 1
            self.done.set_result(None)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)
        if self.answered:
            self._send()

    def on_body(self, data: bytes) -> None:
        if not self.first:
            self.first = time.perf_counter()
            self.tally.first_bytes.append(self.first - self.begun)
        self.tally.body_bytes += len(data)

    def on_message_complete(self) -> None:
        self.tally.latencies.append(time.perf_counter() - self.begun)
        self.tally.requests += 1
        if self.parser.get_status_code() != 200:
            self.tally.errors += 1
        self.answered = True

    def _send(self) -> None:
        if self.count == 0 or self.loop.time() >= self.until:
            self.done.set_result(None)
            self.transport.close()
            return
        self.count -= 1
        self.first = 0.0
        self.answered = False
        self.begun = time.perf_counter()
        self.transport.write(self.payload)


def http_request(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """Return a POST as bytes."""
    lines = [f"POST {path} HTTP/1.1", "host: bench", "content-type: application/json", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


async def load(address: Address, payload: bytes, *, at_once: int, duration_s: float, count: int = -1) -> Tally:
    """Keep ``at_once`` requests running for ``duration_s``, each connection at most ``count`` of them (-1: no limit)."""
    loop = asyncio.get_running_loop()
    tally = Tally()
    until = loop.time() + duration_s
    callers = [_Caller(payload, tally, until, count) for _ in range(at_once)]
    for caller in callers:
        if isinstance(address, Path):
            await loop.create_unix_connection(lambda caller=caller: caller, str(address))  # type: ignore[misc] # bound now
        else:
            await loop.create_connection(lambda caller=caller: caller, *address)  # type: ignore[misc] # bound now
    await asyncio.gather(*(caller.done for caller in callers))
    return tally
