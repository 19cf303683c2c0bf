"""The baseline's front: takes requests, starts the container where there is none, and stops it when nobody has asked for long.

One request a connection on both sides, bytes passed on as they come: a lean way, so that the baseline is not slow for a
reason that real ones do not have. Answers carry the headers by which the load generator knows rung and phases.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from standby.bench.baseline_container import Container
from standby.domain.errors import StandbyError
from standby.host.tasks import end
from standby.wire.headers import PHASES_MS, RUNG, WAIT_MS

STATUS_PATH: Final = "/baseline"
STOP_PATH: Final = "/baseline/stop"
_MOST_HEAD: Final = 64 * 1024
_MOST_BODY: Final = 8 * 1024 * 1024
_PIECE: Final = 64 * 1024
_LOOK_S: Final = 0.25
_HOP: Final = frozenset({"connection", "keep-alive", "host", "expect"})


@dataclass(frozen=True)
class Head:
    """The head of a request or answer: its first line, and its headers in lower case with their values."""

    line: str
    headers: tuple[tuple[str, str], ...]

    def value(self, name: str) -> str | None:
        """Return the first value of a header."""
        return next((value for key, value in self.headers if key == name), None)

    def written(self, more: Mapping[str, str]) -> bytes:
        """Return it for the next hop, which ends its connection after one answer."""
        kept = [(key, value) for key, value in self.headers if key not in _HOP]
        lines = [self.line, *(f"{key}: {value}" for key, value in (*kept, *more.items(), ("connection", "close")))]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def read_head(reader: asyncio.StreamReader) -> Head:
    """Read one head. Raises ValueError for what is none, IncompleteReadError where the connection ends."""
    raw = await reader.readuntil(b"\r\n\r\n")
    first, *rest = raw.decode("latin-1").split("\r\n")[:-2]
    pairs = (line.partition(":") for line in rest)
    return Head(first, tuple((name.strip().lower(), value.strip()) for name, _, value in pairs))


@dataclass
class Proxy:
    """``keep_s``: how long an idle container stays, as SageMaker's stay for a time that it does not tell."""

    container: Container
    keep_s: float
    in_flight: int = 0
    requests: int = 0
    byte_seconds: float = 0.0
    resident: int = 0
    _idle_since: float = field(default_factory=time.monotonic)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def serve(self, host: str, port: int) -> asyncio.Server:
        """Listen and return the server; ``watch`` has to run beside it."""
        return await asyncio.start_server(self._connection, host, port, limit=_MOST_HEAD)

    async def watch(self) -> None:
        """Count what is held, and stop the container when its time is over; until cancelled."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(_LOOK_S)
            now = time.monotonic()
            self.resident = await asyncio.to_thread(self.container.resident_bytes)
            self.byte_seconds += self.resident * (now - last)
            last = now
            if self.container.running and not self.in_flight and now - self._idle_since >= self.keep_s:
                await self.stop()

    async def stop(self) -> bool:
        """Stop the container unless somebody is being served; return whether there is none now."""
        async with self._turn:
            if self.in_flight:
                return False
            await self.container.stop()
            return True

    def status(self) -> dict[str, object]:
        """Return what is known, for whoever compares."""
        return {
            "running": self.container.running,
            "keep_s": self.keep_s,
            "in_flight": self.in_flight,
            "requests": self.requests,
            "starts": self.container.starts,
            "stops": self.container.stops,
            "resident_bytes": self.resident,
            "byte_seconds": self.byte_seconds,
            "phases_ms": dict(self.container.phases_ms),
        }

    # ---- one connection ----------------------------------------------------------------------------------------

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._one(reader, writer)
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller has gone, or speaks no HTTP: there is nobody to tell
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        method, path, *_ = head.line.split(" ")
        length = int(head.value("content-length") or 0)
        if length > _MOST_BODY or head.value("transfer-encoding"):
            answer(writer, 413, {"error": {"message": f"a body of known length up to {_MOST_BODY} bytes, please"}})
            return
        body = await reader.readexactly(length)
        if path == STATUS_PATH:
            answer(writer, 200, self.status())
        elif path == STOP_PATH and method == "POST":
            answer(writer, 200 if await self.stop() else 409, self.status())
        else:
            await self._forward(head, body, reader, writer)

    async def _forward(self, head: Head, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came = time.perf_counter()
        self.in_flight += 1
        self.requests += 1
        try:
            cold = await self._up()
            waited_ms = (time.perf_counter() - came) * 1000
            more = {RUNG.decode(): "cold" if cold else "ready", WAIT_MS.decode(): f"{waited_ms:.1f}"}
            if cold:
                phases = self.container.phases_ms.items()
                more[PHASES_MS.decode()] = ",".join(f"{name}={ms:.1f}" for name, ms in phases)
            passing = asyncio.create_task(self._pass_on(head, body, writer, more))
            leaving = asyncio.create_task(reader.read(1))
            await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            await end([passing, leaving])
            if not passing.cancelled():
                passing.result()
        except StandbyError as error:
            answer(writer, 503, {"error": {"message": str(error)}})
        finally:
            self.in_flight -= 1
            self._idle_since = time.monotonic()

    async def _up(self) -> bool:
        """Have a container; return whether this request had to wait for its start."""
        if self.container.running and not self._turn.locked():
            return False
        async with self._turn:
            if not self.container.running:
                await self.container.start()
        return True

    async def _pass_on(self, head: Head, body: bytes, writer: asyncio.StreamWriter, more: Mapping[str, str]) -> None:
        try:
            upstream, sink = await asyncio.open_unix_connection(str(self.container.socket), limit=_MOST_HEAD)
        except OSError as error:
            answer(writer, 502, {"error": {"message": f"the engine does not answer: {error}"}})
            return
        try:
            sink.write(head.written({"host": "engine"}) + body)
            await sink.drain()
            writer.write((await read_head(upstream)).written(more))
            while piece := await upstream.read(_PIECE):
                writer.write(piece)
                await writer.drain()
        finally:
            sink.close()


def answer(writer: asyncio.StreamWriter, status: int, content: object) -> None:
    """Write a whole answer."""
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    writer.write(head.encode() + body)
