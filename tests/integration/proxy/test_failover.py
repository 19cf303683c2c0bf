"""When one instance fails a request: who is asked next, and what the caller sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from standby.domain.traffic import BreakerPolicy, BreakerRule, Tier, TrafficPolicy
from standby.gateway import desk as desk_module
from support.failing_engines import (
    declines,
    dies,
    dies_after_headers,
    dies_after_ten,
    fails,
    never,
    resets,
    stalls_after_headers,
    stalls_after_ten,
    text_of,
    texts,
    went,
)
from support.failover_rig import Replica, answers, failover_rig
from support.upstream import Call
from support.waiting import until

CRITICAL = TrafficPolicy(tier=Tier.CRITICAL)
STANDARD = TrafficPolicy()
BEST_EFFORT = TrafficPolicy(tier=Tier.BEST_EFFORT)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_nobody_accepts_and_another_one_answers(traffic: TrafficPolicy) -> None:
    """Field case B27 a: a connect error is followed by one more attempt elsewhere, of the same lineage, counted once."""
    async with failover_rig(never, answers, traffic=traffic) as rig:
        await rig.dead(rig.replicas[0])
        rig.prefer("i-1")
        answer = await rig.ask()
        assert (answer.status, text_of(answer.body)) == (200, "i-2")
        assert went(rig) == ["i-1", "i-2"]
        first, second = rig.last.attempts
        assert (first.id, second.id) == (rig.last.id, f"{rig.last.id}.2")
        assert rig.replicas[1].ids == [f"{rig.last.id}.2"]
        assert "connect" in first.outcome
        assert second.outcome == "answered 200"
        assert answer.headers["x-standby-route"].startswith("attempt 2: ")
        assert rig.gateway.accounts.outcomes == ["ok"]
        assert [used.completion for used, _whole in rig.gateway.accounts.used] == [2]
        await until(rig.settled)


async def test_best_effort_says_at_once_that_nobody_accepted() -> None:
    async with failover_rig(never, never, traffic=BEST_EFFORT) as rig:
        await rig.dead(rig.replicas[0])
        rig.prefer("i-1")
        answer = await rig.ask()
        assert (answer.status, went(rig)) == (503, ["i-1"])
        assert answer.headers["retry-after"] == "1"
        assert rig.gateway.accounts.outcomes == ["unavailable"]
        await until(rig.settled)


@pytest.mark.parametrize("death", [dies, dies_after_headers])
@pytest.mark.parametrize(("traffic", "repeated"), [(CRITICAL, True), (STANDARD, False), (BEST_EFFORT, False)])
async def test_an_engine_that_dies_before_its_first_token(
    death: Callable[[Replica, Call], Awaitable[None]], traffic: TrafficPolicy, repeated: bool
) -> None:
    """Field case B27 b: only critical repeats what may have begun, and not what was alone with the engine that died."""
    calm: list[asyncio.Event] = []

    async def slow_or_dies(replica: Replica, call: Call) -> None:
        if b"slow" in call.body:
            calm.append(call.gone)
            await call.gone.wait()
        else:
            await death(replica, call)

    async with failover_rig(slow_or_dies, answers, traffic=traffic) as rig:
        rig.prefer("i-1")
        other = asyncio.create_task(rig.ask(body={"prompt": "slow"}))
        await until(lambda: len(calm) == 1)
        rig.prefer("i-1")
        answer = await rig.ask(body={"stream": True})
        if repeated:
            assert (answer.status, texts(answer.body), went(rig)[-1]) == (200, {"i-2"}, "i-2")
            assert (await other).status == 200
        else:
            assert answer.status == 502
            assert b"not repeated" in answer.body
            assert (await other).status == 502
            assert rig.replicas[1].ids == []
        await until(rig.settled)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD, BEST_EFFORT])
@pytest.mark.parametrize("break_off", [dies_after_ten, stalls_after_ten])
async def test_after_the_first_token_nothing_is_spliced(
    break_off: Callable[[Replica, Call], Awaitable[None]], traffic: TrafficPolicy
) -> None:
    """Field case B27 c, d: an error event, no text of another engine, no ``[DONE]``, in every tier."""
    async with failover_rig(break_off, never, traffic=traffic) as rig:
        rig.prefer("i-1")
        answer = await rig.ask(body={"stream": True})
        assert (answer.status, answer.complete) == (200, True)
        assert texts(answer.body) == {"i-1"}
        assert answer.body.count(b'"text": "i-1"') == 10
        assert b"error" in answer.body
        assert b"[DONE]" not in answer.body
        assert went(rig) == ["i-1"]
        assert rig.last.attempts[0].outcome.startswith("broke off after ")
        assert rig.gateway.accounts.outcomes == ["broken_stream"]
        await until(rig.settled)


async def test_critical_gives_up_after_one_retry() -> None:
    async with failover_rig(resets, resets, never, traffic=CRITICAL) as rig:
        rig.pause("i-3")
        answer = await rig.ask()
        assert answer.status == 502
        assert b"repeated once" in answer.body
        assert sorted(went(rig)) == ["i-1", "i-2"]
        await until(rig.settled)


async def test_a_stall_before_the_first_token_ends_by_the_doors_limit() -> None:
    async with failover_rig(stalls_after_headers, answers, traffic=CRITICAL) as rig:
        rig.prefer("i-1")
        answer = await rig.ask()
        assert (answer.status, went(rig)) == (200, ["i-1", "i-2"])
        assert "timeout" in rig.last.attempts[0].outcome
        breaker = rig.gateway.desk._instances.usable["i-1"].breaker
        assert breaker.row == 1
        await until(rig.settled)


# ---- engines that say no ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("traffic", "status"), [(CRITICAL, 200), (STANDARD, 200), (BEST_EFFORT, 503)])
async def test_an_engines_503_is_asked_for_elsewhere(traffic: TrafficPolicy, status: int) -> None:
    """Field case B32: the engine refused, so nothing is lost by asking another one."""
    async with failover_rig(declines, answers, traffic=traffic) as rig:
        rig.prefer("i-1")
        answer = await rig.ask()
        assert answer.status == status
        assert went(rig) == (["i-1", "i-2"] if status == 200 else ["i-1"])
        await until(rig.settled)


async def test_where_all_engines_say_503_the_last_ones_answer_is_passed_on() -> None:
    async with failover_rig(declines, declines) as rig:
        answer = await rig.ask()
        assert (answer.status, answer.body) == (503, b'{"error": "busy"}')
        assert sorted(went(rig)) == ["i-1", "i-2"]
        assert rig.gateway.accounts.outcomes == ["engine_5xx"]
        await until(rig.settled)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_an_engines_500_is_passed_on_as_it_is(traffic: TrafficPolicy) -> None:
    async with failover_rig(fails, never, traffic=traffic) as rig:
        rig.prefer("i-1")
        answer = await rig.ask()
        assert (answer.status, answer.body, went(rig)) == (500, b'{"error": "bug"}', ["i-1"])
        await until(rig.settled)


async def test_an_engine_that_only_says_503_gets_no_requests_after_a_few() -> None:
    """Field case B32 at the gateway: the breaker opens, and says why in the next request's trace."""
    rules = (BreakerRule(window=600.0, requests=3, failures_in_a_row=3),)
    traffic = TrafficPolicy(breaker=BreakerPolicy(rules=rules, open_for=600.0, longest_open=600.0))
    async with failover_rig(declines, answers, traffic=traffic) as rig:
        for _ in range(20):
            assert (await rig.ask()).status == 200
        assert len(rig.replicas[0].ids) == 3
        assert rig.open_breakers == 1
        await until(rig.settled)


# ---- what nobody has begun is not lost -------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_what_no_engine_accepts_waits_for_the_next_one(traffic: TrafficPolicy) -> None:
    """However many instances refuse the connection: nothing has begun, so it waits for a successor (field case B30)."""
    async with failover_rig(never, never, never, traffic=traffic) as rig:
        await rig.dead(*rig.replicas)
        asking = asyncio.create_task(rig.ask())
        await until(lambda: rig.gateway.desk.queued == 1 and not rig.gateway.desk.granted)
        rig.replicas[2].behaves = answers
        await rig.revive(rig.replicas[2])
        answer = await asking
        assert (answer.status, text_of(answer.body)) == (200, "i-3")
        assert {"i-1", "i-2", "i-3"} <= set(went(rig))
        assert len(rig.replicas[2].ids) == 1
        assert rig.gateway.accounts.outcomes == ["ok"]
        await until(rig.settled)


async def test_what_no_engine_accepts_is_told_so_when_its_wait_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "CONNECT_PAUSE_S", 0.05)
    async with failover_rig(never) as rig:
        await rig.dead(*rig.replicas)
        asking = asyncio.create_task(rig.ask())
        await until(lambda: rig.gateway.desk.queued == 1)
        rig.clock.ahead_s += rig.gateway.desk.route.policy.max_cold_wait
        answer = await asking
        assert answer.status in {503, 504}
        assert b"wait" in answer.body
        assert rig.gateway.accounts.outcomes[0].endswith("wait_exceeded")
        await until(rig.settled)
