"""Ray Serve from zero around a llama.cpp process: the program of the peer, in Ray's own environment.

``python coldstart_ray_app.py JSON`` starts Ray and one deployment that rests at no replica. Over the socket with the number
``control`` it says ``{"ready": …}`` and then answers each line with the number of replicas there are, until it is closed.

The replica runs the very program and flags of standby's own engine, and passes its stream through. What the documents of
Ray Serve give for a quick first replica is used: no replica in rest, no delay before the first one (a deployment without
replicas is scaled by the first request at once, see "autoscaling guide" and ``ray.serve.autoscaling_policy``), and one
processor for the replica. How soon it goes back to none matters to nobody's first token, and is short.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final, TextIO

import aiohttp  # type: ignore[import-not-found]  # in Ray's own environment, as is Ray
import ray  # type: ignore[import-not-found]
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

DEPLOYMENT: Final = "Engine"
_READY_LIMIT_S: Final = 60
_OPTIONS: Final[dict[str, Any]] = {
    "name": DEPLOYMENT,
    "max_ongoing_requests": 2,
    "ray_actor_options": {"num_cpus": 1},
    "graceful_shutdown_timeout_s": 2,
    "graceful_shutdown_wait_loop_s": 0.5,
    "autoscaling_config": {
        "min_replicas": 0,
        "initial_replicas": 0,
        "max_replicas": 1,
        "upscale_delay_s": 0,
        "downscale_delay_s": 1,
        "downscale_to_zero_delay_s": 1,
        "metrics_interval_s": 0.5,
        "look_back_period_s": 1,
    },
}


class Engine:
    """One replica: a child that serves the model on a unix socket, and a relay to it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        began = time.monotonic()
        folder = Path(asked["folder"])
        spec = folder / f"spec-{os.getpid()}.json"
        self._socket = str(folder / f"e{os.getpid()}.sock")
        spec.write_text(json.dumps({**asked["spec"], "socket": self._socket}))
        read_end, write_end = os.pipe()
        variables = {asked["ready_variable"]: str(write_end), asked["parent_variable"]: str(os.getpid())}
        self._child = subprocess.Popen(
            [sys.executable, "-P", *asked["program"], "--spec", str(spec)],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            pass_fds=(write_end,),
        )
        os.close(write_end)
        with os.fdopen(read_end, "rb") as ready:
            if not ready.readline():
                raise RuntimeError(f"the engine ended with {self._child.wait(_READY_LIMIT_S)} while it loaded")
        self._loaded_s = time.monotonic() - began

    async def __call__(self, request: Request) -> StreamingResponse:
        body = await request.body()
        headers = {"x-engine-loaded-s": f"{self._loaded_s:.3f}"}
        return StreamingResponse(self._relay(request.url.path, body), media_type="text/event-stream", headers=headers)

    async def _relay(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        connector = aiohttp.UnixConnector(path=self._socket)
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(f"http://engine{path}", data=body, headers={"content-type": "application/json"}) as answer,
        ):
            async for chunk in answer.content.iter_any():
                yield chunk

    def __del__(self) -> None:
        self._child.terminate()


def replicas() -> int:
    """Return how many replicas there are, whatever they do."""
    applications = serve.status().applications
    return sum(
        sum(deployment.replica_states.values())
        for application in applications.values()
        for deployment in application.deployments.values()
    )


def main() -> None:
    """Serve until standard input ends."""
    asked = json.loads(sys.argv[1])
    ray.init(
        num_cpus=os.cpu_count(),
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=asked["object_store_bytes"],
        _temp_dir=asked["temporary"],
    )
    serve.start(http_options={"host": "127.0.0.1", "port": asked["port"]})
    serve.run(serve.deployment(**_OPTIONS)(Engine).bind(asked), route_prefix="/")
    try:
        with socket.socket(fileno=asked["control"]) as control, control.makefile("rw") as lines:
            say(lines, {"ready": ray.__version__})
            for _ in lines:
                say(lines, {"replicas": replicas()})
    finally:
        serve.shutdown()
        ray.shutdown()


def say(lines: TextIO, content: dict[str, Any]) -> None:
    """Send one line."""
    lines.write(json.dumps(content) + "\n")
    lines.flush()


if __name__ == "__main__":
    main()
