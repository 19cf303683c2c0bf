"""A real nats-server for tests: ``async with nats_server(tmp_path) as server, server.bus() as bus: …``."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from standby.bus.connection import Bus
from standby.bus.embedded import EmbeddedNats
from standby.bus.settings import BusSettings

_MEMORY: Final = Path("/dev/shm")
_ROOM_BYTES: Final = 2 << 30


class NatsServer:
    """A running server that can be ended, restarted and robbed of its data; its URL never changes."""

    def __init__(self, folder: Path) -> None:
        self._embedded = EmbeddedNats(folder)

    @property
    def url(self) -> str:
        """Where clients connect, without credentials."""
        return self._embedded.url

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._embedded.pid

    def settings(self, **overrides: Any) -> BusSettings:
        """Settings that connect to this server; any field of BusSettings may be overridden."""
        return BusSettings(**{**self._embedded.settings().model_dump(), **overrides})

    @asynccontextmanager
    async def bus(self, name: str = "test", **overrides: Any) -> AsyncIterator[Bus]:
        """A connected bus that is closed at the end."""
        bus = await Bus.connect(self.settings(**overrides), name=name)
        try:
            yield bus
        finally:
            await bus.close()

    async def start(self) -> None:
        """Start (again) on the same data, address and credentials."""
        await self._embedded.start()

    async def stop(self, *, kill: bool = False) -> None:
        """End the server: politely, or as a crash would."""
        await (self._embedded.kill() if kill else self._embedded.stop())

    async def restart(self, *, kill: bool = False, down_s: float = 0.0, wipe: bool = False) -> None:
        """End the server, stay away for ``down_s`` seconds, start it again; ``wipe`` empties its store meanwhile."""
        await self.stop(kill=kill)
        if wipe:
            shutil.rmtree(self._embedded.state_dir / "data")
        await asyncio.sleep(down_s)
        await self.start()

    @asynccontextmanager
    async def link(self) -> AsyncIterator[Link]:
        """A way to this server that can be cut for one client alone."""
        link = Link(int(self.url.rpartition(":")[2]))
        await link.start()
        try:
            yield link
        finally:
            await link.stop()


class Link:
    """A TCP relay on a free loopback port; connect with ``server.settings(nats_url=link.url)``."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._whole = True
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Where the client connects."""
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        """Begin to relay."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def stop(self) -> None:
        """End the relay and its connections."""
        self.cut()
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        """Drop every connection, and every new one until ``mend``."""
        self._whole = False
        for writer in self._writers:
            writer.close()

    def mend(self) -> None:
        """Let connections through again."""
        self._whole = True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._whole:
            writer.close()
            return
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
        self._writers |= {writer, onward_writer}
        try:
            await asyncio.gather(self._copy(reader, onward_writer), self._copy(onward_reader, writer))
        finally:
            self._writers -= {writer, onward_writer}

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def nats_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """Start a server on a free port with its state in memory, or below ``tmp_path`` without room there; ended at the end.

    It waits for the disk at each write, and memory outlives a killed server as a disk does.
    """
    with _quick_folder(tmp_path) as folder:
        server = NatsServer(folder / "nats")
        await server.start()
        try:
            yield server
        finally:
            await server.stop()


@contextlib.contextmanager
def _quick_folder(otherwise: Path) -> Iterator[Path]:
    if not _MEMORY.is_dir() or shutil.disk_usage(_MEMORY).free < _ROOM_BYTES:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="nats-", dir=_MEMORY) as folder:
        yield Path(folder)
