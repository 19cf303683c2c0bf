"""SIGKILL for each process while asynchronous invocations are under way: none is lost, each has one visible result."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psutil
import pytest
import pytest_asyncio

from support.async_rig import BUCKET, AsyncRig, async_rig
from support.deployment import PARIS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

REQUESTS = 12
# Ten seconds may pass until what a killed gateway had is taken by another.
DEADLINE_S = 90.0
# About two seconds for an answer: four at once, so the work is well under way and not over when somebody dies.
KNOBS = {"token_delay_ms": 350}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncRig]:
    async with async_rig(tmp_path_factory.mktemp("kills"), gateways=2) as running:
        yield running


async def kill_gateway(rig: AsyncRig) -> None:
    """The one that took the requests, and works on most of them."""
    await rig.there.kill_gateway(0)


async def kill_both_gateways(rig: AsyncRig) -> None:
    await asyncio.gather(rig.there.kill_gateway(1), rig.there.kill_gateway(0))


async def kill_node(rig: AsyncRig) -> None:
    rig.there.kill("node")


async def kill_controller(rig: AsyncRig) -> None:
    rig.there.kill("controller")


async def kill_nats(rig: AsyncRig) -> None:
    assert rig.there.stack.nats is not None
    await rig.there.stack.nats.kill()
    await rig.there.stack.nats.start()


async def kill_engine(rig: AsyncRig) -> None:
    engines = rig.there.engines()
    assert engines
    for engine in engines:
        # Of an endpoint that is asked no more one may have just ended.
        with contextlib.suppress(psutil.NoSuchProcess):
            engine.kill()


@pytest.mark.parametrize("kill", [kill_gateway, kill_both_gateways, kill_node, kill_controller, kill_nats, kill_engine])
async def test_each_accepted_request_has_exactly_one_result(rig: AsyncRig, kill: Callable[[AsyncRig], Awaitable[None]]) -> None:
    """Field case B30 for work that nobody waits for: killed while some answers are there and some are being written."""
    name = kill.__name__.replace("_", "-")
    await rig.endpoint(name, knobs=KNOBS, at_once=4)
    client = await rig.client()
    told = await asyncio.gather(*(rig.invoke(name, client=client, InferenceId=f"r{n}") for n in range(REQUESTS)))
    await rig.there.until(lambda: some_are_there(rig, name), "some results are there", DEADLINE_S)
    await kill(rig)
    contents = await asyncio.gather(*(rig.appears(one["OutputLocation"], DEADLINE_S) for one in told))
    assert {json.loads(one)["choices"][0]["message"]["content"] for one in contents} == {PARIS}
    await rig.there.until_total("standby_async_queued", name, 0, DEADLINE_S)
    written = await rig.objects(name)
    assert set(written) == {one["OutputLocation"].removeprefix(f"s3://{BUCKET}/") for one in told}


async def some_are_there(rig: AsyncRig, name: str) -> Any:
    written = len(await rig.objects(name))
    assert written < REQUESTS, "nothing is under way any more"
    return written >= 2
