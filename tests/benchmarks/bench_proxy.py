"""What the two hops of the data path cost, next to nginx with two hops in the same run, and once next to LiteLLM.

``python tests/benchmarks/bench_proxy.py [--gateway minimal|full] [--litellm PATH/TO/litellm] [--rounds N]``

Core 1 holds the load generator (this process) and the engine stand-in, core 0 everything in between. CPU is what
/proc/<pid>/stat says of the processes in between. Rounds are interleaved and the figures are medians, because on a shared
machine absolute times move by a quarter from run to run; the ratios are what to hold on to. Prints a table, and last one
line of JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from standby.gateway.keys import generate
from support.bench_engine import EVENT_BYTES
from support.load import Address, Tally, http_request, load

SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"
LIMITS: Final = {"request_vs_nginx": 6.0, "chunk_vs_nginx": 2.0, "added_p50_us": 1000.0, "ttft_added_us": 1000.0}
TOKEN, INSTANCE, EPOCH = "bench-token", "i-bench", 1
SLOTS: Final = 512
AT_ONCE: Final = 32
STREAM_S: Final = 4.0
RATE: Final = 200
PATH: Final = "/v1/chat/completions"


@dataclass
class Stack:
    """Something between client and engine: where to ask, with which headers, and whose CPU counts."""

    name: str
    address: Address
    pids: tuple[int, ...]
    headers: dict[str, str] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def note(self, figure: str, value: float) -> None:
        self.rounds.setdefault(figure, []).append(value)

    def median(self, figure: str) -> float:
        return statistics.median(self.rounds[figure])

    def request(self, **fields: object) -> bytes:
        body = {"model": "m", "messages": [{"role": "user", "content": "Say something."}], **fields}
        return http_request(PATH, json.dumps(body).encode(), self.headers)


# -- processes -----------------------------------------------------------------------------------------------


class Processes(contextlib.ExitStack):
    """Children that end with the context, pinned to a core."""

    def run(self, core: int, *command: str, env: dict[str, str] | None = None, speaks: bool = True) -> tuple[int, str]:
        """Start a child; returns its pid and, when it ``speaks``, the first line that it prints once it is ready."""
        child = subprocess.Popen(
            ["taskset", "-c", str(core), *command],
            stdout=subprocess.PIPE if speaks else subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SUPPORT.parent), **(env or {})},
            text=True,
        )
        self.callback(_end, child)
        if child.stdout is None:
            return child.pid, ""
        line = child.stdout.readline().strip()
        if not line:
            sys.exit(f"bench-proxy: {' '.join(command[:3])} ended before it was ready; its error is above")
        return child.pid, line

    def python(self, core: int, program: str, *arguments: str) -> tuple[int, str]:
        """Start one of the programs in tests/support."""
        return self.run(core, sys.executable, str(SUPPORT / program), *arguments)


def _end(child: subprocess.Popen[str]) -> None:
    child.terminate()
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def cpu_seconds(pids: tuple[int, ...]) -> float:
    """Return user and system time of the processes and their threads, in seconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    """Return a port that was free a moment ago, for servers that cannot be given 0."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, limit_s: float) -> None:
    """Wait until something listens."""
    end = time.monotonic() + limit_s
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > end:
            sys.exit(f"bench-proxy: nothing listens on port {port} after {limit_s:g} s")
        time.sleep(0.05)


# -- the stacks ----------------------------------------------------------------------------------------------


def start_ours(processes: Processes, engine: Path, gateway: str, folder: Path) -> Stack:
    """Start gateway and door: the ``full`` gateway, or the ``minimal`` one that only relays, to see what the rest costs."""
    door_pid, door_port = processes.python(0, "bench_door.py", str(engine), TOKEN, INSTANCE, str(EPOCH), str(SLOTS))
    if gateway == "minimal":
        pid, port = processes.python(0, "bench_gateway.py", door_port, TOKEN, INSTANCE, str(EPOCH))
        return Stack("relay and door", ("127.0.0.1", int(port)), (pid, door_pid))
    _, plane = processes.python(1, "bench_plane.py", str(folder / "nats"), door_port, INSTANCE, str(EPOCH), str(SLOTS))
    bearer = generate()
    own_port = free_port()
    settings = {
        "STANDBY_GATEWAY_PORT": str(own_port),
        "STANDBY_NODE_TOKEN": TOKEN,
        "STANDBY_KEY_PEPPER": "bench-pepper",
        "STANDBY_ADMIN_KEY": bearer,
        "STANDBY_LOG_LEVEL": "warning",
        **json.loads(plane),
    }
    serve = "from standby.gateway.main import serve; serve()"
    pid, _ = processes.run(0, sys.executable, "-c", serve, env=settings, speaks=False)
    wait_for_port(own_port, 20)
    return Stack("gateway and door", ("127.0.0.1", own_port), (pid, door_pid), {"authorization": f"Bearer {bearer}"})


NGINX: Final = """
daemon off; master_process off; pid {folder}/{name}.pid; error_log stderr warn;
events {{ worker_connections 2048; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 100000000; client_max_body_size 64m;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream next {{ server {upstream}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://next; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def start_nginx(processes: Processes, engine: Path, folder: Path) -> Stack:
    """Start nginx twice, one behind the other, like gateway and door."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        sys.exit("bench-proxy: nginx is not installed; it is the yardstick. Install it: apt-get install nginx-light")
    pids = []
    upstream = f"unix:{engine}"
    port = 0
    for name in ("second", "first"):
        port = free_port()
        config = folder / f"{name}.conf"
        config.write_text(NGINX.format(folder=folder, name=name, upstream=upstream, port=port))
        pid, _ = processes.run(0, nginx, "-p", str(folder), "-c", str(config), speaks=False)
        wait_for_port(port, 5)
        pids.append(pid)
        upstream = f"127.0.0.1:{port}"
    return Stack("nginx, 2 hops", ("127.0.0.1", port), tuple(pids))


def start_litellm(processes: Processes, litellm: str, engine_port: int, folder: Path) -> Stack:
    """Start LiteLLM's proxy, one hop, on the engine's TCP port."""
    config = folder / "litellm.yaml"
    model = {"model": "openai/m", "api_base": f"http://127.0.0.1:{engine_port}/v1", "api_key": "none"}
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": model}]}))
    port = free_port()
    master_key = f"sk-{secrets.token_hex(16)}"
    pid, _ = processes.run(
        0,
        litellm,
        *("--config", str(config), "--host", "127.0.0.1", "--port", str(port)),
        env={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MASTER_KEY": master_key,
        },
        speaks=False,
    )
    wait_for_port(port, 60)
    return Stack("LiteLLM, 1 hop", ("127.0.0.1", port), (pid,), {"authorization": f"Bearer {master_key}"})


# -- measuring -----------------------------------------------------------------------------------------------


def checked(stack: Stack, tally: Tally) -> Tally:
    """Return ``tally``; ends the benchmark where requests failed."""
    if tally.errors or not tally.requests:
        sys.exit(f"bench-proxy: {stack.name}: {tally.errors} errors in {tally.requests} requests; the figures mean nothing")
    return tally


async def measure_requests(stack: Stack, duration_s: float, at_once: int = AT_ONCE) -> None:
    """CPU for each plain request, with many at once."""
    before = cpu_seconds(stack.pids)
    tally = checked(stack, await load(stack.address, stack.request(), at_once=at_once, duration_s=duration_s))
    stack.note("request_us", (cpu_seconds(stack.pids) - before) / tally.requests * 1e6)
    stack.note("requests_per_s", tally.requests / duration_s)


async def measure_slow(stack: Stack) -> None:
    """CPU for each plain request of a stack that is far slower: warmed like the others, once, and for longer."""
    await load(stack.address, stack.request(), at_once=AT_ONCE, duration_s=3.0)
    await measure_requests(stack, 5.0)


async def measure_chunks(stack: Stack) -> None:
    """CPU for each streamed chunk, with many streams at once."""
    request = stack.request(stream=True, max_tokens=int(STREAM_S * RATE), bench_rate=RATE)
    before = cpu_seconds(stack.pids)
    tally = checked(stack, await load(stack.address, request, at_once=AT_ONCE, duration_s=60, count=1))
    stack.note("chunk_us", (cpu_seconds(stack.pids) - before) / (tally.body_bytes / EVENT_BYTES) * 1e6)


async def measure_latency(stack: Stack, duration_s: float) -> None:
    """Latency of a plain request and of the first streamed byte, one at once."""
    tally = checked(stack, await load(stack.address, stack.request(), at_once=1, duration_s=duration_s))
    stack.note("p50_us", tally.latency_p50_us)
    request = stack.request(stream=True, max_tokens=4, bench_rate=1000)
    tally = checked(stack, await load(stack.address, request, at_once=1, duration_s=duration_s))
    stack.note("ttft_us", tally.first_byte_p50_us)


async def measure(ours: Stack, nginx: Stack, direct: Stack, rounds: int) -> None:
    """Interleaved rounds, after a warm-up of each stack."""
    for stack in (ours, nginx):
        await load(stack.address, stack.request(), at_once=AT_ONCE, duration_s=0.5)
    for _ in range(rounds):
        for stack in (ours, nginx):
            await measure_requests(stack, 2.0)
            await measure_chunks(stack)
        for stack in (direct, ours, nginx):
            await measure_latency(stack, 1.0)


# -- the report ----------------------------------------------------------------------------------------------


def figures(ours: Stack, nginx: Stack, direct: Stack, litellm: Stack | None) -> dict[str, float | None]:
    """Return the figures of the last line; ratios are medians of the ratios within one round."""

    def ratio(figure: str) -> float:
        pairs = zip(ours.rounds[figure], nginx.rounds[figure], strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)

    def added(figure: str) -> float:
        pairs = zip(ours.rounds[figure], direct.rounds[figure], strict=True)
        return statistics.median(mine - theirs for mine, theirs in pairs)

    return {
        "request_vs_nginx": round(ratio("request_us"), 2),
        "chunk_vs_nginx": round(ratio("chunk_us"), 2),
        "added_p50_us": round(added("p50_us")),
        "ttft_added_us": round(added("ttft_us")),
        "litellm_vs_ours": None if litellm is None else round(litellm.median("request_us") / ours.median("request_us"), 1),
    }


def print_table(stacks: list[Stack], result: dict[str, float | None]) -> None:
    """Print what was measured and how it stands to the limits."""
    columns = {
        "request_us": "CPU µs/request",
        "requests_per_s": "requests/s",
        "chunk_us": "CPU µs/chunk",
        "p50_us": "p50 µs, 1 at once",
        "ttft_us": "first byte p50 µs",
    }
    print(f"{'path':<20}" + "".join(f"{title:>20}" for title in columns.values()))
    for stack in stacks:
        cells = (f"{stack.median(name):>20.1f}" if name in stack.rounds else f"{'-':>20}" for name in columns)
        print(f"{stack.name:<20}" + "".join(cells))
    for name, limit in LIMITS.items():
        value = result[name]
        assert value is not None  # only LiteLLM's figure can be missing
        print(f"{name:<20}{value:>10}  limit {limit:g}  {'ok' if value <= limit else 'MISSED'}")


def main() -> None:
    """Run the benchmark; the exit code is 1 when a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gateway", choices=("full", "minimal"), default="full")
    parser.add_argument("--litellm", metavar="PROGRAM", help="LiteLLM's command, in a virtual environment of its own")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    with tempfile.TemporaryDirectory(prefix="bench-") as name, Processes() as processes:
        folder = Path(name)
        engine = folder / "engine.sock"
        _, engine_port = processes.python(1, "bench_engine.py", str(engine))
        direct = Stack("direct", engine, ())
        nginx = start_nginx(processes, engine, folder)
        ours = start_ours(processes, engine, options.gateway, folder)
        uvloop.run(measure(ours, nginx, direct, options.rounds))
        stacks = [direct, nginx, ours]
        litellm = None
        if options.litellm:
            litellm = start_litellm(processes, options.litellm, int(engine_port), folder)
            uvloop.run(measure_slow(litellm))
            stacks.append(litellm)
        result = figures(ours, nginx, direct, litellm)
        print_table(stacks, result)
        print(json.dumps(result))
    sys.exit(any((result[name] or 0) > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    main()
