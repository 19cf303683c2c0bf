"""SIGKILL for the node's agent or for an engine: nothing is left behind, callers are told, service comes back."""

from __future__ import annotations

import asyncio

import psutil
import pytest

from support.deployment import PARIS, QUESTION, Deployment, aws_error_of, text_of
from support.raw_http import RawClient
from support.reality import alive

pytestmark = pytest.mark.asyncio(loop_scope="module")

# Each engine has a helper process in its group, which outlives a killed engine.
KNOBS = {"token_delay_ms": 80, "spawn_child": True}
# Nearly a minute: it is still under way when somebody dies.
LONG = {"ignore_eos": True, "max_tokens": 700}


async def test_a_killed_agent_leaves_no_engine_and_its_successor_serves(there: Deployment) -> None:
    """Field case B30: engines die with their agent, what survives is reaped by the next one, and callers are told."""
    await there.endpoint("orphans", knobs=KNOBS)
    await there.warm("orphans")
    family = await family_of(there, "orphans")
    assert len(family) == 2
    stream = await in_flight(there, "orphans", stream=True)
    whole = await in_flight(there, "orphans")
    restarts = there.stack.children["node"].restarts
    there.kill("node")
    cut = await stream.answer()
    assert b'"content"' in cut.body, "it had begun"
    assert b'"error"' in cut.body
    assert b"[DONE]" not in cut.body, "a stream that broke must not look complete"
    assert (await whole.answer()).status == 424
    assert text_of(await there.invoke("orphans")) == PARIS
    await there.until(lambda: all_have_ended(family), "nothing of the first engine is left")
    assert len(there.engines()) == 1
    assert await family_of(there, "orphans") != family
    assert there.stack.children["node"].restarts == restarts + 1
    await there.until_total("standby_requests_in_flight", "orphans", 0)


async def test_a_killed_engine_is_replaced_under_load(there: Deployment) -> None:
    """Field case B30: the end is seen at once, requests in flight are told, the waiting ones are served by the next."""
    await there.endpoint("victim", knobs=KNOBS, slots=2)
    await there.warm("victim")
    family = await family_of(there, "victim")
    running = [asyncio.create_task(there.invoke("victim", **LONG)) for _ in range(2)]
    await there.until(lambda: is_active(there, "victim", 2), "both run")
    waiting = [asyncio.create_task(there.invoke("victim")) for _ in range(4)]
    await there.until_total("standby_requests_queued", "victim", 4)
    there.engine_of((await there.instance("victim") or {})["id"]).kill()
    for answer in await asyncio.gather(*running):
        aws_error_of(answer, 424, "engine_died")
    assert [text_of(answer) for answer in await asyncio.gather(*waiting)] == [PARIS] * 4
    await there.became("victim", "ready", 2)
    assert there.spawns("victim") == 2
    await there.until(lambda: all_have_ended(family), "nothing of the first engine is left")
    (failed,) = [change for change in there.of_kind("transition", "victim") if change["after"] == "failed"]
    assert "SIGKILL" in failed["reason"]
    await there.until_status("victim", "InService")
    await there.until_total("standby_requests_in_flight", "victim", 0)


async def family_of(there: Deployment, endpoint: str) -> list[psutil.Process]:
    """The endpoint's engine with all its descendants."""
    instance = await there.instance(endpoint)
    assert instance is not None
    engine = there.engine_of(instance["id"])
    return [engine, *engine.children(recursive=True)]


async def in_flight(there: Deployment, endpoint: str, *, stream: bool = False) -> RawClient:
    before = await there.stats(endpoint)
    client = await there.post(f"/endpoints/{endpoint}/invocations", {"messages": QUESTION, "stream": stream, **LONG})

    async def begun() -> bool:
        now = await there.stats(endpoint)
        return now["active"] == before["active"] + 1 and now["tokens"] > before["tokens"]

    await there.until(begun, "the engine works on the request")
    return client


async def is_active(there: Deployment, endpoint: str, count: int) -> bool:
    return await there.active(endpoint) == count


async def all_have_ended(processes: list[psutil.Process]) -> bool:
    return not any(alive(process) for process in processes)
