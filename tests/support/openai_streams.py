"""Engines that stream, and OpenAI's own client in front of a gateway before them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import openai

from support.gateway_rig import GatewayRig
from support.upstream import Call

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
WORDS = ("The", " capital", " is", " Paris", ".")
USAGE = {"prompt_tokens": 11, "completion_tokens": len(WORDS), "total_tokens": 11 + len(WORDS)}
DONE = b"data: [DONE]\n\n"


def event(path: str, text: str, finish: str | None = None) -> bytes:
    """One chunk of a stream, as engines write it."""
    chat = path.endswith(CHAT)
    content = {"delta": {"content": text}} if chat else {"text": text}
    kind = "chat.completion.chunk" if chat else "text_completion"
    choice = {"index": 0, "finish_reason": finish, **content}
    return framed({"id": "1", "object": kind, "created": 1, "model": "m", "choices": [choice]})


def framed(content: object) -> bytes:
    """One event."""
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def usage_event() -> bytes:
    """The chunk that is nothing but usage."""
    return framed({"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": USAGE})


async def whole_stream(call: Call) -> None:
    """Answer as an engine does that knows ``stream_options``."""
    await call.begin_stream()
    for word in WORDS:
        await call.chunk(event(call.path, word))
    await call.chunk(event(call.path, "", "stop"))
    if (json.loads(call.body).get("stream_options") or {}).get("include_usage"):
        await call.chunk(usage_event())
    await call.chunk(DONE)
    await call.end_stream()


def tokens_then(end: Callable[[Call], Awaitable[None]], count: int = 3) -> Callable[[Call], Awaitable[None]]:
    """Answer with some tokens, then do something else."""

    async def handler(call: Call) -> None:
        await call.begin_stream()
        for word in WORDS[:count]:
            await call.chunk(event(call.path, word))
        await end(call)

    return handler


@asynccontextmanager
async def openai_client(gateway: GatewayRig, route: str = "v1", port: int | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client, which asks once."""
    host, own = gateway.address
    transport = openai.DefaultAsyncHttpxClient(trust_env=False)
    async with openai.AsyncOpenAI(
        base_url=f"http://{host}:{port or own}/{route}", api_key=gateway.secret, max_retries=0, http_client=transport
    ) as client:
        yield client


async def streamed(client: openai.AsyncOpenAI, path: str = CHAT, **more: Any) -> Any:
    """Begin a stream."""
    if path == CHAT:
        messages: Any = [{"role": "user", "content": "What is it?"}]
        return await client.chat.completions.create(model="e", messages=messages, stream=True, **more)
    return await client.completions.create(model="e", prompt="What is it?", stream=True, **more)


def text_of(chunk: Any) -> str:
    """The text of a chunk of either kind."""
    if not chunk.choices:
        return ""
    choice = chunk.choices[0]
    return (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""


async def read_to_the_end(stream: Any) -> tuple[list[str], openai.OpenAIError | None]:
    """Read what a stream says and the error it ends with; None: an end like that of a whole answer."""
    got: list[str] = []
    try:
        async for chunk in stream:
            got.append(text_of(chunk))  # noqa: PERF401 - what came before an error is kept
    except openai.OpenAIError as error:
        return got, error
    return got, None
