"""One request to an ASGI application without a socket between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class Answer:
    """What the application answered; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


async def ask(
    app: ASGIApp,
    path: str = "/",
    *,
    method: str = "POST",
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
    query: bytes = b"",
    pieces: int = 1,
) -> Answer:
    """Send one request, its body in so many pieces, and return the whole answer."""
    step = max(1, -(-len(body) // pieces))
    chunks = [body[at : at + step] for at in range(0, len(body), step)] or [b""]
    arriving: list[Message] = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks) - 1} for number, chunk in enumerate(chunks)
    ]
    sent: list[Message] = []

    async def receive() -> Message:
        return arriving.pop(0) if arriving else await asyncio.Future[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    }
    await app(scope, receive, send)
    start, *rest = sent
    answered = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Answer(start["status"], answered, b"".join(message.get("body", b"") for message in rest))
