"""Requests that arrive in the very moment in which an idle instance is taken down: none may fail."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import httpx
import pytest

from support.deployment import Deployment

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

GATEWAYS = 2
# An instance counts as busy until its node's next beat: a quick one keeps the rounds short.
ENVIRONMENT = {"STANDBY_HEARTBEAT_S": "0.1"}
ROUNDS = 60
BURST = 6


async def test_no_request_fails_at_the_shutdown_boundary(there: Deployment) -> None:
    """Field case B17: one endpoint falls asleep, another is stopped, sixty times each, under bursts over two gateways."""
    await asyncio.gather(hammer(there, "to-sleep", "forever", "asleep"), hammer(there, "to-stop", "0s", "staged"))


async def hammer(there: Deployment, name: str, keep_asleep: str, below: str) -> None:
    """In each round half of a burst is aimed at the fence and half follows it at once.

    Whoever loses the race is queued again and wakes the instance; a drain that is called off cuts nothing off.
    """
    await there.endpoint(name, knobs={"token_delay_ms": 4}, keep_ready="0.05s", keep_asleep=keep_asleep, slots=BURST)
    choose = random.Random(17)
    answers: list[httpx.Response] = []
    # The shortest one: where the fence comes later than that, the early half only meets an instance that is still ready.
    delay = min([await measured_delay(there, name) for _ in range(3)])
    for _ in range(ROUNDS):
        fences = fences_of(there, name)
        early = [shot(there, name, delay + choose.uniform(-0.03, 0.02), n, answers) for n in range(BURST // 2)]
        late = [after_fence(there, name, fences, choose.uniform(0.0, 0.02), n, answers) for n in range(BURST // 2)]
        await asyncio.gather(*early, *late)
    assert Counter(answer.status_code for answer in answers) == {200: ROUNDS * BURST}
    assert fences_of(there, name) >= ROUNDS
    rungs = Counter(answer.headers["x-standby-rung"] for answer in answers)
    assert min(rungs["ready"], rungs[below]) >= ROUNDS / 4, f"the bursts did not meet both sides of the boundary: {rungs}"


def fences_of(there: Deployment, name: str) -> int:
    return sum(change["after"] == "draining" for change in there.of_kind("transition", name))


async def measured_delay(there: Deployment, name: str) -> float:
    """Ask once and return how long after the answer the door was fenced, in seconds; its news comes later than that."""
    await there.warm(name)
    ended = time.time()
    await there.happened(lambda: fenced_at(there, name) > ended, f"{name} falls idle")
    return fenced_at(there, name) - ended


def fenced_at(there: Deployment, name: str) -> float:
    """When its door was last fenced, in seconds since the epoch."""
    return max((change["at"] for change in there.of_kind("transition", name) if change["after"] == "draining"), default=0.0)


async def shot(there: Deployment, name: str, delay: float, number: int, answers: list[httpx.Response]) -> None:
    await asyncio.sleep(max(0.0, delay))
    answers.append(await there.invoke(name, gateway=number % GATEWAYS))


async def after_fence(
    there: Deployment, name: str, fences: int, delay: float, number: int, answers: list[httpx.Response]
) -> None:
    await there.happened(lambda: fences_of(there, name) > fences, f"{name} falls idle")
    await shot(there, name, delay, number + 1, answers)
