"""HTTP to an engine that runs, whether it listens at a unix socket or at a loopback port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from standby.runtime.engines.base import EngineHandle
from support.fake_engine_spec import SERVED_NAME

ANSWER = "The capital of France is Paris."
QUESTION = {
    "model": SERVED_NAME,
    "messages": [{"role": "user", "content": "Name the capital of France."}],
    "max_tokens": 16,
    "temperature": 0,
}


def client(handle: EngineHandle) -> httpx.AsyncClient:
    """A client whose addresses begin at the engine."""
    if isinstance(handle.address, Path):
        transport = httpx.AsyncHTTPTransport(uds=str(handle.address))
        return httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=60)
    host, port = handle.address
    return httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60, trust_env=False)


async def ask(handle: EngineHandle, **changes: object) -> dict[str, Any]:
    """The whole answer to the question."""
    async with client(handle) as http:
        answer = await http.post("/v1/chat/completions", json={**QUESTION, **changes})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


def text_of(answer: dict[str, Any]) -> str:
    """The text of a whole answer."""
    return str(answer["choices"][0]["message"]["content"])


async def events(lines: AsyncIterator[str]) -> list[str]:
    """The events of a stream, to its end."""
    return [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]


def streamed_text(chunks: list[dict[str, Any]]) -> str:
    """The text of the chunks of a stream."""
    return "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
