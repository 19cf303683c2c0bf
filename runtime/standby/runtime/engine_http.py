"""One HTTP request to an engine, on a connection of its own: for probes and health, not for traffic."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import httptools

from standby.wire.pool import Address

_READ_BYTES = 64 * 1024
_BODY_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of a complete answer."""

    status: int
    body: bytes

    def json(self) -> object:
        """Return the body as JSON; None when it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


class _Collector:
    """Callbacks of the HTTP parser."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True


async def request(address: Address, method: str, path: str, payload: object = None) -> Answer:
    """Send one request and return the whole answer; the caller sets the time limit.

    Raises OSError when nobody listens or the connection breaks, ValueError when the answer is no HTTP or is larger
    than 1 MiB.
    """
    if isinstance(address, Path):
        reader, writer = await asyncio.open_unix_connection(str(address))
    else:
        reader, writer = await asyncio.open_connection(*address)
    try:
        body = b"" if payload is None else json.dumps(payload).encode()
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: engine\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return await _read_answer(reader)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    while not collector.complete:
        part = await reader.read(_READ_BYTES)
        if not part:
            raise ConnectionResetError("the engine closed the connection before the answer was complete")
        try:
            parser.feed_data(part)
        except httptools.HttpParserError as error:
            raise ValueError(f"the engine's answer is no HTTP: {error}") from error
        if len(collector.body) > _BODY_LIMIT:
            raise ValueError(f"the engine's answer is larger than {_BODY_LIMIT} bytes")
    return Answer(parser.get_status_code(), bytes(collector.body))
