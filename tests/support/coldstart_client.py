"""One streamed completion and the moment of its first token; the same client for every start that is compared."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx

from standby.runtime.process import EngineProcess
from standby.wire.pool import Address

SERVED: Final = "smol"
_LOOK_S: Final = 0.01
_LIMIT_S: Final = 300.0
_PATH: Final = "/v1/completions"


class StartFailedError(Exception):
    """A start that was to be measured came to nothing."""


@dataclass(frozen=True)
class FirstToken:
    """When the first piece of text came, by the clock of ``time.perf_counter``, and the answer's headers."""

    at: float
    text: str
    headers: httpx.Headers


def prompts() -> Iterator[str]:
    """Yield prompts of one length that no engine has seen, not in an earlier run of the benchmark either."""
    for number in itertools.count(random.randrange(100_000, 900_000)):
        yield f"One thing about the number {number} is that it"


async def first_token(address: Address, prompt: str, process: EngineProcess | None = None) -> FirstToken:
    """Ask until somebody listens and is ready, and return the first token. Raises StartFailedError.

    A refused connection or "not ready" is asked again after 10 ms. ``process``: the end of it ends the wait.
    """
    asking = asyncio.create_task(_ask(address, prompt))
    ends: set[asyncio.Future[Any]] = {asking} if process is None else {asking, process.exited}
    try:
        await asyncio.wait(ends, timeout=_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        if asking.done():
            return asking.result()
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    status = process.status if process is not None else None
    raise StartFailedError(f"the server ended: {status.words}" if status else f"no token within {_LIMIT_S:g} s")


async def _ask(address: Address, prompt: str) -> FirstToken:
    transport = httpx.AsyncHTTPTransport(uds=str(address) if isinstance(address, Path) else None)
    base = "http://engine" if isinstance(address, Path) else f"http://{address[0]}:{address[1]}"
    body = {"model": SERVED, "prompt": prompt, "max_tokens": 3, "temperature": 0, "ignore_eos": True, "stream": True}
    async with httpx.AsyncClient(transport=transport, base_url=base, timeout=_LIMIT_S, trust_env=False) as client:
        while True:
            try:
                async with client.stream("POST", _PATH, json=body) as answer:
                    if answer.status_code == HTTPStatus.OK:
                        return await _first_piece(answer)
                    if answer.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                        said = (await answer.aread()).decode(errors="replace")[:300]
                        raise StartFailedError(f"the server answered {answer.status_code}: {said}")
            except httpx.ConnectError:
                pass
            await asyncio.sleep(_LOOK_S)


async def _first_piece(answer: httpx.Response) -> FirstToken:
    found: FirstToken | None = None
    async for line in answer.aiter_lines():
        if found is None and line.startswith("data: {"):
            choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
            if text := choices[0].get("text"):
                found = FirstToken(time.perf_counter(), str(text), answer.headers)
    if found is None:
        raise StartFailedError("the answer ended without a token")
    return found
