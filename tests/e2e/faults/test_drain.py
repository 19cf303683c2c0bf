"""Gateways and nodes that are told to stop, as real processes (field cases B18, B29)."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from standby.cli.supervisor import Child
from support.deployment import PARIS, QUESTION, Deployment, text_of
from support.more_nodes import more_nodes
from support.raw_http import RawAnswer, RawClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2
GRACE_S = 12
ENVIRONMENT = {"STANDBY_SHUTDOWN_GRACE_S": str(GRACE_S), "STANDBY_LOG_FORMAT": "json"}
SLOW = {"token_delay_ms": 120}
# An answer of three seconds: time enough to see it run, and a quarter of what it is given to end.
THREE_S = {"ignore_eos": True, "max_tokens": 25}
ENDLESS = {"token_delay_ms": 50}


async def test_a_gateway_finishes_what_it_has_and_ends_with_zero(there: Deployment) -> None:
    """A stream, a request that waits for a slot, and one on a connection that stays open."""
    await there.endpoint("finished", knobs=SLOW, slots=1)
    await there.warm("finished")
    gateway = there.stack.children["gateway-2"]
    stream = await streaming(there, "finished", gateway=1, **THREE_S)
    waiting = await there.post("/endpoints/finished/invocations", {"messages": QUESTION, "max_tokens": 1}, gateway=1)
    await there.until_total("standby_requests_queued", "finished", 1)
    ends = gateway.ends
    gateway.restart()
    whole, late = await asyncio.gather(stream.answer(), waiting.answer())
    assert (whole.complete, b"[DONE]" in whole.body) == (True, True)
    assert (late.status, late.headers["connection"]) == (200, "close")
    await ended(there, gateway, ends)
    assert "drained: 2 finished, 0 cut" in said(gateway)
    assert any(line.startswith("draining: 2 open requests, 1 waiting, ") for line in said(gateway))


async def test_at_the_limit_a_gateway_tells_everybody_and_ends(there: Deployment) -> None:
    await there.endpoint("cut", knobs=ENDLESS, slots=4)
    await there.warm("cut")
    gateway = there.stack.children["gateway-2"]
    streams = [await streaming(there, "cut", gateway=1, ignore_eos=True) for _ in range(3)]
    openai = await there.post(
        "/v1/chat/completions", {"model": "cut", "messages": QUESTION, "stream": True, "ignore_eos": True}, gateway=1
    )
    await there.until_total("standby_requests_in_flight", "cut", 4)
    ends = gateway.ends
    gateway.restart()
    for client in (*streams, openai):
        assert_cut(await client.answer())
    await ended(there, gateway, ends)
    assert "drained: 0 finished, 4 cut" in said(gateway)
    await there.until_total("standby_requests_in_flight", "cut", 0)


async def test_a_second_signal_ends_a_gateway_at_once(there: Deployment, tmp_path: Path) -> None:
    """Without the grace, and with the callers told all the same."""
    await there.endpoint("forced", knobs=ENDLESS, slots=4)
    await there.warm("forced")
    gateway = there.stack.children["gateway-2"]
    as_before = gateway.environment
    gateway.environment = {**as_before, "STANDBY_SHUTDOWN_GRACE_S": "600"}
    await began_anew(there, gateway)
    gateway.environment = as_before
    stream = await streaming(there, "forced", gateway=1, ignore_eos=True)
    ends = gateway.ends
    gateway.restart()
    await there.until(lambda: has_said(gateway, "draining: 1 open"), "it drains")
    gateway.signal(signal.SIGINT)
    assert_cut(await stream.answer())
    await ended(there, gateway, ends)
    assert any("told twice to stop" in line for line in said(gateway))


async def test_a_drained_node_gives_everything_to_another_one(there: Deployment) -> None:
    """What runs ends, what comes is served elsewhere, nothing is lost; the node stays empty over a restart."""
    await there.endpoint("moved", knobs=SLOW, slots=2)
    await there.warm("moved")
    async with more_nodes(there, "n2"):
        await there.until(lambda: is_at(there, "moved", "n1"), "it is at n1 alone")
        assert (await order(there, "n2", "cordon"))["mode"] == "cordoned"
        assert (await order(there, "n2", "uncordon"))["mode"] == "open"
        stream = await streaming(there, "moved", **THREE_S)
        answer = await order(there, "n1", "drain")
        assert (answer["changed"], answer["mode"]) == (True, "draining")
        later = await asyncio.gather(*(there.invoke("moved", gateway=number % 2) for number in range(8)))
        assert [text_of(one) for one in later] == [PARIS] * 8
        assert (await stream.answer()).complete
        await there.until(lambda: is_at(there, "moved", "n2"), "it is at n2 alone")
        await there.until(lambda: is_(there, "n1", "drained"), "n1 is drained")
        assert not (await order(there, "n1", "drain"))["changed"]
        boot = (await node_named(there, "n1"))["boot_id"]
        there.stack.children["node"].restart()
        await there.until(lambda: has_booted(there, "n1", boot), "the next agent is there")
        await there.until(lambda: is_(there, "n1", "drained"), "n1 still is")
        shown = await node_named(there, "n1")
        assert (shown["instances"], shown["words"].partition(" (")[0]) == (0, "drained")
        await order(there, "n1", "uncordon")
        await there.api("DELETE", "/endpoints/moved")
        await there.until(lambda: is_(there, "n1", "open"), "n1 is open")


async def test_a_node_that_is_stopped_hands_over(there: Deployment) -> None:
    """Its running answers end; the progress is told; the next one takes what waits."""
    await there.endpoint("handed", knobs=SLOW, slots=2)
    await there.warm("handed")
    async with more_nodes(there, "n3"):
        await there.until(lambda: is_at(there, "handed", "n1"), "it is at n1 alone")
        stream = await streaming(there, "handed", **THREE_S)
        node = there.stack.children["node"]
        ends = node.ends
        node.restart()
        await there.until(lambda: has_state(there, "handed", "draining"), "it drains")
        (draining,) = [one for one in (await there.show("handed"))["instances"] if one["state"] == "draining"]
        assert draining["words"].startswith("draining, 1 in flight, "), draining
        later = await asyncio.gather(*(there.invoke("handed", gateway=number % 2) for number in range(6)))
        assert [text_of(one) for one in later] == [PARIS] * 6
        assert (await stream.answer()).complete
        await ended(there, node, ends)
        await there.api("DELETE", "/endpoints/handed")


# ---- helpers -----------------------------------------------------------------------------------------------------------


async def streaming(there: Deployment, endpoint: str, *, gateway: int = 0, **body: Any) -> RawClient:
    """Begin a stream and return once its engine works on it."""
    before = sum([(await there.metric("standby_requests_in_flight", endpoint, gateway=g)) or 0 for g in range(GATEWAYS)])
    client = await there.post(
        f"/endpoints/{endpoint}/invocations", {"messages": QUESTION, "stream": True, **body}, gateway=gateway
    )
    await there.until_total("standby_requests_in_flight", endpoint, before + 1)

    generated = (await there.stats(endpoint))["tokens"]

    async def flows() -> bool:
        return (await there.stats(endpoint))["tokens"] > generated + 2

    await there.until(flows, "it has begun")
    return client


async def began_anew(there: Deployment, gateway: Child) -> None:
    ends = gateway.ends
    gateway.restart()
    await ended(there, gateway, ends)


async def ended(there: Deployment, child: Child, ends: int) -> None:
    """Wait until the process has ended with exit code 0 and its successor is up."""

    async def over() -> bool:
        return child.ends > ends and child.restarts >= child.ends

    await there.until(over, f"{child.name} has ended and is started again")
    assert child.last_code == 0, child.log.read_text()[-3000:]
    if child.name.startswith("gateway"):
        await there.until(lambda: serves(there), "it serves again")


async def serves(there: Deployment) -> bool:
    try:
        return (await there.call("GET", "/readyz", gateway=1)).status_code == 200
    except httpx.TransportError:
        return False


async def has_booted(there: Deployment, node: str, boot: str) -> bool:
    return bool((await node_named(there, node))["boot_id"] != boot)


def said(child: Child) -> list[str]:
    """What the process has said."""
    whole, _, _ = child.log.read_text().rpartition("\n")
    return [json.loads(line).get("message", "") for line in whole.splitlines() if line.startswith("{")]


async def has_said(child: Child, words: str) -> bool:
    return any(line.startswith(words) for line in said(child))


def assert_cut(answer: RawAnswer) -> None:
    """It has begun, ends with one error event, and does not look whole."""
    events = [json.loads(line[5:]) for line in answer.body.splitlines() if line.startswith(b"data:") and b"[DONE]" not in line]
    assert answer.status == 200
    assert b"[DONE]" not in answer.body
    assert ["error" in event for event in events[-2:]] == [False, True], answer.body[-400:]


async def order(there: Deployment, node: str, action: str) -> dict[str, Any]:
    return await there.api("POST", f"/nodes/{node}/orders", {"action": action})


async def node_named(there: Deployment, name: str) -> dict[str, Any]:
    (found,) = [node for node in (await there.api("GET", "/nodes"))["nodes"] if node["name"] == name]
    return dict(found)


async def is_(there: Deployment, node: str, mode: str) -> bool:
    return bool((await node_named(there, node))["mode"] == mode)


async def has_state(there: Deployment, endpoint: str, state: str) -> bool:
    return any(one["state"] == state for one in (await there.show(endpoint))["instances"])


async def is_at(there: Deployment, endpoint: str, node: str) -> bool:
    """Whether the endpoint is ready at this node and at no other one."""
    return {one["node"] for one in (await there.show(endpoint))["instances"] if one["state"] == "ready"} == {node}
