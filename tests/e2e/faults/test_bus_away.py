"""nats-server ends and comes back under traffic: warm requests never notice, cold ones are told, nothing is stopped."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from standby.bus.embedded import EmbeddedNats
from support.deployment import DEADLINE_S, PARIS, Deployment, aws_error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2
# "At once" where a caller at zero would else wait for a minute.
AT_ONCE_S = 5.0


@pytest.mark.parametrize("end", ["crash", "restart"])
async def test_the_bus_restarts_under_traffic(there: Deployment, end: str) -> None:
    """Field cases B36 and B38: no instance is stopped by what a fresh listing lacks, and nobody stays deaf."""
    warm, cold, later = f"warm-{end}", f"cold-{end}", f"later-{end}"
    await there.endpoint(warm, keep_ready="forever")
    await there.endpoint(cold, keep_ready="forever")
    await there.warm(warm)
    engines = {process.pid for process in there.engines()}
    async with traffic(there, warm) as answers:
        if end == "crash":
            await nats(there).kill()
            await tells_cold_callers(there, cold)
        else:
            await nats(there).stop()
        await nats(there).start()
        # Nobody lists again by himself: who stays deaf never hears of it.
        async with asyncio.timeout(DEADLINE_S):
            assert text_of(await retried(there, cold)) == PARIS
        # A change made now is seen by both gateways and acted upon by controller and node.
        await there.endpoint(later)
        assert text_of(await there.invoke(later, gateway=1)) == PARIS
        await there.until(lambda: enough(answers), "the warm one was asked meanwhile")
    await there.became(later, "ready")  # what its node has told of the others came before
    assert Counter(answer.status_code for answer in answers) == {200: len(answers)}
    assert engines <= {process.pid for process in there.engines()}
    assert there.states(warm)[-1] == "ready"
    assert (there.spawns(warm), there.spawns(cold)) == (1, 1)


async def tells_cold_callers(there: Deployment, endpoint: str) -> None:
    """After a few seconds without the bus a caller at zero is told at once, with a time to come back."""

    async def refused() -> httpx.Response | None:
        try:
            async with asyncio.timeout(AT_ONCE_S):
                return await there.invoke(endpoint, gateway=1)
        except TimeoutError:
            return None

    answer = await there.until(refused, "a cold caller is told")
    aws_error_of(answer, 503, "bus_unavailable")
    assert int(answer.headers["x-amz-retry-after"]) >= 1000


async def enough(answers: list[httpx.Response]) -> bool:
    return len(answers) > 10


async def retried(there: Deployment, endpoint: str) -> httpx.Response:
    """Ask as a client that honours a 429 or 503 does, without its pause."""
    while (answer := await there.invoke(endpoint)).status_code in (429, 503):
        await asyncio.sleep(0.05)
    return answer


@asynccontextmanager
async def traffic(there: Deployment, endpoint: str) -> AsyncIterator[list[httpx.Response]]:
    """Ask again and again over both gateways; yields the answers so far."""
    answers: list[httpx.Response] = []

    async def ask(gateway: int) -> None:
        while not over.is_set():
            answers.append(await there.invoke(endpoint, gateway=gateway))
            await asyncio.sleep(0.05)

    over = asyncio.Event()
    async with asyncio.TaskGroup() as callers:
        for number in range(GATEWAYS):
            callers.create_task(ask(number))
        yield answers
        over.set()


def nats(there: Deployment) -> EmbeddedNats:
    assert there.stack.nats is not None
    return there.stack.nats
