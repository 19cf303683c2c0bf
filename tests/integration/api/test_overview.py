"""The console's feed over HTTP: whose names are in it, what it says of changes, and when a stream of it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from standby.domain.events import ComponentNotice, DecisionMade
from standby.domain.instance import InstanceState
from support.cluster import make_node
from support.control_api import ONE, TWO, Control
from support.waiting import until

Json = dict[str, Any]
HOSTILE = "[red]x[/red] \x1b[31m <script>alert(1)</script> \u202egnp.exe\nevent: overview\ndata: {}\n\n"


class Viewer:
    """One who reads a stream; ``told`` are the events so far."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.told: list[tuple[str, Json]] = []
        self.ended = False
        self._kind = ""

    async def read(self) -> None:
        async for line in self.answer.aiter_lines():
            if line.startswith("event: "):
                self._kind = line[7:]
            if line.startswith("data: "):
                self.told.append((self._kind, json.loads(line[6:])))
        self.ended = True

    def changes(self, part: str) -> list[Json]:
        return [row for kind, told in self.told if kind == "change" for row in told.get(part, [])]


@asynccontextmanager
async def viewing(control: Control, who: str = "one", query: str = "every=0.25") -> AsyncIterator[Viewer]:
    async with control.client(who) as client, client.stream("GET", f"/api/v1/overview/stream?{query}", timeout=60) as answer:
        assert answer.status_code == 200, await answer.aread()
        viewer = Viewer(answer)
        reading = asyncio.create_task(viewer.read())
        try:
            await until(lambda: viewer.told)
            yield viewer
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def show(control: Control, who: str = "one", query: str = "", **headers: str) -> Json:
    answer = await control.call(who, "GET", f"/api/v1/overview{query}", **headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def test_a_tenant_sees_its_own_and_only_that(control: Control) -> None:
    """Names, instances, decisions, savings and nodes of others are nowhere in its overview, nor in its stream."""
    await control.register(who="two")
    await control.create("theirs", who="two")
    await control.register()
    await control.create("mine")
    async with viewing(control) as viewer:
        await control.tables.nodes.put("n1", make_node("n1"))
        await control.place(InstanceState.READY, endpoint="theirs", tenant=TWO)
        await until(lambda: "n1" in control.context.copies.nodes.entries)
        await tell_decision(control, TWO, "theirs", "for their eyes only")
        await control.place(InstanceState.ASLEEP, endpoint="mine")
        # Told after the other tenant's: what were to be seen of that one is there once this one is.
        await tell_decision(control, ONE, "mine", "for my own")
        await until(lambda: viewer.changes("instances") and viewer.changes("decisions"))

        seen = json.dumps([await show(control), [told for _, told in viewer.told]])

    assert "mine" in seen
    assert not [word for word in (TWO, "theirs", "for their eyes only") if word in seen]
    assert viewer.changes("nodes") == []
    assert (await show(control))["nodes"] == []


async def test_an_administrator_sees_nodes_and_may_see_all_tenants(control: Control) -> None:
    for who in ("one", "two"):
        await control.register(who=who)
        await control.create(f"of-{who}", who=who)
    await control.tables.nodes.put("n1", make_node("n1"))
    await until(lambda: control.context.copies.nodes.entries)

    own, other, everything = await asyncio.gather(
        show(control, "admin"),
        show(control, "admin", x_standby_tenant=TWO),
        show(control, "admin", "?tenants=all"),
    )

    assert [row["name"] for row in own["nodes"]] == ["n1"]
    assert [row["name"] for row in own["endpoints"]] == ["of-one"]
    assert [row["name"] for row in other["endpoints"]] == ["of-two"]
    assert [(row["tenant"], row["name"]) for row in everything["endpoints"]] == [(ONE, "of-one"), (TWO, "of-two")]
    assert everything["totals"]["endpoints"] == 2


async def test_whoever_may_not_is_told_so(control: Control) -> None:
    for path in ("/api/v1/overview", "/api/v1/overview/stream"):
        nobody = await control.call(None, "GET", path)
        curious = await control.call("one", "GET", f"{path}?tenants=all")
        confused = await control.call("admin", "GET", f"{path}?tenants={TWO}")

        assert (nobody.status_code, curious.status_code, confused.status_code) == (401, 403, 400), path


async def test_a_pace_that_nobody_can_read_at_is_refused(control: Control) -> None:
    for every in ("0", "0.1", "-1", "11", "nan", "inf", "soon", "1e999", ""):
        answer = await control.call("one", "GET", f"/api/v1/overview/stream?every={every}")

        assert answer.status_code == 400, every
        assert "every=" in answer.json()["error"]["message"]


async def test_changes_follow_the_records(control: Control) -> None:
    await control.register()
    await control.create()

    async with viewing(control) as viewer:
        await control.place(InstanceState.READY, resident_bytes=10**9)
        await until(lambda: viewer.changes("instances"))
        await control.tables.instances.delete("n1.chat-i1")
        await until(lambda: any(told.get("gone_instances") == ["chat-i1"] for _, told in viewer.told))

    feed = control.context.feed
    assert feed is not None
    await until(lambda: not feed.watched, "nothing of the viewer who went away is left")
    (kind, overview), *_ = viewer.told
    assert (kind, overview["endpoints"][0]["rung"]) == ("overview", "cold")
    assert viewer.changes("instances")[0]["words"] == "ready, 0 of 4 slots busy"
    rungs = [row["rung"] for row in viewer.changes("endpoints")]
    assert (rungs[0], rungs[-1]) == ("ready", "cold")


async def test_what_was_decided_before_is_there_and_what_is_decided_next_comes(control: Control) -> None:
    await tell_decision(control, ONE, "chat", "the first reason")
    await until(lambda: _decided(control))

    async with viewing(control) as viewer:
        await tell_decision(control, ONE, "chat", "the second reason")
        await until(lambda: viewer.changes("decisions"))

    assert [row["reason"] for row in viewer.told[0][1]["decisions"]] == ["the first reason"]
    assert [row["reason"] for row in viewer.changes("decisions")] == ["the second reason"]


async def test_words_of_others_stay_words(control: Control) -> None:
    """No markup, escape or line of an event stream in a reason is anything but text to whoever parses the stream."""
    async with viewing(control) as viewer:
        await tell_decision(control, ONE, "chat", HOSTILE)
        await until(lambda: viewer.changes("decisions"))

    assert viewer.changes("decisions")[0]["reason"] == HOSTILE
    assert [kind for kind, _ in viewer.told].count("overview") == 1


async def test_a_stream_ends_with_its_key(control: Control) -> None:
    """Field case B44: it outlives the moment in which its key was checked, but not the key."""
    answer = await control.call("admin", "GET", "/api/v1/keys")
    (key_id,) = (key["id"] for key in answer.json()["keys"] if key["name"] == "one")

    async with viewing(control, query="every=10") as viewer:
        assert (await control.call("admin", "DELETE", f"/api/v1/keys/{key_id}")).status_code < 300
        await until(lambda: viewer.ended, within_s=8)  # the next change would come after 10

    assert (await control.call("one", "GET", "/api/v1/overview")).status_code == 401


async def test_only_the_head_of_a_stream_is_no_stream(control: Control) -> None:
    """The caller has its answer with the head: nothing may go on behind it, unseen, for as long as it stays connected."""
    async with control.client("one") as client:
        answer = await client.head("/api/v1/overview/stream")
        next_one = await client.get("/api/v1/overview")

        feed = control.context.feed
        assert feed is not None
        await until(lambda: not feed.watched)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert next_one.status_code == 200


async def test_a_stream_ends_when_the_gateway_does(control: Control) -> None:
    async with viewing(control, query="every=10") as viewer:
        control.context.stopping.set()
        await until(lambda: viewer.ended, within_s=8)  # the next change would come after 10

    feed = control.context.feed
    assert feed is not None
    await until(lambda: not feed.watched)


async def tell_decision(control: Control, tenant: str, endpoint: str, reason: str) -> None:
    """Say, as a controller would, what was decided."""
    decision = DecisionMade(
        id=f"d{time.monotonic_ns()}",
        at=time.time(),
        source="controller/c",
        tenant=tenant,
        endpoint=endpoint,
        action="sleep",
        reason=reason,
    )
    await control.context.events.publish(decision)


async def _decided(control: Control) -> list[Json]:
    decisions: list[Json] = (await show(control))["decisions"]
    return decisions


async def test_notices_of_the_platform_are_for_administrators(control: Control) -> None:
    notice = ComponentNotice(id="n1", at=time.time(), source="node/n1", message="found an orphan")
    await control.context.events.publish(notice)

    async def told() -> bool:
        return bool((await show(control, "admin"))["events"])

    await until(told)

    assert (await show(control, "admin"))["events"][0]["text"] == "node/n1, info: found an orphan"
    assert (await show(control))["events"] == []
