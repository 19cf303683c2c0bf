"""Waiting for an endpoint: its record is the truth, its events only say when to look and what to show."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from standby.cli.client import Client, error_class
from standby.cli.models import segment
from standby.cli.output import failure_lines
from standby.cli.progress import Climb
from standby.domain.durations import format_duration
from standby.domain.errors import ColdWaitExceeded, NotFound, StandbyError, Unavailable

# Between events: a change may reach the record a moment after its event, and events may be lost.
_LOOK_AGAIN_S: Final = 0.5
_TELLING: Final = frozenset({"transition", "activation", "endpoint"})


async def wait_for(client: Client, name: str, rung: str | None, timeout_s: float, climb: Climb) -> dict[str, Any]:
    """Return the endpoint's view once it is at ``rung``; without one, once it serves and has its ``min_ready`` instances.

    Raises the error that the endpoint's failure names, ColdWaitExceeded after ``timeout_s``, EndpointNotFound.
    """
    news = asyncio.Event()
    deadline = asyncio.get_running_loop().time() + timeout_s
    async with following(client, name, climb, news):
        while True:
            news.clear()
            endpoint: dict[str, Any] = await client.call("GET", f"/api/v1/endpoints/{segment(name)}")
            if endpoint["status"] == "Failed":
                raise failed(endpoint)
            if reached(endpoint, rung):
                return endpoint
            climb.note(endpoint["state"])
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise ColdWaitExceeded(
                    f"endpoint {name!r} is not {rung or 'in service'} after {format_duration(timeout_s)}: "
                    f"{endpoint['status']}, rung {endpoint['rung']}, {endpoint['state']}",
                    remedy="wait longer (`--timeout`); to wake an endpoint, invoke it",
                )
            # Not asyncio.wait_for: Python 3.11's loses a Ctrl-C that comes in the moment in which there is news.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_AGAIN_S, left)):
                    await news.wait()


async def wait_until_gone(client: Client, name: str, timeout_s: float) -> None:
    """Return once there is no such endpoint. Raises Unavailable after ``timeout_s``."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < deadline:
        try:
            await client.call("GET", f"/api/v1/endpoints/{segment(name)}")
        except NotFound:
            return
        await asyncio.sleep(_LOOK_AGAIN_S / 5)
    raise Unavailable(
        f"endpoint {name!r} is still being deleted after {format_duration(timeout_s)}",
        remedy="check with `standby status` that a controller runs",
    )


@contextlib.asynccontextmanager
async def following(client: Client, name: str, climb: Climb, news: asyncio.Event | None = None) -> AsyncIterator[None]:
    """Feed the endpoint's events to ``climb`` and set ``news`` on those that tell of a change, in the background."""

    async def follow() -> None:
        # Without the events the wait is only less colourful; what is wrong, the caller's own requests will say.
        with contextlib.suppress(StandbyError):
            async for event in client.events(name):
                climb.feed(event)
                if news is not None and event.get("kind") in _TELLING:
                    news.set()

    task = asyncio.create_task(follow())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def reached(endpoint: dict[str, Any], rung: str | None) -> bool:
    """Return whether the endpoint is where the caller wants it: pure."""
    if rung is not None:
        # An instance that is still falling asleep counts as asleep in the rung, but memory is not given back yet.
        resting = {instance["state"] for instance in endpoint["instances"]} or {"cold"}
        return bool(endpoint["rung"] == rung and rung in resting)
    wanted = sum(variant["policy"]["min_ready"] for variant in endpoint["variants"])
    ready = sum(instance["state"] == "ready" for instance in endpoint["instances"])
    return bool(endpoint["status"] == "InService" and ready >= wanted)


def failed(endpoint: dict[str, Any]) -> StandbyError:
    """Return the error for a failed endpoint: reason, first error line, end of the log."""
    failure = endpoint["failure"] or {"reason": "the cause was not recorded"}
    lines = [f"endpoint {endpoint['name']!r} failed: {failure['reason']}", *failure_lines(failure)]
    return error_class(failure.get("code") or "engine_start_failed", 502)(
        "\n".join(lines), remedy=f"mend the cause, then `standby endpoints retry {endpoint['name']}`"
    )
