"""``standby invoke``: one request to an endpoint, whole or streamed."""

from __future__ import annotations

import asyncio
import json as jsons
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from standby.cli.models import segment
from standby.cli.output import print_json
from standby.cli.session import JsonOption, Options, options
from standby.domain.durations import parse_duration
from standby.domain.errors import InvalidInput, Unavailable
from standby.wire.headers import PREFIX, REQUEST_ID

if TYPE_CHECKING:
    import httpx

_OUR_HEADERS: Final = (PREFIX.decode(), REQUEST_ID.decode())


def invoke(
    ctx: typer.Context,
    endpoint: Annotated[str, typer.Argument(help="Name of the endpoint.")],
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="What to ask, as one chat message.")] = None,
    body: Annotated[str | None, typer.Option(help="File with the request's JSON, or - for standard input.")] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Print tokens as they arrive.")] = False,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens to generate.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="0: always the likeliest token; default: the engine's.")
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest silence while waiting for the answer.")] = "5m",
    json: JsonOption = False,
) -> None:
    """Ask an endpoint; if it sleeps, this wakes it.

    Prints the text. With --json: the raw answer with the x-standby-* headers.

    Examples:

    standby invoke smol --prompt "Name the capital of France." --stream

    echo '{"prompt": "Once upon", "max_tokens": 20}' | standby invoke smol --body -
    """
    content = request_body(prompt, body, stream=stream, max_tokens=max_tokens, temperature=temperature)
    session = options(ctx, json)
    asyncio.run(_invoke(session, endpoint, content, parse_duration(timeout)))


def request_body(
    prompt: str | None, body: str | None, *, stream: bool, max_tokens: int | None, temperature: float | None = None
) -> bytes:
    """Return the bytes to send; a body that is given is passed on as it is unless an option has to be put into it.

    Raises InvalidInput where both or none of prompt and body are given, or the body cannot be read.
    """
    if (prompt is None) == (body is None):
        raise InvalidInput("give exactly one of --prompt and --body", remedy='e.g. --prompt "Name the capital of France."')
    extra: dict[str, Any] = {}
    if stream:
        extra["stream"] = True
    if max_tokens is not None:
        extra["max_tokens"] = max_tokens
    if temperature is not None:
        extra["temperature"] = temperature
    if prompt is not None:
        return jsons.dumps({"messages": [{"role": "user", "content": prompt}], **extra}).encode()
    assert body is not None
    try:
        raw = sys.stdin.buffer.read() if body == "-" else Path(body).read_bytes()
    except OSError as error:
        raise InvalidInput(f"--body {body!r} cannot be read: {error.strerror}", remedy="give a readable file, or -") from error
    if not extra:
        return raw
    try:
        content = jsons.loads(raw)
    except ValueError as error:
        raise InvalidInput(
            f"--body {body!r} is not JSON: {error}", remedy="leave the other options out, or send JSON"
        ) from error
    if not isinstance(content, dict):
        raise InvalidInput(
            f"--body {body!r} holds a JSON {type(content).__name__}, not an object", remedy='e.g. {"prompt": "…"}'
        )
    return jsons.dumps({**content, **extra}).encode()


async def _invoke(session: Options, endpoint: str, body: bytes, silence_s: float) -> None:
    from standby.cli.progress import Climb  # noqa: PLC0415 (rich costs 60 ms that a script's invocation must not pay)
    from standby.cli.waiting import following  # noqa: PLC0415

    path = f"/endpoints/{segment(endpoint)}/invocations"
    with Climb() as climb:
        # Leaving the block, by whatever way, closes the connection: the gateway then ends the request everywhere.
        async with (
            session.client(timeout_s=silence_s) as client,
            client.post_raw_while(path, body, following(client, endpoint, climb) if climb.shown else None) as response,
        ):
            climb.hide()
            if response.headers.get("content-type", "").startswith("text/event-stream"):
                await _print_stream(session, response)
            else:
                _print_answer(session, response, await response.aread())


def _print_answer(session: Options, response: httpx.Response, raw: bytes) -> None:
    try:
        content: Any = jsons.loads(raw)
    except ValueError:
        content = raw.decode(errors="replace")
    if session.json:
        print_json({"status": response.status_code, "headers": our_headers(response), "body": content})
        return
    text = text_of(content)
    print(text if text is not None else raw.decode(errors="replace"))


async def _print_stream(session: Options, response: httpx.Response) -> None:
    chunks: list[Any] = []
    async for data in data_lines(response.aiter_lines()):
        if data == "[DONE]":
            break
        chunk = jsons.loads(data)
        if isinstance(chunk, dict) and chunk.get("error"):
            error = chunk["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            if not session.json:
                print()
            raise Unavailable(f"the stream broke off: {message}", remedy="ask again")
        if session.json:
            chunks.append(chunk)
        else:
            print(text_of(chunk) or "", end="", flush=True)
    if session.json:
        print_json({"status": response.status_code, "headers": our_headers(response), "chunks": chunks})
    else:
        print()


async def data_lines(lines: AsyncIterator[str]) -> AsyncIterator[str]:
    """Yield the data of each server-sent event."""
    async for line in lines:
        if line.startswith("data:"):
            yield line[5:].strip()


def text_of(content: Any) -> str | None:
    """Return the generated text of an answer or of one chunk in any of the known forms, else None."""
    if not isinstance(content, dict):
        return None
    if "generated_text" in content:
        return str(content["generated_text"])
    choices = content.get("choices")
    if not choices:
        return None
    choice = choices[0]
    for part in (choice.get("message"), choice.get("delta")):
        if isinstance(part, dict):
            return str(part.get("content") or "")
    return str(choice["text"]) if "text" in choice else None


def our_headers(response: httpx.Response) -> dict[str, str]:
    """Return the headers that standby adds to an answer."""
    return {name: value for name, value in response.headers.items() if name.startswith(_OUR_HEADERS)}
