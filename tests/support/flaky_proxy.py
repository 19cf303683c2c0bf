"""A TCP proxy in front of a server that stalls or resets connections after a number of answered bytes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum, auto
from urllib.parse import urlsplit


class Fault(Enum):
    """What happens when the limit of answered bytes is reached."""

    NONE = auto()
    RESET_ONCE = auto()
    RESET_ALWAYS = auto()
    STALL = auto()


class FlakyProxy:
    """Counts what the server answers; the fault set by ``break_after`` hits when ``answered`` reaches the limit."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._fault = Fault.NONE
        self._limit = 0
        self.answered = 0
        self.resets = 0
        self.hit = asyncio.Event()
        self._healed = asyncio.Event()
        self.url = ""

    def break_after(self, answered: int, fault: Fault) -> None:
        """From now on: after ``answered`` more bytes, ``fault``."""
        self._limit, self._fault = self.answered + answered, fault
        self.hit.clear()
        self._healed.clear()

    def heal(self) -> None:
        """No fault any more; stalled connections go on."""
        self._fault = Fault.NONE
        self._healed.set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
            try:
                await self._serve(reader, writer, upstream_reader, upstream_writer)
            finally:
                await _close(upstream_writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            await _close(writer)
            self._tasks.discard(task)

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        upstream_reader: asyncio.StreamReader,
        upstream_writer: asyncio.StreamWriter,
    ) -> None:
        requests = asyncio.create_task(_pump(reader, upstream_writer))
        try:
            while block := await upstream_reader.read(16384):
                if self._fault is not Fault.NONE and self.answered + len(block) > self._limit:
                    self.hit.set()
                    if self._fault is Fault.STALL:
                        await self._healed.wait()
                    else:
                        return self._reset(writer)
                self.answered += len(block)
                writer.write(block)
                await writer.drain()
        finally:
            requests.cancel()
            await asyncio.gather(requests, return_exceptions=True)

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self.resets += 1
        if self._fault is Fault.RESET_ONCE:
            self._fault = Fault.NONE
        # With linger 0 the close is a reset, as from a load balancer that loses its backend.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(16384):
            writer.write(block)
            await writer.drain()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def flaky_proxy(target_url: str) -> AsyncIterator[FlakyProxy]:
    """Start a proxy in front of ``target_url`` (http), stop it at the end."""
    parts = urlsplit(target_url)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = FlakyProxy(parts.hostname, parts.port)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
