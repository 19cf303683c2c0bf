"""A server of OpenAI's API for load: what a request's prompt says is how it is answered."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from support.upstream import Call, Upstream, tcp_upstream

DONE: Final = b"data: [DONE]\n\n"
MARKS: Final = "x-standby-rung: cold\r\nx-standby-wait-ms: 12.5\r\nx-standby-phases-ms: placed=1.0,loaded=11.5\r\n"


@dataclass
class LoadedServer:
    """``url`` is what a target is given; ``bodies`` are what it was asked."""

    upstream: Upstream
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def asked(self) -> list[Call]:
        """Chat completions, in the order in which they came."""
        return [call for call in self.upstream.calls if call.method == "POST"]

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(call.body) for call in self.asked]


@asynccontextmanager
async def loaded_server() -> AsyncIterator[LoadedServer]:
    """Serve until the context ends."""
    async with tcp_upstream(_answer) as (server, port):
        yield LoadedServer(server, port)


def token(text: str, reason: str | None = None) -> bytes:
    """One event with a piece of text."""
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def usage(prompt: int, completion: int) -> bytes:
    """The event that says what was used."""
    said = {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion}}
    return b"data: " + json.dumps(said).encode() + b"\n\n"


async def _answer(call: Call) -> None:
    if call.path.endswith("/models"):
        await call.json(200, json.dumps({"data": [{"id": "tiny"}]}).encode())
        return
    body = json.loads(call.body)
    prompt = str(body["messages"][0]["content"])
    word, _, value = prompt.partition(" ")
    if word in _BROKEN:
        await _broken(call, _BROKEN[word])
        return
    match word:
        case "status":
            await call.json(int(value), b'{"error": {"message": "as told"}}')
        case "reset":
            call.reset()
        case "silence":
            await call.gone.wait()
        case "rubbish":
            await call.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        case "page":
            await call.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>")
        case "whole":
            content = {"choices": [{"message": {"content": "Paris"}}], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}
            await call.json(200, json.dumps(content).encode())
        case "wait":
            await asyncio.sleep(float(value))
            await _stream(call, 2)
        case _:
            await _stream(call, body["max_tokens"])


async def _broken(call: Call, events: bytes) -> None:
    await call.begin_stream()
    await call.chunk(events)
    if events == _CUT:
        call.close()
    else:
        await call.end_stream()


async def _stream(call: Call, tokens: int) -> None:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{MARKS}transfer-encoding: chunked\r\n\r\n"
    await call.write(head.encode())
    for _ in range(tokens):
        await call.chunk(token("a "))
    await call.chunk(token("", "stop") + usage(3, tokens) + DONE)
    await call.end_stream()


_CUT: Final = token("cut")
_BROKEN: Final = {
    "error": token("a") + b'data: {"error": {"message": "engine died"}}\n\n',
    "cut": _CUT,
    "unfinished": token("a"),
    "nothing": DONE,
}
