"""The event stream: the tenant's own events, replayed and live, with a sign of life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from standby.domain.access import Lease
from standby.domain.events import ComponentNotice, FetchProgress
from support.control_api import ONE, TWO, Control
from support.waiting import until


@asynccontextmanager
async def stream(control: Control, who: str, query: str = "") -> AsyncIterator[AsyncIterator[str]]:
    async with (
        asyncio.timeout(60),
        control.client(who) as client,
        client.stream("GET", f"/api/v1/events{query}") as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        yield response.aiter_lines()


async def next_event(lines: AsyncIterator[str]) -> dict[str, object]:
    async for line in lines:
        if line.startswith("data:"):
            return dict(json.loads(line[5:]))
    raise AssertionError("the stream ended")


def fetched(tenant: str, done: int) -> FetchProgress:
    return FetchProgress(
        id=f"{tenant}-{done}",
        at=1.0,
        source="node/n1",
        tenant=tenant,
        endpoint="chat",
        digest="d",
        done_bytes=done,
        total_bytes=9,
    )


async def test_a_tenant_follows_its_own_events(control: Control) -> None:
    async with stream(control, "one", "?endpoint=chat") as lines:
        assert await anext(lines) == ": following"
        await control.context.events.publish(fetched(TWO, 1))
        await control.context.events.publish(fetched(ONE, 2))

        assert (await next_event(lines))["id"] == f"{ONE}-2"


async def test_the_head_of_a_stream_is_an_answer_that_ends(control: Control) -> None:
    """A server hides the body of its answer to HEAD: an endless one would keep the connection for ever."""
    async with asyncio.timeout(60), control.client("one") as client:
        for _ in range(2):
            answer = await client.head("/api/v1/events")
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/event-stream")


async def test_a_stream_ends_with_the_key_that_opened_it(control: Control) -> None:
    """Field case B44: a stream outlives the check of its key, and must not outlive the key."""
    async with stream(control, "one") as lines:
        assert await anext(lines) == ": following"
        keys = (await control.call("admin", "GET", "/api/v1/keys")).json()["keys"]
        (mine,) = (key["id"] for key in keys if key["name"] == "one")
        assert (await control.call("admin", "DELETE", f"/api/v1/keys/{mine}")).status_code == 200
        await control.context.events.publish(fetched(ONE, 1))
        assert [line async for line in lines if line.startswith("data:")] == []


async def test_a_follower_who_leaves_leaves_no_subscription(control: Control) -> None:
    client = control.context.bus._client
    before = len(client._subs)
    for _ in range(3):
        async with stream(control, "one") as lines:
            assert await anext(lines) == ": following"
    await until(lambda: len(client._subs) == before)


async def test_creation_is_told(control: Control) -> None:
    await control.register()
    async with stream(control, "one") as lines:
        await anext(lines)
        await control.create()
        event = await next_event(lines)

    assert (event["kind"], event["endpoint"], event["status"], event["source"]) == (
        "endpoint",
        "chat",
        "InService",
        "gateway/test",
    )


async def test_the_past_can_be_replayed(control: Control) -> None:
    async with stream(control, "one") as lines:
        await anext(lines)
        for done in range(3):
            await control.context.events.publish(fetched(ONE, done))
            await next_event(lines)

    async with stream(control, "one", "?replay=2") as lines:
        assert [(await next_event(lines))["done_bytes"] for _ in range(2)] == [1, 2]


async def test_a_silent_stream_shows_that_it_lives(control: Control) -> None:
    async with stream(control, "one") as lines:
        seen = [line async for line in _first(lines, 5)]

    assert seen == [": following", "", ": alive", "", ": alive"]


async def test_platform_events_are_for_administrators(control: Control) -> None:
    notice = ComponentNotice(id="n", at=1.0, source="node/n1", message="found an orphan")
    async with stream(control, "admin") as admins, stream(control, "one") as tenants:
        await anext(admins)
        await anext(tenants)
        await control.context.events.publish(notice)
        await control.context.events.publish(fetched(ONE, 1))

        assert (await next_event(admins))["id"] == "n"
        assert (await next_event(tenants))["id"] == f"{ONE}-1"


async def test_a_follower_that_leaves_is_forgotten(control: Control) -> None:
    before = len(control.context.bus._subscriptions)
    async with stream(control, "one") as lines:
        await anext(lines)
        assert len(control.context.bus._subscriptions) == before + 1
    await until(lambda: len(control.context.bus._subscriptions) == before)


async def test_stopping_ends_the_streams(control: Control) -> None:
    async with stream(control, "one") as lines:
        await anext(lines)
        control.context.stopping.set()
        assert [line async for line in lines] == [""]


async def test_bad_queries_are_refused(control: Control) -> None:
    for query in ("replay=-1", "replay=x", "replay=1001", "endpoint=a.b"):
        answer = await control.call("one", "GET", f"/api/v1/events?{query}")
        assert answer.status_code == 400, query


async def test_the_leader_is_shown_to_administrators(control: Control) -> None:
    await control.tables.leases.put("controller", Lease(holder="c1", epoch=3))

    admin: httpx.Response = await control.call("admin", "GET", "/api/v1/status")
    tenant = await control.call("one", "GET", "/api/v1/status")

    assert admin.json()["leader"] == {"controller": {"holder": "c1", "epoch": 3}}
    assert admin.json()["bus"]["connected"] is True
    assert "leader" not in tenant.json()
    assert "nodes" not in tenant.json()


async def _first(lines: AsyncIterator[str], count: int) -> AsyncIterator[str]:
    for _ in range(count):
        yield await anext(lines)


async def test_a_stream_ends_with_its_tenant(control: Control) -> None:
    """Field case B44: a disabled tenant's keys are refused, and so is what was opened with them before."""
    other = {"id": TWO, "name": "two"}
    assert (await control.call("admin", "POST", "/api/v1/tenants", other)).status_code == 201
    async with stream(control, "two") as lines:
        assert await anext(lines) == ": following"
        disabled = await control.call("admin", "PATCH", f"/api/v1/tenants/{TWO}", {"disabled": True})
        assert disabled.status_code == 200
        await control.context.events.publish(fetched(TWO, 1))
        assert [line async for line in lines if line.startswith("data:")] == []
