"""When one instance fails a request: who is asked next, what the caller sees, and what is left behind afterwards."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from standby.domain.traffic import BreakerPolicy, BreakerRule, Tier, TrafficPolicy
from standby.gateway.desk import Desk, Grant
from standby.gateway.poison import REFUSED_FOR_S
from standby.gateway.results import Result, ResultKind
from support.builders import TENANT
from support.door_rig import SLOTS
from support.failover_rig import BOOM, FailoverRig, Replica, answers, failover_rig, token_event
from support.gateway_rig import gateway_rig
from support.upstream import Call
from support.waiting import until

CRITICAL = TrafficPolicy(tier=Tier.CRITICAL)
STANDARD = TrafficPolicy()
BEST_EFFORT = TrafficPolicy(tier=Tier.BEST_EFFORT)


async def never(_replica: Replica, _call: Call) -> None:
    """Nobody asks it."""
    raise AssertionError


async def dies(replica: Replica, call: Call) -> None:
    """Ends before it has answered anything."""
    replica.die()
    await call.gone.wait()


async def dies_after_headers(replica: Replica, call: Call) -> None:
    await call.begin_stream()
    replica.die()
    await call.gone.wait()


async def dies_after_ten(replica: Replica, call: Call) -> None:
    await ten_tokens(replica, call)
    replica.die()
    await call.gone.wait()


async def stalls_after_ten(replica: Replica, call: Call) -> None:
    await ten_tokens(replica, call)
    await call.gone.wait()


async def ten_tokens(replica: Replica, call: Call) -> None:
    await call.begin_stream()
    for _ in range(10):
        await call.chunk(token_event(replica.name))


async def resets(_replica: Replica, call: Call) -> None:
    """Breaks one connection and lives on."""
    call.reset()


async def declines(_replica: Replica, call: Call) -> None:
    await call.json(503, b'{"error": "busy"}')


async def fails(_replica: Replica, call: Call) -> None:
    await call.json(500, b'{"error": "bug"}')


async def dies_of_boom(replica: Replica, call: Call) -> None:
    if BOOM in call.body:
        await dies(replica, call)
    else:
        await answers(replica, call)


def texts(body: bytes) -> set[str]:
    """Whose tokens are in a stream of completions."""
    found = set()
    for line in body.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices") or ():
                found.add(choice["text"])
    return found - {"!"}


def went(rig: FailoverRig) -> list[str]:
    """Where the last request went, in order."""
    return [attempt.instance for attempt in rig.last.attempts]


# ---- field case B27 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_nobody_accepts_and_another_one_answers(traffic: TrafficPolicy) -> None:
    """Field case B27 a: a connect error is followed by one more attempt elsewhere, of the same lineage, counted once."""
    async with failover_rig(never, answers, traffic=traffic) as rig:
        rig.replicas[0].die()
        await until(lambda: not rig.replicas[0].engine.socket.exists())
        rig.prefer("i-1")
        answer = await rig.ask()
        assert (answer.status, texts_of(answer.body)) == (200, "i-2")
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


def texts_of(body: bytes) -> str:
    return str(json.loads(body)["choices"][0]["text"])


async def test_best_effort_says_at_once_that_nobody_accepted() -> None:
    async with failover_rig(never, never, traffic=BEST_EFFORT) as rig:
        rig.replicas[0].die()
        await until(lambda: not rig.replicas[0].engine.socket.exists())
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
        rig.gateway.desk._instances.usable["i-3"].blocked_until = rig.gateway.plane.monotonic() + 3
        answer = await rig.ask()
        assert answer.status == 502
        assert b"repeated once" in answer.body
        assert sorted(went(rig)) == ["i-1", "i-2"]
        await until(rig.settled)


async def test_a_stall_before_the_first_token_ends_by_the_doors_limit() -> None:
    async def stalls(_replica: Replica, call: Call) -> None:
        await call.begin_stream()
        await call.gone.wait()

    async with failover_rig(stalls, answers, traffic=CRITICAL) as rig:
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
    rules = (BreakerRule(window=30.0, requests=3, failures_in_a_row=3),)
    traffic = TrafficPolicy(breaker=BreakerPolicy(rules=rules, open_for=60.0))
    async with failover_rig(declines, answers, traffic=traffic) as rig:
        for _ in range(20):
            assert (await rig.ask()).status == 200
        assert len(rig.replicas[0].ids) == 3
        assert rig.open_breakers == 1
        await until(rig.settled)


# ---- field case B34 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD, BEST_EFFORT])
async def test_a_poison_request_that_was_alone_kills_one_replica(traffic: TrafficPolicy) -> None:
    """Field case B34: whatever the tier, and however often an SDK retries; others are not refused."""
    async with failover_rig(*[dies_of_boom] * 3, traffic=traffic) as rig:
        statuses = [(await rig.ask(body={"prompt": "BOOM"})).status for _ in range(4)]
        assert statuses == [502, 422, 422, 422]
        assert [replica.engine.socket.exists() for replica in rig.replicas].count(False) == 1
        assert (await rig.ask(body={"prompt": "calm"})).status == 200
        answer = await rig.ask(body={"prompt": "BOOM"})
        told = json.loads(answer.body)["error"]
        assert told["code"] == "poison_request"
        assert 0 < int(answer.headers["retry-after"]) <= REFUSED_FOR_S
        await until(rig.settled)


async def test_on_an_aws_route_it_is_a_model_error() -> None:
    async with failover_rig(*[dies_of_boom] * 2) as rig:
        body = json.dumps({"prompt": "BOOM"}).encode()
        for _ in range(2):
            answer = await rig.ask("/endpoints/e/invocations", body)
            assert (answer.status, answer.headers["x-amzn-errortype"].partition(":")[0]) == (424, "ModelError")
        assert rig.asked == 1
        await until(rig.settled)


async def test_a_poison_request_on_a_kept_connection_is_recognised_too() -> None:
    """An engine that closes a kept connection under a request and is gone then has not merely lost a stale one."""
    async with failover_rig(dies_of_boom, dies_of_boom) as rig:
        rig.prefer("i-1")
        assert (await rig.ask()).status == 200
        rig.prefer("i-1")
        assert (await rig.ask(body={"prompt": "BOOM"})).status == 502
        assert (await rig.ask(body={"prompt": "BOOM"})).status == 422
        assert rig.replicas[1].ids == []
        await until(rig.settled)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_of_several_in_flight_at_most_one_more_replica_dies(traffic: TrafficPolicy) -> None:
    """Field case B34: all are suspects; they run one at a time until it is known who it was; the rest is answered."""
    waiting: list[Call] = []

    async def all_at_once(replica: Replica, call: Call) -> None:
        if len(waiting) < SLOTS:
            waiting.append(call)
            if len(waiting) < SLOTS:
                await call.gone.wait()
                return
            replica.die()
        await dies_of_boom(replica, call)

    async with failover_rig(all_at_once, dies_of_boom, dies_of_boom, dies_of_boom, traffic=traffic) as rig:
        for name in ("i-2", "i-3", "i-4"):
            rig.gateway.desk._instances.usable[name].blocked_until = rig.gateway.plane.monotonic() + 0.5
        prompts = [*(f"calm {at}" for at in range(SLOTS - 1)), "BOOM"]
        first = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        if traffic is STANDARD:
            assert [answer.status for answer in first] == [502] * SLOTS
            first = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        assert [answer.status for answer in first] == [200] * (SLOTS - 1) + [502]
        for _ in range(3):
            assert (await rig.ask(body={"prompt": "BOOM"})).status == 422
        assert [replica.engine.socket.exists() for replica in rig.replicas].count(False) == 2
        await until(rig.settled)


@pytest.mark.parametrize("path", ["/v1/completions", "/endpoints/e/invocations"])
async def test_an_engine_that_answers_500_while_its_worker_is_dead(path: str) -> None:
    """Field case B34 with an engine of several processes: the node's word makes the fault a death."""
    async with failover_rig(fails, fails) as rig:
        rig.prefer("i-1")
        body = {"prompt": "BOOM"}
        assert (await rig.ask(path, body)).status in {500, 424}
        assert (await rig.ask(path, {"prompt": "calm"})).status in {500, 424}
        rig.prefer("i-1")
        assert b"poison" not in (await rig.ask(path, body)).body
        rig.dispatcher.guard.engine_failed("i-1", rig.replicas[0].epoch)
        asked = rig.asked
        assert (await rig.ask(path, body)).status in {422, 424}
        assert rig.asked == asked
        await until(rig.settled)


async def test_another_tenants_same_request_is_not_refused() -> None:
    async with failover_rig(*[dies_of_boom] * 2) as rig:
        body = {"prompt": "BOOM"}
        assert [(await rig.ask(body=body)).status for _ in range(2)] == [502, 422]
        async with gateway_rig(rig.gateway.behind, tenant="210987654321", awake=False) as other:
            other.plane.dispatcher.guard.book = rig.dispatcher.guard.book
            work = json.dumps({"model": "e", **body}).encode()
            client = await other.connect()
            client.send("POST", "/v1/completions", other.headers(), work)
            await until(lambda: other.desk.queued == 1)
            client.abort()
            await until(lambda: other.desk.in_flight == 0)


async def test_a_connection_that_broke_under_a_living_engine_convicts_nobody() -> None:
    async with failover_rig(resets) as rig:
        for _ in range(3):
            assert (await rig.ask()).status == 502
        assert rig.dispatcher.guard.book.empty


async def test_two_callers_with_the_same_id_are_two_to_the_engine() -> None:
    """Field case B34: the engine's id is ours, each attempt's its own; the caller's is only echoed."""
    async with failover_rig(answers) as rig:
        clients = [await rig.gateway.connect() for _ in range(2)]
        headers = rig.gateway.headers(**{"x-request-id": "mine"})
        body = b'{"model": "e", "prompt": "?"}'
        both = await asyncio.gather(*(client.request("POST", "/v1/completions", headers, body) for client in clients))
        assert [answer.headers["x-request-id"] for answer in both] == ["mine", "mine"]
        assert len(set(rig.replicas[0].ids)) == 2
        assert "mine" not in rig.replicas[0].ids
        traces = rig.dispatcher.traces
        found = traces.find(TENANT, "mine")
        assert found is not None
        assert traces.find(TENANT, found.id) == found
        assert traces.find("other", "mine") is None


# ---- what is told, and what is left behind ---------------------------------------------------------------------


async def test_whose_doing_the_end_was_is_told_to_the_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers who leave and requests that are cut never speak against an instance."""
    kinds: list[ResultKind | None] = []
    async with failover_rig(answers) as rig:
        desk = type(rig.gateway.desk)
        release = desk.release

        def noting(self: Desk, grant: Grant, result: Result | None = None) -> None:
            kinds.append(None if result is None else result.kind)
            release(self, grant, result)

        monkeypatch.setattr(desk, "release", noting)

        async def said(handler: Any, *, leave: bool = False, body: dict[str, Any] | None = None) -> ResultKind | None:
            rig.replicas[0].behaves = handler
            before = len(kinds)
            asking = asyncio.create_task(rig.ask(body=body))
            if leave:
                calls = len(rig.replicas[0].engine.calls)
                await until(lambda: len(rig.replicas[0].engine.calls) > calls)
                rig.gateway.connections[-1].abort()
            await asyncio.gather(asking, return_exceptions=True)
            await until(lambda: len(kinds) > before)
            rig.gateway.desk._instances.usable["i-1"].blocked_until = 0.0
            return kinds[before]

        async def stalls(_replica: Replica, call: Call) -> None:
            await call.gone.wait()

        async def wrong(_replica: Replica, call: Call) -> None:
            await call.json(400, b"{}")

        async def nonsense(_replica: Replica, call: Call) -> None:
            await call.write(b"hello\r\n\r\n")

        async def hangs_up(_replica: Replica, call: Call) -> None:
            await ten_tokens(_replica, call)
            call.close()

        assert await said(answers) is ResultKind.OK
        assert await said(answers, body={"stream": True}) is ResultKind.OK
        assert await said(wrong) is ResultKind.CALLER
        assert await said(stalls, leave=True) is ResultKind.CALLER
        assert await said(fails) is ResultKind.ENGINE
        assert await said(resets) is ResultKind.ENGINE
        assert await said(nonsense) is ResultKind.ENGINE
        assert await said(hangs_up, body={"stream": True}) is ResultKind.ENGINE
        assert await said(stalls) is ResultKind.TIMEOUT
        assert await said(stalls_after_ten, body={"stream": True}) is ResultKind.TIMEOUT
        rig.door.fence("i-1")
        asking = asyncio.create_task(rig.ask())
        await until(lambda: kinds[-1] is ResultKind.REFUSED)
        rig.gateway.connections[-1].abort()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("tier", Tier)
async def test_two_hundred_requests_that_end_in_every_way_leave_nothing_behind(tier: Tier) -> None:
    """Field case B20: in flight, slots, probes and lanes come back to nothing, and the next ones are served."""
    chance = random.Random(7)

    async def anything(replica: Replica, call: Call) -> None:
        await chance.choice([answers, answers, resets, declines, fails, stalls_after_ten, stalls_quietly, garbage])(
            replica, call
        )

    async def stalls_quietly(_replica: Replica, call: Call) -> None:
        await call.gone.wait()

    async def garbage(_replica: Replica, call: Call) -> None:
        await call.write(b"\x00\x01\x02\r\n\r\n")

    policy = BreakerPolicy(open_for=0.05, longest_open=0.1)
    async with failover_rig(anything, anything, anything, traffic=TrafficPolicy(tier=tier, breaker=policy)) as rig:
        bodies: list[bytes] = [
            b"{",
            b'{"model": "nobody"}',
            b'{"model": "e", "stream": true}',
            b'{"model": "e", "prompt": "x"}',
        ]

        async def one() -> None:
            client = await rig.gateway.connect()
            client.send("POST", "/v1/completions", rig.gateway.headers(), chance.choice(bodies))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.05)
                client.abort()
            else:
                async with asyncio.timeout(20):
                    assert (await client.answer()).status in {200, 400, 404, 500, 502, 503, 504, 429}
                client.abort()

        for _ in range(10):
            await asyncio.gather(*(one() for _ in range(20)))
        await until(rig.settled)
        for replica in rig.replicas:
            replica.behaves = answers
        async with asyncio.timeout(20):
            # Until the breakers have been probed, an engine's last bad answers may still be told.
            while (await asyncio.gather(*(rig.ask() for _ in range(4))))[0].status != 200:
                await asyncio.sleep(0.05)
        await until(rig.settled)
        assert rig.open_breakers == 0 or tier is not Tier.BEST_EFFORT
