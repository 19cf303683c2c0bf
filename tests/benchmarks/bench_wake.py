"""The wake path and the price of being asleep, on the real model: ``make bench-wake``.

One deployment on this machine (gateway, controller, node, nats-server as processes). Each round: the endpoint is asleep,
a request wakes it (first token from asleep), a second one follows at once (first token warm), then it idles back to
asleep. Every prompt is new and of the same length, so that no round profits from another's prompt cache.

* wake call: from the request's arrival at the gateway to the wake call inside the agent, by one machine's clock;
* first token: from sending the request to the first streamed piece of text, as the client sees it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from standby.cli.demo.caller import Caller
from standby.cli.stack import StackOptions, running
from standby.cli.state import StateDir
from support.bench_figures import percentile
from support.real_model import real_model_path

ENDPOINT = "bench"
POLICY = {"keep_ready": "150ms", "keep_asleep": "1h", "slots": 2}
LIMITS = {"wake_call_p50_ms": 5.0, "wake_call_p99_ms": 20.0}


class Events:
    """The endpoint's events as the gateway streams them."""

    def __init__(self) -> None:
        self.activations: list[dict[str, Any]] = []
        self._asleep = asyncio.Event()
        self.following = asyncio.Event()

    async def follow(self, client: httpx.AsyncClient) -> None:
        async with client.stream("GET", "/api/v1/events", params={"endpoint": ENDPOINT}, timeout=None) as stream:
            async for line in stream.aiter_lines():
                self.following.set()
                if line.startswith("data: "):
                    self._take(json.loads(line.removeprefix("data: ")))

    def _take(self, event: dict[str, Any]) -> None:
        if event["kind"] == "activation" and event["ok"]:
            self.activations.append(event["activation"])
        elif event["kind"] == "transition" and event["after"] == "asleep":
            self._asleep.set()

    async def fell_asleep(self) -> None:
        async with asyncio.timeout(20):
            await self._asleep.wait()
        self._asleep.clear()


@asynccontextmanager
async def deployment(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a deployment whose endpoint serves the real model."""
    async with (
        running(StackOptions(StateDir(folder), port=0)) as stack,
        httpx.AsyncClient(base_url=stack.url, headers=stack.headers(), timeout=60) as client,
    ):
        created = [
            await client.post("/api/v1/models", json={"name": "smol", "source_uri": f"file://{real_model_path()}"}),
            await client.post("/api/v1/endpoints", json={"name": ENDPOINT, "model": "smol", "policy": POLICY}),
        ]
        for answer in created:
            answer.raise_for_status()
        yield client


async def measure(client: httpx.AsyncClient, rounds: int) -> dict[str, float]:
    """Return the figures over ``rounds`` wakes."""
    caller, events = Caller(client, ENDPOINT), Events()
    following = asyncio.create_task(events.follow(client))
    await events.following.wait()
    await caller.invoke("cold", "Hello there, how are you?", max_tokens=4)
    asleep: list[float] = []
    warm: list[float] = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("waking", total=rounds)
        for number in range(rounds):
            await events.fell_asleep()
            woken = await caller.invoke("asleep", f"Tell me one thing about the number {number + 1000}.", max_tokens=2)
            assert woken.rung == "asleep", woken
            asleep.append(woken.first_token_ms)
            next_one = await caller.invoke("warm", f"Tell me one thing about the letter {number + 5000}.", max_tokens=2)
            assert next_one.rung == "ready", next_one
            warm.append(next_one.first_token_ms)
            progress.advance(task)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    wakes = [one for one in events.activations if one["from_rung"] == 3]
    calls = [(one["called_at"] - one["demand_at"]) * 1000 for one in wakes]
    return {
        "wakes": len(calls),
        "wake_call_p50_ms": round(statistics.median(calls), 2),
        "wake_call_p99_ms": round(percentile(calls, 0.99), 2),
        "asleep_first_token_ms": round(statistics.median(asleep), 1),
        "warm_first_token_ms": round(statistics.median(warm), 1),
    }


def show(figures: dict[str, float]) -> bool:
    """Print the figures beside their limits; return whether all are met."""
    limit = 2 * figures["warm_first_token_ms"] + 30
    limits = {**LIMITS, "asleep_first_token_ms": limit}
    table = Table(title=f"{figures['wakes']} wakes on {os.cpu_count()} cores", title_justify="left")
    for column in ("figure", "measured", "limit", "of the limit"):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for name, value in figures.items():
        if name in limits:
            table.add_row(name, f"{value:.2f}", f"{limits[name]:.1f}", f"{value / limits[name]:.0%}")
    table.add_row("warm_first_token_ms", f"{figures['warm_first_token_ms']:.1f}", "", "")
    Console().print(table)
    return all(figures[name] <= most for name, most in limits.items())


def main() -> None:
    """Run the benchmark; exit code 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    rounds = parser.parse_args().rounds

    async def run(folder: Path) -> dict[str, float]:
        async with deployment(folder) as client:
            return await measure(client, rounds)

    with tempfile.TemporaryDirectory(prefix="standby-bench-") as folder:
        figures = asyncio.run(run(Path(folder)))
    met = show(figures)
    print(json.dumps(figures))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
