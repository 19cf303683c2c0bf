"""The soak's load: callers that ask one request after another, and say how each of them ended."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import httptools

from support.deployment import Deployment
from support.raw_http import RawClient
from support.soak.chaos import Blows
from support.soak.endings import Kind, Seen, Verdict, feed, judge

QUESTION: Final = [{"role": "user", "content": "soak"}]
ANSWER_LIMIT_S: Final = 90.0


@dataclass
class Tally:
    """What the callers saw. ``troubles`` are the endings that nothing explains."""

    counts: Counter[str] = field(default_factory=Counter)
    troubles: list[str] = field(default_factory=list)

    def count(self, what: str, trouble: str = "") -> None:
        """Count one ending."""
        self.counts[what] += 1
        if trouble:
            self.troubles.append(f"{what}: {trouble}")


@dataclass
class Caller:
    """Asks until told to stop; ``number`` makes its nonces its own."""

    there: Deployment
    number: int
    endpoints: list[str]
    blows: Blows
    tally: Tally
    choose: random.Random
    _asked: int = 0

    async def run(self, until: asyncio.Event) -> None:
        """Ask one request after another until ``until`` is set."""
        while not until.is_set():
            await self._ask(self.choose.randrange(2))
            await asyncio.sleep(self.choose.uniform(0.0, 0.1))

    async def _ask(self, gateway: int) -> None:
        kind = self.choose.choice(list(Kind))
        endpoint = self.choose.choice(self.endpoints)
        self._asked += 1
        nonce, count = f"c{self.number}n{self._asked}", self.choose.randint(1, 24)
        began = time.monotonic()
        try:
            host, _, port = self.there.url(gateway).removeprefix("http://").partition(":")
            client = await RawClient.connect(host, int(port))
        except OSError:
            # It is not there: nothing was asked.
            await asyncio.sleep(0.1)
            return
        try:
            body = {"model": endpoint, "messages": QUESTION, "nonce": nonce, "max_tokens": count, "ignore_eos": True}
            body["stream"] = kind.streams
            headers = {**self.there.stack.headers(), "content-type": "application/json"}
            client.send("POST", kind.path(endpoint), headers, json.dumps(body).encode())
            seen, late = Seen(), False
            try:
                async with asyncio.timeout(ANSWER_LIMIT_S):
                    await _read(client, seen)
            except TimeoutError:
                late = True
            self._count(kind, nonce, count, seen, gateway, began, late=late)
        finally:
            client.abort()

    def _count(self, kind: Kind, nonce: str, count: int, seen: Seen, gateway: int, began: float, *, late: bool) -> None:
        tally, ended = self.tally, time.monotonic()
        if late:
            tally.count("unexplained", f"{kind} {nonce}: no ending within {ANSWER_LIMIT_S:g} s: {seen}")
            return
        verdict, why = judge(kind, nonce, count, seen)
        if verdict is Verdict.CUT and not seen.status and self.blows.closed(gateway, began, ended):
            # Its connection had not been accepted when the listener closed, as if it had been refused.
            return
        tally.count("requests")
        match verdict:
            case Verdict.OK:
                tally.count("ok")
            case Verdict.EXPLICIT:
                tally.count("explicit_errors")
            case Verdict.CUT if self.blows.killed(gateway, began, ended):
                tally.count("cut_by_kill")
            case Verdict.SPLICED | Verdict.DOUBLE:
                tally.count(verdict.value, f"{kind} {nonce}: {why}")
            case _:
                tally.count("unexplained", f"{kind} {nonce} at gateway {gateway}: {verdict}: {why}: {seen.status}")


async def _read(client: RawClient, seen: Seen) -> None:
    """Read one answer, and for a moment whatever comes behind it."""
    parser = httptools.HttpResponseParser(seen)
    while not seen.endings:
        try:
            data = await client.reader.read(2**16)
        except ConnectionError:
            return
        if not data:
            return
        feed(parser, seen, data)
    seen.surplus += bytes(client.reader._buffer)  # type: ignore[attr-defined] # what has come and was not asked for
