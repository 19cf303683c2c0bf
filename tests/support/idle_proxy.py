"""A TCP proxy that cuts connections on which the server has been silent for too long, as proxies and balancers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

_TICKS: Final = 10


@dataclass
class IdleProxy:
    """``port`` on the loopback interface; ``cut`` counts connections that were idle for longer than ``limit_s``."""

    target: tuple[str, int]
    limit_s: float
    port: int = 0
    cut: int = 0
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on both ways until one side ends or the server is silent."""
        to_reader, to_writer = await asyncio.open_connection(*self.target)
        up = asyncio.create_task(self._pump(reader, to_writer))
        self.tasks.add(up)
        try:
            while data := await self._heard(to_reader):
                writer.write(data)
        except TimeoutError:
            self.cut += 1
        finally:
            up.cancel()
            to_writer.close()
            writer.close()

    async def _heard(self, reader: asyncio.StreamReader) -> bytes:
        """Read on. Raises TimeoutError at the limit, which is counted in ticks: when this process stands still, so does it."""
        reading = asyncio.ensure_future(reader.read(65536))
        try:
            for _ in range(_TICKS):
                await asyncio.wait({reading}, timeout=self.limit_s / _TICKS)
                if reading.done():
                    return reading.result()
            raise TimeoutError
        finally:
            reading.cancel()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)


@asynccontextmanager
async def idle_proxy(target: tuple[str, int], limit_s: float) -> AsyncIterator[IdleProxy]:
    """Run one in front of ``target``."""
    proxy = IdleProxy(target, limit_s)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await asyncio.gather(*proxy.tasks, return_exceptions=True)
