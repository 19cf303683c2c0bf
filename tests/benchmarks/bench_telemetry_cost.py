"""What telling costs: processor time for each request through gateway and door, with everything told and with nothing.

Two gateways, each with a door of its own, before one stand-in of an engine: one as a deployment has it that exports traces
(metrics, past requests, spans of the default share to a collector in a process of its own, errors in the log), which between
its rounds is switched to telling nothing (``support/untold_gateway.py``), and one that also writes a line for every request.
Rounds alternate, and what counts is the median of the ratios within one round. Core 0 holds gateways and doors, core 1 load,
engine and collector. Every told gateway is scraped before each round of plain requests, and that part of it counts which a
scrape every 15 s, as the configuration in infra has it, would add.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.bench_proxy import (
    AT_ONCE,
    EPOCH,
    INSTANCE,
    PATH,
    RATE,
    SLOTS,
    SUPPORT,
    TOKEN,
    Processes,
    Stack,
    checked,
    free_port,
    wait_for_port,
)
from standby.gateway.keys import generate
from support.bench_engine import EVENT_BYTES
from support.load import load

ROUND_S: Final = 1.5
STREAM_S: Final = 2.0
SCRAPE_EVERY_S: Final = 15.0
UNTOLD, TOLD, EVERY_LINE = NAMES = "nothing told", "metrics and traces", "… and a line each"
FIGURES: Final = {"request_us": "CPU µs/request", "chunk_us": "CPU µs/chunk"}


@dataclass
class Cost:
    """What was measured. ``overhead``: how much more a plain request costs, 0.05 is five percent; ``spans`` came in."""

    stacks: list[Stack]
    ratios: dict[tuple[str, str], float]
    spans: int
    lines: int

    @property
    def overhead(self) -> float:
        """Of a plain request, over one of which nothing is told."""
        return self.ratios[TOLD, "request_us"] - 1

    def table(self) -> list[str]:
        """Return the figures as lines."""
        found = [f"{'gateway and door':<26}" + "".join(f"{title:>18}{'over nothing':>15}" for title in FIGURES.values())]
        for stack in self.stacks:
            cells = (f"{stack.median(name):>18.1f}{self.ratios.get((stack.name, name), 1.0) - 1:>+15.1%}" for name in FIGURES)
            found.append(f"{stack.name:<26}" + "".join(cells))
        found.append(f"{self.spans} spans reached the collector, {self.lines} lines the log")
        return found


async def measure(stacks: list[Stack], rounds: int) -> None:
    """Interleaved rounds after a warm-up, each beginning with another stack."""
    for stack in stacks:
        checked(stack, await load(stack.address, stack.request(), at_once=AT_ONCE, duration_s=1.0))
    for number in range(rounds):
        turn = number % len(stacks)
        for stack in (*stacks[turn:], *stacks[:turn]):
            await _requests(stack)
        for stack in (*stacks[turn:], *stacks[:turn]):
            await _chunks(stack)
        print(f"  … round {number + 1} of {rounds}", file=sys.stderr, flush=True)


def ratios(stacks: list[Stack]) -> dict[tuple[str, str], float]:
    """Return each told stack's cost over the untold one's: the median over the rounds."""
    first, *others = stacks
    return {
        (stack.name, name): statistics.median(
            mine / bare for mine, bare in zip(stack.rounds[name], first.rounds[name], strict=True)
        )
        for stack in others
        for name in FIGURES
    }


async def _requests(stack: Stack) -> None:
    _switch(stack)
    scraping = 0 if stack.name == UNTOLD else _scraped(stack)
    before = processor_ns(stack.pids)
    tally = checked(stack, await load(stack.address, stack.request(), at_once=AT_ONCE, duration_s=ROUND_S))
    spent = processor_ns(stack.pids) - before + scraping * ROUND_S / SCRAPE_EVERY_S
    stack.note("request_us", spent / tally.requests / 1000)


async def _chunks(stack: Stack) -> None:
    _switch(stack)
    request = stack.request(stream=True, max_tokens=int(STREAM_S * RATE), bench_rate=RATE)
    before = processor_ns(stack.pids)
    tally = checked(stack, await load(stack.address, request, at_once=AT_ONCE, duration_s=60, count=1))
    stack.note("chunk_us", (processor_ns(stack.pids) - before) / (tally.body_bytes / EVENT_BYTES) / 1000)


def _switch(stack: Stack) -> None:
    """Have the stack's gateway tell what it is to tell, and see that it does so: one request is counted, or none."""
    os.kill(stack.pids[0], signal.SIGUSR1 if stack.name == UNTOLD else signal.SIGUSR2)
    counted = [_counted(stack)]
    for _ in range(2):  # the signal is taken with the first one at the latest
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "?"}]}).encode()
        _asked(stack, PATH, body)
        counted.append(_counted(stack))
    assert counted[2] - counted[1] == (stack.name != UNTOLD), f"{stack.name}: {counted} requests were counted"


def _counted(stack: Stack) -> float:
    text = _asked(stack, "/metrics").decode()
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("standby_requests_total{"))


def processor_ns(pids: tuple[int, ...]) -> int:
    """Return the processor time of all threads of these processes in nanoseconds, as the scheduler counts it."""
    files = (file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    return sum(int(file.read_text().split()[0]) for file in files)


def _scraped(stack: Stack) -> int:
    """Scrape a gateway and return what that took of the processor, in nanoseconds."""
    before = processor_ns(stack.pids)
    assert b"standby_requests_total" in _asked(stack, "/metrics")
    return processor_ns(stack.pids) - before


# -- the stacks --------------------------------------------------------------------------------------------------------


def start(processes: Processes, folder: Path, collector: str, name: str) -> Stack:
    """Start one gateway with a door of its own before the engine in ``folder``; its log is where ``log_of`` says."""
    told = {"STANDBY_OTLP_ENDPOINT": collector}
    log = log_of(folder, name)
    door_pid, door_port = processes.run(
        0, sys.executable, str(SUPPORT / "bench_door.py"),
        str(folder / "engine.sock"), TOKEN, INSTANCE, str(EPOCH), str(SLOTS), env=told,
    )  # fmt: skip
    _, plane = processes.python(1, "bench_plane.py", str(log.with_suffix("")), door_port, INSTANCE, str(EPOCH), str(SLOTS))
    bearer, port = generate(), free_port()
    settings = {
        "STANDBY_GATEWAY_PORT": str(port),
        "STANDBY_NODE_TOKEN": TOKEN,
        "STANDBY_KEY_PEPPER": "bench-pepper",
        "STANDBY_ADMIN_KEY": bearer,
        "STANDBY_REQUEST_LOG": "all" if name == EVERY_LINE else "errors",
        **json.loads(plane),
        **told,
    }
    program = str(SUPPORT / "untold_gateway.py")
    pid, _ = processes.run(0, "sh", "-c", f'exec "$@" 2> "{log}"', "sh", sys.executable, program, env=settings, speaks=False)
    wait_for_port(port, 20)
    return Stack(name, ("127.0.0.1", port), (pid, door_pid), {"authorization": f"Bearer {bearer}"})


def log_of(folder: Path, name: str) -> Path:
    """Return where a gateway writes its log."""
    return folder / f"{NAMES.index(name)}.log"


def cost(rounds: int) -> Cost:
    """Start all of it, measure, and end it."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {1})
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as name, Processes() as processes:
            folder = Path(name)
            processes.python(1, "bench_engine.py", str(folder / "engine.sock"))
            _, port = processes.python(1, "otlp_sink.py")
            collector = f"http://127.0.0.1:{port}"
            told, every_line = (start(processes, folder, collector, one) for one in (TOLD, EVERY_LINE))
            stacks = [Stack(UNTOLD, told.address, told.pids, told.headers), told, every_line]
            uvloop.run(measure(stacks, rounds))
            spans = int(_get(collector, {}))
            lines = log_of(folder, EVERY_LINE).read_bytes().count(b"request ended")
            return Cost(stacks, ratios(stacks), spans, lines)
    finally:
        os.sched_setaffinity(0, cores)


def _asked(stack: Stack, path: str, body: bytes | None = None) -> bytes:
    assert isinstance(stack.address, tuple), "a gateway has a port"
    return _get(f"http://127.0.0.1:{stack.address[1]}{path}", stack.headers, body)


def _get(url: str, headers: dict[str, str], body: bytes | None = None) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=30) as answer:
        return bytes(answer.read())
