"""Requests that reach an engine process at its end: none is lost, and none is taken for what it died of (field case B34)."""

from __future__ import annotations

import asyncio

import pytest

from standby.domain.traffic import Tier, TrafficPolicy
from standby.gateway.poison import REFUSED_FOR_S
from standby.warm_pool import door_exchange
from standby.warm_pool.door_exchange import ExchangeState
from support.door_rig import SLOTS
from support.engine_process import EngineProcess, engine_process
from support.failing_engines import never, text_of, went
from support.failover_rig import FailoverRig, answers, failover_rig
from support.raw_http import RawAnswer
from support.waiting import until

CRITICAL = TrafficPolicy(tier=Tier.CRITICAL)
STANDARD = TrafficPolicy()
BEST_EFFORT = TrafficPolicy(tier=Tier.BEST_EFFORT)
# More than an engine reads at once.
LONG = "x" * 10_000


@pytest.fixture(autouse=True)
def _a_killed_process_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel closes its connections and its listening socket one after the other, and not at once on a busy machine."""
    monkeypatch.setattr(door_exchange, "_LOOKS", 50)


async def die_with_unread(rig: FailoverRig, engine: EngineProcess, count: int, tail: str = "") -> list[RawAnswer]:
    """Let ``count`` requests wait in the queue of connections of i-1 when it is killed; return the answers."""
    rig.replicas[0].epoch += 1
    rig.open(rig.replicas[0], engine.socket)
    rig.pause("i-2")
    engine.suspend()
    asking = [asyncio.create_task(rig.ask(body={"prompt": f"{at}{tail}"})) for at in range(count)]
    gate = rig.door.slots.find("i-1")
    assert gate is not None
    await until(lambda: [one._state for one in gate._in_flight] == [ExchangeState.SENT] * count)  # type: ignore[attr-defined]
    rig.resume("i-2")
    engine.kill()
    return await asyncio.gather(*asking)


def convicted(rig: FailoverRig) -> int:
    return len(rig.dispatcher.guard.book._convicted)


@pytest.mark.parametrize("count", [1, SLOTS])
@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_what_a_killed_engine_had_not_read_is_answered_by_another(traffic: TrafficPolicy, count: int) -> None:
    async with engine_process() as engine, failover_rig(never, answers, traffic=traffic) as rig:
        found = await die_with_unread(rig, engine, count)
        assert [(answer.status, text_of(answer.body)) for answer in found] == [(200, "i-2")] * count
        assert went(rig) == ["i-1", "i-2"]
        assert "the engine saw nothing" in rig.last.attempts[0].outcome
        assert rig.dispatcher.guard.book.empty
        rig.dispatcher.guard.engine_failed("i-1", rig.replicas[0].epoch)
        assert rig.dispatcher.guard.book.empty, "the node's word convicts nobody either"
        await until(rig.settled)


async def test_best_effort_says_at_once_that_it_was_not_begun_and_convicts_nobody() -> None:
    async with engine_process() as engine, failover_rig(never, never, traffic=BEST_EFFORT) as rig:
        (answer,) = await die_with_unread(rig, engine, 1)
        assert (answer.status, went(rig)) == (503, ["i-1"])
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)


@pytest.mark.parametrize("count", [1, SLOTS])
async def test_a_long_request_is_at_most_a_suspect(count: int) -> None:
    """An engine may have read a part of it and died of that: in critical one more try, and an answer clears it."""
    async with engine_process() as engine, failover_rig(never, answers, traffic=CRITICAL) as rig:
        found = await die_with_unread(rig, engine, count, LONG)
        assert [answer.status for answer in found] == [200] * count
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)


async def test_a_long_request_is_not_repeated_in_standard_and_not_refused_either() -> None:
    async with engine_process() as engine, failover_rig(never, answers) as rig:
        (answer,) = await die_with_unread(rig, engine, 1, LONG)
        assert answer.status == 502
        assert b"not repeated" in answer.body
        assert b"refused" not in answer.body
        assert convicted(rig) == 0
        assert (await rig.ask(body={"prompt": f"0{LONG}"})).status == 200
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)


@pytest.mark.parametrize("long", ["", LONG])
@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD, BEST_EFFORT])
async def test_what_an_engine_died_of_is_convicted_by_one_death(traffic: TrafficPolicy, long: str) -> None:
    """It had read the request: its end is a plain one, on a fresh connection and on a kept one."""
    async with engine_process() as engine, failover_rig(never, never, traffic=traffic) as rig:
        rig.replicas[0].epoch += 1
        rig.open(rig.replicas[0], engine.socket)
        rig.prefer("i-1")
        assert text_of((await rig.ask(body={"prompt": "calm"})).body).startswith("process")
        rig.prefer("i-1")
        poison = {"prompt": long, "poison": True}
        answer = await rig.ask(body=poison)
        assert answer.status == 502
        assert f"refused for {REFUSED_FOR_S:g} s".encode() in answer.body
        assert convicted(rig) == 1
        assert (await rig.ask(body=poison)).status == 422
        assert rig.asked == 0
        await until(rig.settled)


async def test_a_kept_connection_to_an_engine_at_its_end_convicts_nobody() -> None:
    async with engine_process() as engine, failover_rig(never, answers) as rig:
        rig.replicas[0].epoch += 1
        rig.open(rig.replicas[0], engine.socket)
        rig.prefer("i-1")
        assert (await rig.ask()).status == 200
        gate = rig.door.slots.find("i-1")
        assert gate is not None
        assert gate.pool.idle == 1
        engine.suspend()
        rig.prefer("i-1")
        asking = asyncio.create_task(rig.ask(body={"prompt": "kept"}))
        await until(lambda: [one._state for one in gate._in_flight] == [ExchangeState.SENT])  # type: ignore[attr-defined]
        engine.kill()
        answer = await asking
        assert (answer.status, text_of(answer.body)) == (200, "i-2")
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)
