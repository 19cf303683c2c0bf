"""Why an endpoint is where it is: decisions from the event log and the controller's own word, over HTTP and in the terminal."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from typer.testing import CliRunner

from standby.bus.subjects import outlook_subject
from standby.cli.main import app
from standby.domain.errors import EndpointNotFound
from standby.domain.events import AnyEvent, DecisionMade, EndpointChanged
from standby.domain.instance import Rung
from standby.domain.outlook import Intention, Outlook
from support.control_api import ONE, TWO, Control
from support.waiting import until

PATH = "/api/v1/endpoints/chat/why"


def decision(number: int, tenant: str = ONE, **inputs: Any) -> DecisionMade:
    return DecisionMade(
        id=f"{tenant}-{number}",
        at=1_700_000_000.0 + number,
        source="controller/c1",
        tenant=tenant,
        endpoint="chat",
        instance="chat-1",
        action="sink",
        reason=f"reason {number}",
        inputs=inputs,
    )


async def publish(control: Control, *events: AnyEvent) -> None:
    for event in events:
        await control.context.events.publish(event)

    async def stored() -> bool:
        return {one.id for one in events} <= {one.id for one in await control.context.events.recent(100)}

    await until(stored, "all are stored")


async def answering(control: Control, stack: AsyncExitStack) -> None:
    """Let somebody answer as the leading controller does."""
    meant = Outlook(
        tenant=ONE,
        endpoint="chat",
        controller="c1",
        prices="balanced",
        intentions=(
            Intention(
                instance="chat-1",
                node="n1",
                variant="AllTraffic",
                rung=Rung.ASLEEP,
                for_s=3600.0,
                then=Rung.STAGED,
                by="policy (balanced)",
                idle_s=61.0,
                reason="asleep: holding ready costs 1.3 per s",
            ),
        ),
    )

    async def answer(_subject: str, _payload: bytes) -> bytes:
        return meant.encode()

    serving = await control.context.bus.serve(outlook_subject(ONE, "chat"), answer)
    stack.push_async_callback(serving.unsubscribe)


async def test_decisions_are_told_newest_first_with_what_is_meant(control: Control) -> None:
    await control.register()
    await control.create()
    changed = EndpointChanged(id="c", at=1.0, source="controller/c1", tenant=ONE, endpoint="chat", status="InService")
    await publish(control, decision(1), decision(2, idle_s=3.5), changed, decision(3, TWO))
    async with AsyncExitStack() as stack:
        await answering(control, stack)
        answer = (await control.call("one", "GET", PATH)).json()
        shown = (await control.call("one", "GET", "/api/v1/endpoints/chat?outlook=1")).json()
    assert [one["id"] for one in answer["decisions"]] == [f"{ONE}-2", f"{ONE}-1"]
    assert answer["decisions"][0]["inputs"] == {"idle_s": 3.5}
    (meant,) = answer["outlook"]["intentions"]
    assert (meant["rung"], meant["then"], meant["by"]) == ("asleep", "staged", "policy (balanced)")
    assert shown["outlook"] == answer["outlook"]
    last = (await control.call("one", "GET", f"{PATH}?last=1")).json()
    assert [one["id"] for one in last["decisions"]] == [f"{ONE}-2"]


async def test_without_a_controller_the_past_is_told_all_the_same(control: Control) -> None:
    await control.register()
    await control.create()
    await publish(control, decision(1))
    answer = (await control.call("one", "GET", PATH)).json()
    assert (answer["outlook"], len(answer["decisions"])) == (None, 1)
    assert "no controller answers" in answer["outlook_missing"]


async def test_controller_that_has_not_seen_the_endpoint_yet(control: Control) -> None:
    async def unknown(_subject: str, _payload: bytes) -> bytes:
        raise EndpointNotFound("there is no endpoint", remedy="wait")

    await control.register()
    await control.create()
    serving = await control.context.bus.serve(outlook_subject(ONE, "chat"), unknown)
    answer = (await control.call("one", "GET", PATH)).json()
    assert answer["outlook_missing"] == "the controller does not know the endpoint yet"
    await serving.unsubscribe()


@pytest.mark.parametrize(("who", "path", "status"), [("two", PATH, 404), (None, PATH, 401), ("one", f"{PATH}?last=0x", 400)])
async def test_who_may_not_ask(control: Control, who: str | None, path: str, status: int) -> None:
    await control.register()
    await control.create()
    assert (await control.call(who, "GET", path)).status_code == status


async def test_command_says_it_in_words(control: Control) -> None:
    await control.register()
    await control.create()
    await publish(control, decision(1, idle_s=3.5, weighed="{…}", hold="asleep"))
    words = ["--url", control.url, "--key", control.keys["one"]]
    async with AsyncExitStack() as stack:
        await answering(control, stack)
        told = await asyncio.to_thread(CliRunner().invoke, app, [*words, "why", "chat"])
        shown = await asyncio.to_thread(CliRunner().invoke, app, [*words, "endpoints", "show", "chat"])
        raw = await asyncio.to_thread(CliRunner().invoke, app, [*words, "why", "chat", "--json"])
    assert told.exit_code == 0, told.output
    assert "prices: balanced" in told.stdout
    assert "chat-1 on n1: asleep until " in told.stdout
    assert "(in 60 m 0 s), then staged: holding ready costs 1.3 per s" in told.stdout.replace("1 h 0 m", "60 m 0 s")
    assert "reason 1" in told.stdout
    assert "idle_s 3.5, hold asleep" in told.stdout
    assert "weighed" not in told.stdout
    assert "weighed" in raw.stdout
    assert "by policy" in shown.stdout
    assert "asleep until " in shown.stdout
