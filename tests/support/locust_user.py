"""A locustfile: users that ask a chat completion at a steady rate each; what locust has measured goes to a file, unrounded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from locust import FastHttpUser, constant_throughput, events, task

BODY = json.dumps({"model": "known", "messages": [{"role": "user", "content": "Name the capital of France."}]})
_seconds: list[float] = []
_failures: list[str] = []


class Caller(FastHttpUser):
    """One of many."""

    wait_time = constant_throughput(float(os.environ.get("LOCUST_RATE_EACH", "1")))

    @task
    def ask(self) -> None:
        self.client.post("/v1/chat/completions", data=BODY, headers={"content-type": "application/json"})


@events.request.add_listener  # type: ignore[untyped-decorator] # locust's own has no types
def _measured(response_time: float, exception: object, **_about: Any) -> None:
    _seconds.append(response_time / 1000)
    if exception is not None:
        _failures.append(str(exception))


@events.quitting.add_listener  # type: ignore[untyped-decorator] # locust's own has no types
def _tell(environment: Any, **_about: Any) -> None:
    told = {"seconds": _seconds, "failures": _failures, "requests": environment.stats.total.num_requests}
    Path(os.environ["LOCUST_SAMPLES"]).write_text(json.dumps(told))
