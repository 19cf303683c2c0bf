"""The control plane beside moto's server, what a signature costs, and a gateway over 10,000 endpoints: ``make bench-control``.

* rate: the same boto3 clients, each a process of its own, make the same rounds (see ``tests/support/control_load.py``) at a
  whole deployment of standby (gateway, controller, node, nats-server: every write is on disk before it is answered) and at
  moto's server, which keeps everything in one process's memory, in turn; clients and servers share the processors;
* signature: the processor time of one check in the gateway's own authenticator, keys known;
* crowd: a gateway starts over 10,000 endpoints of 100 tenants; its resident memory; first pages of ``list_endpoints``.

moto: ``--moto PATH`` of ``moto_server``, from an environment of its own. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from standby.artifacts.local_s3 import free_ports
from support import control_crowd
from support.aws_user import TINY, aws_place
from support.bench_figures import percentile
from support.signed import NOW, World, signed

LOAD = Path(__file__).parents[1] / "support" / "control_load.py"
GOALS = {"ratio_to_moto": 3.0, "sigv4_cpu_us": 150.0, "list_ms": 20.0, "rss_mb": 150.0, "start_s": 5.0}
SIGNATURES = 5000
TOLD = ("per_s", "p50_ms", "p99_ms", "client_cpu_ms")


async def load(
    url: str,
    environment: Mapping[str, str],
    workers: int,
    seconds: float,
    prepared: Callable[[], Awaitable[None]] | None = None,
) -> dict[str, Any]:
    """Return calls per second of all workers together and percentiles in milliseconds; ``prepared`` is awaited before."""
    begin = time.time() + 3.0 + workers

    async def worker(number: int) -> dict[str, Any]:
        wanted = {"url": url, "name": f"w{number}", "model": TINY, "seconds": seconds, "begin": begin}
        process = await asyncio.create_subprocess_exec(
            sys.executable, LOAD, json.dumps(wanted), env={**os.environ, **environment}, stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        assert process.returncode == 0, "a client failed; what it said stands above"
        return dict(json.loads(out))

    working = asyncio.gather(*map(worker, range(workers)))
    if prepared is not None:
        await asyncio.sleep(begin - 1.0 - time.time())
        await prepared()
    found = await working
    times = [value for one in found for values in one["times"].values() for value in values]
    by_operation: dict[str, list[float]] = {}
    for one in found:
        for name, values in one["times"].items():
            by_operation.setdefault(name, []).extend(values)
    return {
        "calls": len(times),
        "per_s": sum(sum(map(len, one["times"].values())) / one["seconds"] for one in found),
        "client_cpu_ms": sum(one["processor"] for one in found) / len(times) * 1000,
        "p50_ms": statistics.median(times),
        "p99_ms": percentile(times, 0.99),
        "operations": {name: (statistics.median(values), percentile(values, 0.99)) for name, values in by_operation.items()},
    }


@asynccontextmanager
async def moto(program: str, folder: Path) -> AsyncIterator[str]:
    """Run moto's server; yield its address."""
    (port,) = free_ports(1)
    with (folder / "moto.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, "-H", "127.0.0.1", "-p", str(port), stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(60), httpx.AsyncClient(trust_env=False) as client:
            while True:
                try:
                    await client.get(f"{url}/moto-api/")
                    break
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
        yield url
    finally:
        process.terminate()
        await process.wait()


async def rates(folder: Path, program: str, workers: int, seconds: float, turns: int) -> dict[str, dict[str, Any]]:
    """Return the best of ``turns`` of each server; they take turns, so that both meet the same machine."""
    found: dict[str, list[dict[str, Any]]] = {"standby": [], "moto": []}
    for turn in range(turns):
        here = folder / f"turn{turn}"
        here.mkdir()
        async with aws_place(here, real=False) as place:
            key = {name: place.variables[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
            # Their models were looked at; the store would only take the processors' time.
            found["standby"].append(await load(place.up.url, key, workers, seconds, place.s3.stop))
        async with moto(program, here) as url:
            none = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
            found["moto"].append(await load(url, none, workers, seconds))
    return {name: max(ones, key=lambda one: one["per_s"]) for name, ones in found.items()}


def signature_cpu_us() -> float:
    """Return the processor time of one check of a signed request of 300 bytes, the median of ten series."""
    world = World()
    _, credentials = world.key()
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "SageMaker.DescribeEndpoint"}
    request = signed(credentials, headers=headers, body=b'{"EndpointName": "' + b"e" * 280 + b'"}')
    world.check(request)
    series = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(SIGNATURES // 10):
            world.check(request, now=NOW)
        series.append((time.process_time() - began) / (SIGNATURES // 10) * 1e6)
    return statistics.median(series)


def show(figures: dict[str, float], found: Mapping[str, dict[str, Any]]) -> bool:
    """Print both tables; return whether every goal is met."""
    console = Console()
    table = Table(title=f"control plane, {os.cpu_count()} cores; milliseconds: p50 / p99", title_justify="left")
    for column in ("operation", *found):
        table.add_column(column, justify="left" if column == "operation" else "right")
    for name in next(iter(found.values()))["operations"]:
        table.add_row(name, *("{:.1f} / {:.1f}".format(*one["operations"][name]) for one in found.values()))
    table.add_row("calls/s", *(f"{one['per_s']:.0f}" for one in found.values()), style="bold")
    table.add_row("all", *(f"{one['p50_ms']:.1f} / {one['p99_ms']:.1f}" for one in found.values()), style="bold")
    console.print(table)
    goals = Table(title="goals", title_justify="left")
    for column in ("figure", "measured", "goal"):
        goals.add_column(column, justify="left" if column == "figure" else "right")
    met = True
    for name, goal in GOALS.items():
        least = name == "ratio_to_moto"
        good = figures[name] >= goal if least else figures[name] <= goal
        met = met and good
        goals.add_row(name, f"{figures[name]:.2f}", f"{'≥' if least else '≤'} {goal:g}", style=None if good else "red")
    console.print(goals)
    return met


async def run(folder: Path, arguments: argparse.Namespace) -> bool:
    """Measure everything and print it; return whether every goal is met."""
    crowd_folder = folder / "crowd"
    crowd_folder.mkdir()
    crowd = await control_crowd.measure(crowd_folder, endpoints=arguments.endpoints, tenants=100)
    signature = signature_cpu_us()
    found = await rates(folder, arguments.moto, arguments.workers, arguments.seconds, arguments.turns)
    ours, theirs = found["standby"], found["moto"]
    figures: dict[str, float] = {
        "ratio_to_moto": round(ours["per_s"] / theirs["per_s"], 2),
        "sigv4_cpu_us": round(signature, 1),
        **crowd,
        **{f"{name}_{what}": round(one[what], 2) for name, one in found.items() for what in TOLD},
        "workers": arguments.workers,
    }
    met = show(figures, found)
    print(json.dumps(figures))
    return met


def main() -> None:
    """Run the benchmark; exit code 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moto", default=str(Path(sys.executable).parents[1] / "moto" / "bin" / "moto_server"))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--endpoints", type=int, default=10_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="standby-bench-") as folder:
        met = asyncio.run(run(Path(folder), arguments))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
