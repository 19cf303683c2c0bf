"""Requests that arrive in the very moment in which an idle instance is taken down: none may fail."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import httpx
import pytest

from support.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2
ROUNDS = 60
BURST = 6
JITTER_S = 0.03


@pytest.mark.parametrize(("name", "keep_asleep"), [("to-sleep", "forever"), ("to-stop", "0s")])
async def test_no_request_fails_at_the_shutdown_boundary(there: Deployment, name: str, keep_asleep: str) -> None:
    """Field case B17: bursts over two gateways, aimed at the drain; whoever loses the race is queued and wakes it again."""
    knobs = {"token_delay_ms": 4}
    await there.endpoint(name, knobs=knobs, keep_ready="0.05s", keep_asleep=keep_asleep, slots=BURST)
    choose = random.Random(17)
    answers: list[httpx.Response] = []
    delay = 0.0
    for number in range(ROUNDS):
        if number < 3 or number % 20 == 0:
            delay = await measured_delay(there, name)
        aim = delay + choose.uniform(-JITTER_S, JITTER_S)
        await asyncio.gather(*(shot(there, name, aim + choose.uniform(-0.01, 0.01), n, answers) for n in range(BURST)))
    assert Counter(answer.status_code for answer in answers) == {200: ROUNDS * BURST}
    fenced = sum(change["after"] == "draining" for change in there.of_kind("transition", name))
    assert fenced >= ROUNDS / 4, f"the bursts met only {fenced} drains"
    rungs = Counter(answer.headers["x-standby-rung"] for answer in answers)
    assert len(rungs) >= 2, f"all requests met the same rung: {rungs}"


async def measured_delay(there: Deployment, name: str) -> float:
    """Ask once and return how long after the answer the door was fenced."""
    await there.warm(name)
    ended = time.time()
    fences: list[float] = []

    def fenced() -> bool:
        changes = there.of_kind("transition", name)
        fences[:] = [change["at"] for change in changes if change["after"] == "draining" and change["at"] > ended]
        return bool(fences)

    await there.happened(fenced, f"{name} falls idle")
    await there.warm(name)
    return fences[0] - ended


async def shot(there: Deployment, name: str, delay: float, number: int, answers: list[httpx.Response]) -> None:
    await asyncio.sleep(max(0.0, delay))
    answers.append(await there.invoke(name, gateway=number % GATEWAYS))
