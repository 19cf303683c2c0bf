"""The demo's caller: invokes an endpoint with streaming and measures what it sees."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx

from standby.cli.demo.report import Invocation
from standby.domain.errors import StandbyError
from standby.domain.instance import Phase
from standby.wire.headers import PHASES_MS, RUNG, WAIT_MS


@dataclass
class Caller:
    """Speaks plain HTTP to the gateway, as any client would."""

    client: httpx.AsyncClient
    endpoint: str

    async def invoke(
        self, label: str, question: str, *, max_tokens: int = 24, on_text: Callable[[str], None] | None = None
    ) -> Invocation:
        """Ask ``question`` and return the measured answer. Raises StandbyError with the gateway's words."""
        began = time.perf_counter()
        body = {
            "messages": [{"role": "user", "content": question}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        pieces: list[str] = []
        first: float | None = None
        async with self.client.stream("POST", f"/endpoints/{self.endpoint}/invocations", json=body) as answer:
            await _require_ok(answer)
            async for text in _texts(answer):
                first = first or time.perf_counter() - began
                pieces.append(text)
                if on_text is not None:
                    on_text(text)
        total = time.perf_counter() - began
        waited_ms = float(answer.headers[WAIT_MS.decode()])
        first_ms = (first or total) * 1000
        phases = _phases(answer.headers.get(PHASES_MS.decode(), ""))
        return Invocation(
            label=label,
            rung=answer.headers[RUNG.decode()],
            phases_ms={**phases, Phase.FIRST_TOKEN.value: round(max(0.0, first_ms - waited_ms), 1)},
            first_token_ms=round(first_ms, 1),
            total_ms=round(total * 1000, 1),
            text="".join(pieces),
        )


async def _require_ok(answer: httpx.Response) -> None:
    if answer.status_code != 200:
        await answer.aread()
        raise StandbyError(f"the gateway answered {answer.status_code}: {answer.text[:500]}")


async def _texts(answer: httpx.Response) -> AsyncIterator[str]:
    async for line in answer.aiter_lines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        chunk: dict[str, Any] = json.loads(line.removeprefix("data: "))
        if "error" in chunk:
            raise StandbyError(f"the stream broke: {chunk['error'].get('message', chunk['error'])}")
        for choice in chunk.get("choices", ()):
            text = choice.get("delta", {}).get("content")
            if text:
                yield text


def _phases(header: str) -> dict[str, float]:
    return {name: float(value) for name, _, value in (part.partition("=") for part in header.split(",") if part)}
