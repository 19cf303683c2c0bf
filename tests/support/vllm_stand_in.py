"""A stand-in for vLLM's HTTP surface on a GPU: routes, states and lies of its sleep mode. It computes nothing.

Run as a program with vLLM's own arguments; only ``--uds``, ``--model`` and ``--served-model-name`` are looked at. What it
should do wrong stands in ``stand_in.json`` in the model's folder.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler
from itertools import pairwise
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

KNOBS_FILE = "stand_in.json"
RIGHT, WRONG = " Paris", " garbage"


class State:
    """What the engine holds: tags of what is on the device, and whether the weights are the model's."""

    def __init__(self, name: str, knobs: dict[str, Any]) -> None:
        self.name = name
        self.knobs = knobs
        self.calls: list[str] = []
        self.missing: set[str] = set()
        self.good = True

    def post(self, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """Answer a POST."""
        match path:
            case "/sleep":
                return self._sleep(int(query["level"]), query["mode"])
            case "/wake_up":
                return self._wake(query["tags"])
            case "/collective_rpc":
                return self._reload(body["method"])
            case "/v1/completions":
                choice = {"text": RIGHT if self.good else WRONG}
                return 200, {"model": self.name, "choices": [choice], "usage": {"completion_tokens": 1}}
        return 404, {"error": "no such route"}

    def _sleep(self, level: int, mode: str) -> tuple[int, Any]:
        if self.knobs.get("no_routes"):
            return 404, {"error": "no such route"}
        self.calls.append(f"sleep {level} {mode}")
        if not self.knobs.get("sleep_lies"):
            self.missing = {"weights", "kv_cache"}
            self.good = level == 1
        return 200, {"status": "sleeping", "level": level}

    def _wake(self, tag: str) -> tuple[int, Any]:
        self.calls.append(f"wake {tag}")
        if self.knobs.get("wake_fails") == tag:
            return 500, {"error": "CUDA out of memory"}
        self.missing.discard(tag)
        return 200, {"status": "sleeping" if self.missing else "awake"}

    def _reload(self, method: str) -> tuple[int, Any]:
        self.calls.append(method)
        if "weights" in self.missing:
            return 500, {"error": "weights are not on the device"}
        self.good = True
        return 200, {"results": [None]}

    def get(self, path: str) -> tuple[int, Any]:
        """Answer a GET."""
        match path:
            case "/health":
                return 200, {}
            case "/is_sleeping":
                return (404, {}) if self.knobs.get("no_routes") else (200, {"is_sleeping": bool(self.missing)})
            case "/calls":
                return 200, self.calls
            case "/metrics":
                return 200, f"vllm:num_requests_running {self.knobs.get('running', 0)}\nvllm:num_requests_waiting 0\n"
        return 404, {}


class Handler(BaseHTTPRequestHandler):
    """HTTP over the state."""

    state: State

    def do_GET(self) -> None:
        self._answer(*self.state.get(self.path))

    def do_POST(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self._answer(*self.state.post(parts.path, query, json.loads(body or b"{}")))
        if parts.path == "/sleep" and self.state.knobs.get("dies_asleep"):
            self.wfile.flush()
            os._exit(9)

    def address_string(self) -> str:
        return "engine"

    def _answer(self, status: int, content: Any) -> None:
        raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


class Server(ThreadingMixIn, UnixStreamServer):
    """One thread for each connection."""

    daemon_threads = True


def main() -> None:
    """Serve until ended."""
    given = dict(pairwise(sys.argv[1:]))
    knobs = json.loads((Path(given["--model"]) / KNOBS_FILE).read_text())
    Handler.state = State(given["--served-model-name"], knobs)
    with Server(given["--uds"], Handler) as server:
        os.write(int(os.environ["STANDBY_READY_FD"]), b"ready\n")
        server.serve_forever()


if __name__ == "__main__":
    main()
