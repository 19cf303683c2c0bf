"""Drain during scale-in under load: how many of very many requests fail while instances come and go all the time.

A real gateway, a real door, engines that answer at once or stream for a while; each instance but one is drained and
replaced several times a second. A request has failed when its answer is not 200, is cut, or lacks a byte. Part of
``bench_traffic.py``; alone: ``python tests/benchmarks/bench_traffic_drain.py [--requests 50000]``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from standby.gateway.keys import generate
from support import bench_engine
from support.load import Tally, http_request, load

SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"
TOKEN: Final = "bench-token"
INSTANCES: Final = 4
SLOTS: Final = 16
PLAIN_AT_ONCE: Final = 40
STREAMS_AT_ONCE: Final = 8
# 40 ms each: long enough that most drains have to wait for some.
STREAM_TOKENS: Final = 8
STREAM_RATE: Final = 200
STREAM_BYTES: Final = STREAM_TOKENS * bench_engine.EVENT_BYTES + len(b"data: [DONE]\n\n")
TURN_S: Final = 5.0
LIMIT_S: Final = 240.0
READY_S: Final = 30.0


def drain(requests: int = 50_000) -> dict[str, Any]:
    """Ask at least ``requests`` times; return ``drain_failed``, ``drain_requests``, and how many drains there were."""
    with tempfile.TemporaryDirectory(prefix="bench-drain-") as name, ExitStack() as processes:
        folder = Path(name)
        engine = folder / "engine.sock"
        _started(processes, "bench_engine.py", str(engine))
        arguments = (str(folder / "nats"), str(engine), TOKEN, str(INSTANCES), str(SLOTS), "1")
        scaling, said = _started(processes, "bench_scaling.py", *arguments)
        bearer = generate()
        port = _gateway(processes, folder, bearer, json.loads(said))
        run = _run(("127.0.0.1", port), {"authorization": f"Bearer {bearer}"}, requests, scaling)
        plain, streams, seconds = uvloop.run(run)
        scaling.terminate()
        assert scaling.stdout is not None
        told = json.loads(scaling.stdout.readline())
        total = plain.requests + streams.requests
        # A stream that broke off is 200 and ends well, with an error event in place of its rest.
        lacking = (plain.requests - plain.errors) * bench_engine.ANSWER_BYTES - plain.body_bytes
        short = streams.requests * STREAM_BYTES - streams.body_bytes
        return {
            "drain_failed": plain.errors + streams.errors + bool(lacking) + bool(short) + told["cut"],
            "drain_requests": total,
            "drains": told["drains"],
            "drain_rps": round(total / seconds),
        }


async def _run(
    address: tuple[str, int], headers: dict[str, str], requests: int, scaling: subprocess.Popen[str]
) -> tuple[Tally, Tally, float]:
    body = {"model": "m", "messages": [{"role": "user", "content": "Say something."}]}
    path = "/v1/chat/completions"
    plain = http_request(path, json.dumps(body).encode(), headers)
    streamed = {**body, "stream": True, "max_tokens": STREAM_TOKENS, "bench_rate": STREAM_RATE}
    stream = http_request(path, json.dumps(streamed).encode(), headers)
    await _until_served(address, plain)
    scaling.send_signal(signal.SIGUSR1)
    sums = Tally(), Tally()
    began = time.monotonic()
    while sum(tally.requests for tally in sums) < requests and time.monotonic() < began + LIMIT_S:
        turns = await asyncio.gather(
            load(address, plain, at_once=PLAIN_AT_ONCE, duration_s=TURN_S),
            load(address, stream, at_once=STREAMS_AT_ONCE, duration_s=TURN_S),
        )
        for total, turn in zip(sums, turns, strict=True):
            total.requests += turn.requests
            total.errors += turn.errors
            total.body_bytes += turn.body_bytes
    return *sums, time.monotonic() - began


async def _until_served(address: tuple[str, int], request: bytes) -> None:
    """Wait until the gateway listens and knows the instances."""
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            if not (await load(address, request, at_once=1, duration_s=1.0, count=1)).errors:
                return
        except OSError:
            pass
        await asyncio.sleep(0.1)
    sys.exit(f"bench-traffic: the gateway does not serve within {READY_S:g} s")


# -- processes -----------------------------------------------------------------------------------------------------------


def _started(processes: ExitStack, program: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start one of the programs in tests/support; return it with the first line that it prints."""
    child = subprocess.Popen(
        [sys.executable, str(SUPPORT / program), *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SUPPORT.parent)},
        text=True,
    )
    processes.callback(_end, child)
    assert child.stdout is not None
    line = child.stdout.readline().strip()
    if not line:
        sys.exit(f"bench-traffic: {program} ended before it was ready; its error is above")
    return child, line


def _gateway(processes: ExitStack, folder: Path, bearer: str, nats: Mapping[str, str]) -> int:
    port_file = folder / "port"
    settings = {
        "STANDBY_GATEWAY_PORT": "0",
        "STANDBY_PORT_FILE": str(port_file),
        "STANDBY_NODE_TOKEN": TOKEN,
        "STANDBY_KEY_PEPPER": "bench-pepper",
        "STANDBY_ADMIN_KEY": bearer,
        "STANDBY_LOG_LEVEL": "error",
        **nats,
    }
    child = subprocess.Popen(
        [sys.executable, "-c", "from standby.gateway.main import serve; serve()"], env={**os.environ, **settings}, text=True
    )
    processes.callback(_end, child)
    end = time.monotonic() + READY_S
    while time.monotonic() < end and child.poll() is None:
        if port_file.exists() and (said := port_file.read_text()):
            return int(said)
        time.sleep(0.05)
    sys.exit("bench-traffic: the gateway did not start; its error is above")


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(15)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def main() -> None:
    """Run, print, and say by the exit code whether a request failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000)
    result = drain(parser.parse_args().requests)
    print(json.dumps(result))
    sys.exit(bool(result["drain_failed"]))


if __name__ == "__main__":
    main()
