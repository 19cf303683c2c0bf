"""Past requests from afar: on whichever gateway they were, only to those whose they are, and in words."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from standby.bus.connection import Bus
from standby.bus.subjects import beat_subject, traces_subject
from standby.domain.instance import InstanceState
from standby.domain.traffic import Tier
from standby.gateway import neighbours
from standby.gateway.metering import Usage
from standby.gateway.neighbours import Neighbours
from standby.gateway.poison import Death, Kept, PoisonBook, Standing, fingerprint
from standby.gateway.poison_news import PoisonNews
from standby.gateway.traces import Traces
from support.command import standby
from support.control_api import ONE, TWO, Control
from support.past_requests import a_trace, an_attempt
from support.waiting import until


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is there is waited for, however slow the machine is."""
    monkeypatch.setattr(neighbours, "_PATIENCE_S", 60.0)


@asynccontextmanager
async def two_gateways(control: Control) -> AsyncIterator[tuple[Neighbours, Neighbours]]:
    """This gateway and another one, which have heard each other."""
    async with AsyncExitStack() as stack:
        other_bus = await stack.enter_async_context(control.server.bus())
        # Their clock stands still: each has beaten once, and who is silent for seconds is not asked.
        here = Neighbours(control.context.bus, "gw-a", control.context.traces, lambda: 100.0)
        there = Neighbours(other_bus, "gw-b", Traces(), lambda: 100.0)
        for one in (here, there):
            stack.push_async_callback(one.stop)
            await one.start()
        # The context of a running API is fixed; a gateway's own wiring gives it its neighbours before that.
        object.__setattr__(control.context, "neighbours", here)
        await beat(here.bus, "gw-a")
        await beat(there.bus, "gw-b")
        await until(lambda: here.others == ["gw-b"] and there.others == ["gw-a"])
        yield here, there


async def beat(bus: Bus, gateway: str) -> None:
    await bus.publish(beat_subject(gateway), b"{}")


async def test_a_request_is_found_on_whichever_gateway_it_was(control: Control) -> None:
    async with two_gateways(control) as (here, there):
        here.traces.add(a_trace("a-1", tenant=ONE, at=1.0))
        there.traces.add(a_trace("b-1", tenant=ONE, at=2.0, echoed=b"mine/1"))
        there.traces.add(a_trace("b-2", tenant=TWO, at=3.0))
        listed = (await control.call("one", "GET", "/api/v1/requests")).json()["requests"]
        assert [trace["id"] for trace in listed] == ["b-1", "a-1"]
        assert (await control.call("one", "GET", "/api/v1/requests/b-1")).json()["request_id"] == "mine/1"
        assert (await control.call("one", "GET", "/api/v1/requests?limit=1")).json()["requests"][0]["id"] == "b-1"
        narrowed = await control.call("one", "GET", "/api/v1/requests?endpoint=other")
        assert narrowed.json() == {"requests": []}


async def test_of_several_requests_that_a_caller_named_alike_the_newest_is_shown(control: Control) -> None:
    async with two_gateways(control) as (here, there):
        here.traces.add(a_trace("a-1", tenant=ONE, at=1.0, echoed=b"mine"))
        there.traces.add(a_trace("b-1", tenant=ONE, at=2.0, echoed=b"mine"))
        assert (await control.call("one", "GET", "/api/v1/requests/mine")).json()["id"] == "b-1"
        assert (await control.call("one", "GET", "/api/v1/requests/a-1")).json()["id"] == "a-1"


async def test_another_tenants_request_does_not_exist(control: Control) -> None:
    async with two_gateways(control) as (here, there):
        here.traces.add(a_trace("a-1", tenant=ONE))
        there.traces.add(a_trace("b-1", tenant=ONE))
        unknown = await control.call("two", "GET", "/api/v1/requests/nobody")
        for name in ("a-1", "b-1"):
            answer = await control.call("two", "GET", f"/api/v1/requests/{name}")
            assert answer.status_code == unknown.status_code == 404
        assert (await control.call("two", "GET", "/api/v1/requests")).json() == {"requests": []}
        assert (await control.call(None, "GET", "/api/v1/requests")).status_code == 401


async def test_a_gateway_that_has_ended_is_left_out(control: Control) -> None:
    async with two_gateways(control) as (here, there):
        here.traces.add(a_trace("a-1", tenant=ONE))
        await there.stop()
        await there.bus.flush()
        listed = (await control.call("one", "GET", "/api/v1/requests")).json()["requests"]
        assert [trace["id"] for trace in listed] == ["a-1"]


async def test_a_gateway_that_hangs_is_left_out(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has heard the question, and would answer it some day."""
    monkeypatch.setattr(neighbours, "_PATIENCE_S", 0.2)
    asked = asyncio.Event()

    async def hangs(_subject: str, _payload: bytes) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async with two_gateways(control) as (here, there):
        here.traces.add(a_trace("a-1", tenant=ONE))
        await there.stop()
        hanging = await there.bus.serve(traces_subject("gw-b"), hangs)
        await there.bus.flush()
        listed = (await control.call("one", "GET", "/api/v1/requests")).json()["requests"]
        assert [trace["id"] for trace in listed] == ["a-1"]
        await asked.wait()
        await hanging.unsubscribe()


async def test_a_gateway_that_is_silent_is_not_asked() -> None:
    now = 100.0
    here = Neighbours(None, "gw-a", Traces(), lambda: now)  # type: ignore[arg-type] # nothing is sent
    here._beat(beat_subject("gw-b"), b"")
    here._beat(beat_subject("gw-a"), b"")
    assert here.others == ["gw-b"]
    now = 110.0
    assert here.others == []


@pytest.mark.parametrize("query", ["limit=201", "limit=x", "endpoint=../x"])
async def test_wrong_questions_are_refused(control: Control, query: str) -> None:
    assert (await control.call("one", "GET", f"/api/v1/requests?{query}")).status_code == 400


async def test_the_command_tells_it_in_words(control: Control) -> None:
    await control.place(InstanceState.READY)
    first = an_attempt(id="a-1", instance="chat-i1", outcome="failed before its first byte: died, the engine may have begun")
    control.context.traces.add(
        a_trace(
            "a-1",
            echoed=b"mine",
            tier=Tier.CRITICAL,
            attempts=(first, an_attempt(2, id="a-1.2", backend="fast", probe=True)),
            usage=Usage(12, 34, estimated=True),
            queue_reason="first of priority high",
            waited_s=2.102,
            quarantined_s=2.1,
        )
    )
    shown = await standby(control, "requests", "show", "mine")
    assert shown.exit_code == 0, shown.output
    for words in (
        "request      a-1",
        "caller's id  mine",
        "chat, variant AllTraffic, tier critical",
        "waited       2.10 s in quarantine: a request like it was in flight when an engine died twice",
        "waited       2.0 ms: first of priority high",
        "12 in, 34 out (estimated)",
        "ok after 1.50 s, the first byte after 250.0 ms",
        "attempt 1: chat-i1 on n1 (vllm)",
        "why there: least outstanding: 1 of 4 slots",
        "failed before its first byte: died, the engine may have begun, after 12.5 ms",
        "attempt 2: i-2 on door 127.0.0.1:7002 (vllm, fast), as a probe",
        "the engine saw it as a-1.2",
    ):
        assert words in shown.output
    told = json.loads((await standby(control, "requests", "show", "a-1", "--json")).output)
    assert (told["attempts"][0]["node"], told["attempts"][1]["node"]) == ("n1", None)
    listed = await standby(control, "requests", "list", "--endpoint", "chat")
    assert "chat-i1 → i-2" in listed.output
    missing = await standby(control, "requests", "show", "nobody")
    assert missing.exit_code == 4


async def test_a_conviction_reaches_the_other_gateways(control: Control) -> None:
    """Field case B34: a request that killed an engine behind one gateway is refused by all; no news comes back as new."""
    async with AsyncExitStack() as stack:
        books = []
        for _ in range(2):
            bus = await stack.enter_async_context(control.server.bus())
            news = PoisonNews(bus, PoisonBook(), time.monotonic)
            stack.push_async_callback(news.stop)
            await news.start()
            books.append(news.book)
        who = Kept(ONE, "chat", 4)
        mark = fingerprint(who, b"BOOM")
        books[0].died(who, mark, Death("i-1", 1, alone=True), time.monotonic())
        await until(lambda: books[1].standing(mark, time.monotonic()) is Standing.CONVICTED)
        found = books[1].conviction(mark, time.monotonic())
        assert found is not None
        assert found.who == who
        assert 300 < found.until - time.monotonic() <= 600
        await asyncio.sleep(0)
        assert books[0].standing(mark, time.monotonic()) is Standing.CONVICTED
