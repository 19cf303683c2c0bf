"""How soon the work behind a caller who leaves is ended (field case B25): twelve cells, each with real processes.

A cell is a route, an answer as a whole or as a stream, and the moment: while the request waits for a slot, before its first
token, between two tokens. Counted is the time from the caller's disconnect until the fake engine says that it has noticed the
abort, or for one that waits until the gateway says that nobody does; both are asked over and over, so that a look is part of
the time. Part of ``bench_traffic.py``; alone: ``python tests/benchmarks/bench_traffic_disconnect.py``.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.deployment import QUESTION, Deployment, deployment
from support.raw_http import RawClient

LIMIT_S: Final = 1.0
ROUNDS: Final = 2
NAME: Final = "endless"
PATHS: Final = {"openai": "/v1/chat/completions", "invocations": f"/endpoints/{NAME}/invocations"}
MOMENTS: Final = ("queued", "before the first token", "decoding")
# One slot; an answer of a minute, a token each 0.2 s, so that there is time between two of them.
KNOBS: Final = {"token_delay_ms": 200, "tokens": 300}
_GIVEN_UP_S: Final = 30.0
_PAUSE_S: Final = 0.002


@dataclass(frozen=True)
class Disconnects:
    """The slowest round of each cell, in seconds, by the cell's name."""

    cells: dict[str, float]

    @property
    def worst(self) -> float:
        """The slowest of all."""
        return max(self.cells.values())

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        return tuple(f"{cell}: ended after {seconds:.3f} s" for cell, seconds in self.cells.items())


async def measure(rounds: int = ROUNDS) -> Disconnects:
    """Leave in each cell so often; raises TimeoutError where nobody notices for half a minute."""
    cells: dict[str, float] = {}
    with TemporaryDirectory(prefix="bench-disconnect-") as folder:
        async with deployment(Path(folder)) as there:
            await there.endpoint(NAME, knobs=KNOBS, slots=1, keep_ready="forever")
            assert (await there.invoke(NAME, max_tokens=1)).status_code == 200
            for moment, (route, path), stream in itertools.product(MOMENTS, PATHS.items(), (False, True)):
                found = [await _left(there, path, stream, moment) for _ in range(rounds)]
                cells[f"{moment}, {route}, {'stream' if stream else 'whole'}"] = max(found)
    return Disconnects(cells)


async def _left(there: Deployment, path: str, stream: bool, moment: str) -> float:
    """Ask, leave at this moment, and return how many seconds later it was noticed; nothing is under way after it."""
    before = await there.stats(NAME)

    async def aborted() -> bool:
        return (await there.stats(NAME))["aborts"] > before["aborts"]

    async def waits() -> bool:
        return await there.metric("standby_requests_queued", NAME) == 1

    async def begun() -> bool:
        now = await there.stats(NAME)
        return now["active"] == 1 and (moment != "decoding" or now["tokens"] > before["tokens"])

    async def removed() -> bool:
        return not await waits()

    first = await _asks(there, path, stream, hold=moment != "decoding")
    await _until(begun)
    if moment != "queued":
        seconds = await _ends(first, aborted)
    else:
        second = await _asks(there, path, stream, hold=True)
        await _until(waits)
        seconds = await _ends(second, removed)
        await _ends(first, aborted)
    await there.until_total("standby_requests_in_flight", NAME, 0)
    return seconds


async def _asks(there: Deployment, path: str, stream: bool, *, hold: bool) -> RawClient:
    return await there.post(path, {"model": NAME, "messages": QUESTION, "stream": stream, "hold": hold})


async def _ends(client: RawClient, noticed: Callable[[], Awaitable[bool]]) -> float:
    began = time.monotonic()
    client.abort()
    await _until(noticed)
    return time.monotonic() - began


async def _until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_GIVEN_UP_S):
        while not await holds():
            await asyncio.sleep(_PAUSE_S)


def main() -> None:
    """Run, print, and say by the exit code whether the limit was kept."""
    found = asyncio.run(measure())
    print(*found.lines, sep="\n")
    print(json.dumps({"disconnect_s": round(found.worst, 3)}))
    sys.exit(found.worst > LIMIT_S)


if __name__ == "__main__":
    main()
