"""The same load by ``standby bench`` and by locust, each as a process of its own, on servers that are known."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from standby.bench.files import Document
from standby.bench.statistics import nearest_rank

SUPPORT: Final = Path(__file__).resolve().parent
_DEADLINE_S: Final = 60.0

_NGINX: Final = """
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr error;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 100000000; keepalive_timeout 600s; client_body_temp_path {folder}; tcp_nodelay on;
  proxy_temp_path {folder}; fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location = /v1/models {{ default_type application/json; return 200 '{{"data": [{{"id": "known"}}]}}'; }}
    location / {{ default_type text/event-stream; return 200 '{events}'; }}
  }}
}}
"""
_TOKEN: Final = 'data: {"choices": [{"index": 0, "delta": {"content": "Paris"}, "finish_reason": "stop"}]}\n\n'


def pinned(core: int | None, *command: str) -> list[str]:
    """Return the command on one core; None: wherever the system puts it."""
    return [*([] if core is None else ["taskset", "-c", str(core)]), *command]


@contextlib.contextmanager
def delay_server(count: int, median_s: float, sigma: float, *, core: int | None = None) -> Iterator[str]:
    """Run the server of known times and yield its URL."""
    program = [str(SUPPORT / "delay_server.py"), str(count), str(median_s), str(sigma)]
    child = subprocess.Popen(pinned(core, sys.executable, *program), stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield f"http://127.0.0.1:{int(child.stdout.readline())}"
    finally:
        _end(child)


def answered(url: str) -> int:
    """Return how many requests the server of known times has answered."""
    with urllib.request.urlopen(f"{url}/count", timeout=_DEADLINE_S) as answer:
        return int(json.load(answer)["count"])


@contextlib.contextmanager
def nginx_server(folder: Path, *, core: int | None = None) -> Iterator[str | None]:
    """Run nginx, which answers with a stream of one token at once, and yield its URL; None where it is not installed."""
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if nginx is None:
        yield None
        return
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(_NGINX.format(folder=folder, port=port, events=f"{_TOKEN}data: [DONE]\n\n"))
    child = subprocess.Popen(pinned(core, nginx, "-p", str(folder), "-c", str(config)))
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        _end(child)


def bench(url: str, *words: str, core: int | None = None, samples: bool = False) -> dict[str, Any]:
    """Run ``standby bench`` with these words and return what it tells programs."""
    program = str(Path(sys.executable).with_name("standby"))
    command = pinned(core, program, "bench", f"{url}/v1", *words, "--json", "-", *(["--samples"] if samples else []))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise AssertionError(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}") from None
    return found


def end_to_end(document: dict[str, Any]) -> list[float]:
    """Return the end-to-end latencies of a run's samples that went well, in seconds."""
    run = Document.model_validate(document).run
    return [sample.e2e_s for sample in run.samples if sample.ok]


def locust(
    url: str, folder: Path, *, users: int, rate_each: float, seconds: float, core: int | None = None
) -> tuple[list[float], list[str], int]:
    """Run locust and return the latencies that it measured (seconds), its failures, and how many requests it says it made."""
    told = folder / "locust.json"
    # Spawned at the rate at which they ask, they ask evenly.
    words = ["--headless", "-u", str(users), "-r", f"{users * rate_each:g}", "-t", f"{seconds:g}s", "--stop-timeout", "10"]
    program = [sys.executable, "-m", "locust", "-f", str(SUPPORT / "locust_user.py"), "--host", url, "--only-summary", *words]
    environment = {**os.environ, "LOCUST_SAMPLES": str(told), "LOCUST_RATE_EACH": f"{rate_each:g}"}
    done = subprocess.run(
        pinned(core, *program), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    assert told.exists(), f"locust told nothing: {done.stdout}"
    found = json.loads(told.read_text())
    return found["seconds"], found["failures"], found["requests"]


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return
        assert time.monotonic() < deadline, f"nothing listens at port {port}"
        time.sleep(0.02)


def _end(child: subprocess.Popen[Any]) -> None:
    child.terminate()
    try:
        child.wait(_DEADLINE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    if child.stdout is not None:
        child.stdout.close()


def differences(ours: Sequence[float], theirs: Sequence[float], percents: Sequence[float] = (50, 90, 99)) -> dict[float, float]:
    """Return by how much two generators' percentiles differ, as a share of the second one's."""
    mine, other = sorted(ours), sorted(theirs)
    return {
        percent: abs(nearest_rank(mine, percent) - nearest_rank(other, percent)) / nearest_rank(other, percent)
        for percent in percents
    }
