"""Traffic: what the data path costs, late requests, drains, two engines against one, takeovers, departures:
``make bench-traffic``.

``--only PART`` runs one part and may be given several times; ``--skip PART`` leaves one out. Parts:

* proxy: the gateway with everything switched on, beside nginx with two hops in the same run (``bench_proxy.py``);
* violations: adaptive against fixed queue depth in a simulated surge (``bench_traffic_queue.py``);
* drain: scale-in over and over under load (``bench_traffic_drain.py``);
* engines: what published speeds of vLLM and TensorRT-LLM give, simulated (``bench_traffic_engines.py``);
* hybrid: two real engines on a mixed load against the better one alone (``bench_traffic_hybrid.py``);
* takeover: from the death of an engine to the other one's answer (``bench_traffic_takeover.py``);
* disconnect: from a caller's departure to the end of the work behind him (``bench_traffic_disconnect.py``).

Prints last one line of JSON; the exit code is 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import (
    bench_proxy,
    bench_traffic_disconnect,
    bench_traffic_engines,
    bench_traffic_hybrid,
    bench_traffic_queue,
    bench_traffic_takeover,
)
from benchmarks.bench_traffic_drain import drain
from support.traffic_place import place_of_engines
from support.vllm import ABSENT, vllm_python

Figures = dict[str, float | None]

# Goals: each figure with its bound, and whether it is a lower one.
GOALS: Final = {
    "request_vs_nginx": (4.0, False),
    "chunk_vs_nginx": (2.0, False),
    "goodput_ratio": (bench_traffic_hybrid.GOAL, True),
    "violations_ratio": (10.0, True),
    "drain_failed": (0.0, False),
    "drain_requests": (50_000.0, True),
    "takeover_s": (bench_traffic_takeover.LIMIT_S, False),
    "disconnect_s": (bench_traffic_disconnect.LIMIT_S, False),
}
DRAINED: Final = 50_000


@dataclass
class Report:
    """What was measured; ``figures`` is the last line."""

    traces: Path | None
    figures: Figures = field(default_factory=dict)

    def lines(self, *lines: str) -> None:
        for line in lines:
            print(f"  {line}", flush=True)

    def progress(self, line: str) -> None:
        print(f"  … {line}", file=sys.stderr, flush=True)

    def note(self, **figures: float | None) -> None:
        self.figures |= figures


def proxy(report: Report) -> None:
    """Measure both hops and nginx's two on one core, as ``make bench-proxy`` does."""
    if (shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")) is None:
        report.lines("nginx is not installed: nothing to compare with")
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {1})
    try:
        with TemporaryDirectory(prefix="bench-") as name, bench_proxy.Processes() as processes:
            folder = Path(name)
            engine = folder / "engine.sock"
            processes.python(1, "bench_engine.py", str(engine))
            direct = bench_proxy.Stack("direct", engine, ())
            nginx = bench_proxy.start_nginx(processes, engine, folder)
            ours = bench_proxy.start_ours(processes, engine, "full", folder)
            uvloop.run(bench_proxy.measure(ours, nginx, direct, 3))
            measured = bench_proxy.figures(ours, nginx, direct, None)
            bench_proxy.print_table([direct, nginx, ours], measured)
            report.note(**{name: measured[name] for name in ("request_vs_nginx", "chunk_vs_nginx")})
    finally:
        os.sched_setaffinity(0, cores)


def violations(report: Report) -> None:
    """Simulate the surge."""
    compared = bench_traffic_queue.compare()
    report.lines(*compared.lines)
    report.note(violations_ratio=round(compared.violations_ratio, 1))


def drained(report: Report) -> None:
    """Drain under load."""
    found = drain(DRAINED)
    report.lines(
        f"{found['drain_failed']} of {found['drain_requests']} requests failed in {found['drains']} drains "
        f"({found['drain_rps']} requests/s)"
    )
    report.note(drain_failed=found["drain_failed"], drain_requests=found["drain_requests"])


def engines(report: Report) -> None:
    """Simulate engines that are not here."""
    compared = bench_traffic_engines.compare(report.traces)
    report.lines(*compared.lines)
    report.note(simulated_over_one_vllm=round(compared.over_one, 2), simulated_over_two_vllm=round(compared.over_two, 2))


def hybrid(report: Report) -> None:
    """Load two engines, and each alone."""
    if vllm_python() is None:
        report.lines(f"not measured: {ABSENT}")
        report.note(goodput_ratio=None)
        return

    async def run() -> bench_traffic_hybrid.Comparison:
        async with place_of_engines() as place:
            return await bench_traffic_hybrid.compare(place, report.progress)

    compared = asyncio.run(run())
    report.lines(*compared.lines)
    by_rate = ", ".join(f"{ratio:.2f} at {rate:g}/s" for rate, ratio in compared.by_rate.items())
    report.lines(
        f"hybrid over the better engine alone: {compared.ratio:.2f} (best of all rates); {by_rate}; "
        f"all rates together {compared.pooled:.2f}"
    )
    report.note(goodput_ratio=round(compared.ratio, 2))


def takeover(report: Report) -> None:
    """Kill engines under load."""
    real = vllm_python() is not None
    if not real:
        report.lines(f"real engines not measured: {ABSENT}")

    async def run() -> bench_traffic_takeover.Takeovers:
        async with place_of_engines() as place:
            return await bench_traffic_takeover.measure(place, report.progress, real=real)

    found = asyncio.run(run())
    report.lines(*found.lines)
    report.note(takeover_s=round(found.seconds, 3))


def disconnect(report: Report) -> None:
    """Leave in every phase of every operation."""
    found = asyncio.run(bench_traffic_disconnect.measure())
    report.lines(*found.lines)
    report.note(disconnect_s=round(found.worst, 3))


PARTS: Final[dict[str, Callable[[Report], None]]] = {
    "proxy": proxy,
    "violations": violations,
    "drain": drained,
    "engines": engines,
    "hybrid": hybrid,
    "takeover": takeover,
    "disconnect": disconnect,
}


def missed(figures: Figures) -> list[str]:
    """Return in words which goals were missed."""
    found = []
    for name, (bound, lower) in GOALS.items():
        value = figures.get(name)
        if value is not None and (value < bound if lower else value > bound):
            found.append(f"{name} is {value:g}, the goal is {'at least' if lower else 'at most'} {bound:g}")
    return found


def main() -> None:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(PARTS), help="this part and no other but those also named")
    parser.add_argument("--skip", action="append", choices=tuple(PARTS), default=[], help="not this part")
    parser.add_argument("--traces", type=Path, help="folder with azure_llm_2023_*.csv; without it prompts are synthetic")
    options = parser.parse_args()
    # What stops processes stops this one in order, so that it leaves no engine behind.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    report = Report(options.traces)
    for name in options.only or PARTS:
        if name in options.skip:
            continue
        began = time.monotonic()
        print(f"{name}: {(PARTS[name].__doc__ or '').strip()}", flush=True)
        PARTS[name](report)
        print(f"  ({time.monotonic() - began:.0f} s; load of this machine: {os.getloadavg()[0]:.1f})", flush=True)
    for words in missed(report.figures):
        print(f"MISSED: {words}")
    print(json.dumps(report.figures))
    sys.exit(bool(missed(report.figures)))


if __name__ == "__main__":
    main()
