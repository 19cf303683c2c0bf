"""The console's files and a feed that a test writes itself: for what no deployment can be made to say."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from standby.console.files import console_routes

Json = dict[str, Any]
KEY: Final = "sk-standby-0123456789abcdef-secret"
_START_S: Final = 60.0


@dataclass
class Feed:
    """What the server says: ``overview`` to whoever comes, then what ``push`` is given."""

    overview: Json
    answer: str = "Paris is the capital of France."
    token_pause_s: float = 0.0
    url: str = ""
    opened: int = 0
    asked: list[Json] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refuse: int = 0
    _readers: set[asyncio.Queue[bytes]] = field(default_factory=set)

    def push(self, change: Json | bytes) -> None:
        """Send a change to all open feeds, as a value or as its JSON."""
        encoded = change if isinstance(change, bytes) else json.dumps(change).encode()
        for reader in self._readers:
            reader.put_nowait(b"event: change\ndata: " + encoded + b"\n\n")

    def drop(self) -> None:
        """Close all open feeds."""
        for reader in self._readers:
            reader.put_nowait(b"")

    @property
    def readers(self) -> int:
        """How many feeds are open."""
        return len(self._readers)

    def routes(self) -> list[Route]:
        """The routes of a gateway that the console uses."""
        return [
            *console_routes(),
            Route("/api/v1/overview/stream", self._stream, methods=["GET"]),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
        ]

    # ---- inside ------------------------------------------------------------------------------------------------

    def _refusal(self, request: Request) -> Response | None:
        status = self.refuse or (200 if request.headers.get("authorization") == f"Bearer {KEY}" else 401)
        if status == 200:
            return None
        error = {"message": "the API key is missing or not valid", "code": "not_authenticated", "remedy": "send another"}
        return JSONResponse({"error": error}, status_code=status)

    async def _stream(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        self.opened += 1
        self.headers.append(dict(request.headers))
        return StreamingResponse(self._pieces(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _pieces(self) -> AsyncIterator[bytes]:
        queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield b": following\n\nevent: overview\ndata: " + json.dumps(self.overview).encode() + b"\n\n"
            while piece := await queue.get():
                yield piece
        finally:
            self._readers.discard(queue)

    async def _chat(self, request: Request) -> Response:
        if (refused := self._refusal(request)) is not None:
            return refused
        self.asked.append(await request.json())
        return StreamingResponse(self._tokens(), media_type="text/event-stream", headers={"x-standby-rung": "ready"})

    async def _tokens(self) -> AsyncIterator[str]:
        for word in self.answer.split(" "):
            await asyncio.sleep(self.token_pause_s)
            yield f"data: {json.dumps({'choices': [{'delta': {'content': word + ' '}}]})}\n\n"
        yield "data: [DONE]\n\n"


@asynccontextmanager
async def console_server(overview: Json) -> AsyncIterator[Feed]:
    """Serve the console with a scripted feed on a free port of the loopback interface."""
    feed = Feed(overview)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        feed.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            Starlette(routes=feed.routes()), log_level="warning", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(_START_S):
            while not server.started:
                await asyncio.sleep(0.01)
        try:
            yield feed
        finally:
            feed.drop()
            server.should_exit = True
            await serving
