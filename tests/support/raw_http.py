"""A client that shows an HTTP/1.1 answer as it is: chunks joined, trailers, and whether it was complete."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from dataclasses import dataclass, field

import httptools


@dataclass
class RawAnswer:
    """``complete`` is False when the connection ended before the body did."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    trailers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False
    _head_complete: bool = False

    def on_header(self, name: bytes, value: bytes) -> None:
        (self.trailers if self._head_complete else self.headers)[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self._head_complete = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


class RawClient:
    """One TCP connection; ``request`` may be called again as long as the server keeps it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, host: str, port: int, *, receive_buffer: int = 0) -> RawClient:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (host, port))
        except OSError:
            sock.close()
            raise
        return cls(*await asyncio.open_connection(sock=sock, limit=4096 if receive_buffer else 2**16))

    def send(self, method: str, path: str, headers: dict[str, str], body: bytes = b"", *, framed: bool = True) -> None:
        """Write a request; ``framed`` adds the content-length."""
        lines = [f"{method} {path} HTTP/1.1", "host: t", *(f"{name}: {value}" for name, value in headers.items())]
        if framed:
            lines.append(f"content-length: {len(body)}")
        self.writer.write(("\r\n".join(lines) + "\r\n\r\n").encode() + body)

    async def answer(self) -> RawAnswer:
        """Read one answer, to its end or to the connection's."""
        answer = RawAnswer()
        parser = httptools.HttpResponseParser(answer)
        while not answer.complete:
            try:
                data = await self.reader.read(2**16)
            except ConnectionError:
                break
            if not data:
                break
            parser.feed_data(data)
            if answer._head_complete:
                answer.status = parser.get_status_code()
        return answer

    async def request(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> RawAnswer:
        """Send a request and read its answer."""
        self.send(method, path, headers, body)
        return await self.answer()

    def abort(self) -> None:
        """Close at once."""
        self.writer.transport.abort()

    async def close(self) -> None:
        """Close."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()
