"""A scriptable engine stand-in on a unix socket: each request is answered by a handler that owns the raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httptools


@dataclass
class Call:
    """One request as the engine saw it, and the wire to answer on. ``gone`` is set when the peer leaves."""

    transport: asyncio.Transport
    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    connection: int = 0
    writable: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0

    async def write(self, data: bytes) -> None:
        """Write raw bytes, waiting while the peer is full."""
        self.transport.write(data)
        self.written += len(data)
        await asyncio.sleep(0)  # a wait that does not wait would keep the peer's end from being noticed
        await self.writable.wait()

    async def json(self, status: int, body: bytes, *, headers: str = "") -> None:
        """Answer with a content-length body."""
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{headers}content-length: {len(body)}\r\n\r\n"
        await self.write(head.encode() + body)

    async def begin_stream(self, content_type: str = "text/event-stream") -> None:
        """Send the head of a chunked answer."""
        await self.write(f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ntransfer-encoding: chunked\r\n\r\n".encode())

    async def chunk(self, data: bytes) -> None:
        """Send one chunk."""
        await self.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def end_stream(self) -> None:
        """Send the last chunk."""
        await self.write(b"0\r\n\r\n")

    def close(self) -> None:
        """Close after what has been written."""
        self.transport.close()

    def reset(self) -> None:
        """Close at once, dropping what has not been sent."""
        self.transport.abort()


Handler = Callable[[Call], Awaitable[None]]


@dataclass
class Upstream:
    """The server. ``calls`` are complete requests in order; ``begun`` counts request heads, complete or not."""

    socket: Path
    handler: Handler
    calls: list[Call] = field(default_factory=list)
    begun: int = 0
    connections: int = 0
    read_paused: bool = False
    open: set[_Connection] = field(default_factory=set)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class _Connection(asyncio.Protocol):
    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.parser = httptools.HttpRequestParser(self)
        self.call: Call | None = None
        self.active: Call | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment] # a stream
        self.upstream.connections += 1
        self.number = self.upstream.connections
        self.upstream.open.add(self)
        if self.upstream.read_paused:
            # uvloop begins to read after connection_made, whatever was said in it.
            asyncio.get_running_loop().call_soon(self.transport.pause_reading)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def eof_received(self) -> None:
        self._gone()

    def connection_lost(self, exc: Exception | None) -> None:
        self.upstream.open.discard(self)
        self._gone()

    def _gone(self) -> None:
        if self.active is not None:
            self.active.gone.set()
            self.active.writable.set()

    def pause_writing(self) -> None:
        if self.active is not None:
            self.active.writable.clear()

    def resume_writing(self) -> None:
        if self.active is not None:
            self.active.writable.set()

    def on_message_begin(self) -> None:
        self.call = self.active = Call(self.transport, connection=self.number)
        self.call.writable.set()

    def on_url(self, url: bytes) -> None:
        assert self.call is not None
        self.call.path += url.decode()

    def on_header(self, name: bytes, value: bytes) -> None:
        assert self.call is not None
        self.call.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.upstream.begun += 1

    def on_body(self, data: bytes) -> None:
        assert self.call is not None
        self.call.body += data

    def on_message_complete(self) -> None:
        assert self.call is not None
        call = self.call
        call.method = self.parser.get_method().decode()
        self.upstream.calls.append(call)
        task = asyncio.get_running_loop().create_task(self._serve(call))
        self.upstream.tasks.add(task)
        task.add_done_callback(self.upstream.tasks.discard)

    async def _serve(self, call: Call) -> None:
        await self.upstream.handler(call)


@contextlib.asynccontextmanager
async def upstream(socket: Path, handler: Handler) -> AsyncIterator[Upstream]:
    """Run an engine stand-in; its connections and handlers end with the context."""
    engine = Upstream(socket, handler)
    server = await asyncio.get_running_loop().create_unix_server(lambda: _Connection(engine), str(socket))
    try:
        async with _served(engine, server):
            yield engine
    finally:
        socket.unlink(missing_ok=True)


@contextlib.asynccontextmanager
async def tcp_upstream(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Upstream, int]]:
    """Run one on a free port of the loopback interface, which is yielded beside it."""
    engine = Upstream(Path("/nowhere"), handler)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(engine), "127.0.0.1", 0, ssl=tls)
    async with _served(engine, server):
        yield engine, server.sockets[0].getsockname()[1]


@contextlib.asynccontextmanager
async def _served(engine: Upstream, server: asyncio.Server) -> AsyncIterator[None]:
    try:
        yield
    finally:
        server.close()
        for connection in tuple(engine.open):
            connection.transport.abort()
        for task in tuple(engine.tasks):
            task.cancel()
        await asyncio.gather(*engine.tasks, return_exceptions=True)
        await server.wait_closed()


async def echo(call: Call) -> None:
    """Answer with what was seen, as JSON."""
    seen = {"method": call.method, "path": call.path, "headers": call.headers, "length": len(call.body)}
    await call.json(200, json.dumps(seen).encode())


async def until_gone(call: Call) -> None:
    """Say nothing until the peer leaves."""
    await call.gone.wait()
