"""What is told of a request when it has ended, in whatever way, and that nothing is left behind of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from standby.domain.traffic import BreakerPolicy, Tier, TrafficPolicy
from standby.gateway import desk as desk_module
from standby.gateway.course import MOST_ATTEMPTS
from standby.gateway.desk import Desk, Grant
from standby.gateway.results import Result, ResultKind
from support.builders import TENANT
from support.failing_engines import declines, fails, resets, stalls, stalls_after_ten, ten_tokens
from support.failover_rig import PATIENT, QUICK, Replica, answers, failover_rig
from support.upstream import Call
from support.waiting import until


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
            rig.resume("i-1")
            return kinds[before]

        async def hangs(_replica: Replica, call: Call) -> None:
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
        assert await said(hangs, leave=True) is ResultKind.CALLER
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
async def test_two_hundred_requests_that_end_in_every_way_leave_nothing_behind(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field case B20: in flight, slots, probes and lanes come back to nothing, and the next ones are served."""
    monkeypatch.setattr(desk_module, "CONNECT_PAUSE_S", 0.02)
    chance = random.Random(7)

    async def anything(replica: Replica, call: Call) -> None:
        await chance.choice([answers, answers, resets, declines, fails, stops_after_ten, stalls_quietly, garbage])(
            replica, call
        )

    async def stops_after_ten(replica: Replica, call: Call) -> None:
        await ten_tokens(replica, call)
        await call.gone.wait()

    async def stalls_quietly(_replica: Replica, call: Call) -> None:
        await call.gone.wait()

    async def garbage(_replica: Replica, call: Call) -> None:
        await call.write(b"\x00\x01\x02\r\n\r\n")

    policy = BreakerPolicy(open_for=0.05, longest_open=0.1)
    traffic = TrafficPolicy(tier=tier, breaker=policy)
    async with failover_rig(anything, anything, anything, traffic=traffic, limits=QUICK) as rig:
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
                async with asyncio.timeout(60):
                    assert (await client.answer()).status in {200, 400, 404, 500, 502, 503, 504, 429}
                client.abort()

        async def ten() -> None:
            for _ in range(10):
                await one()

        async def well() -> bool:
            served = [answer.status for answer in await asyncio.gather(*(rig.ask() for _ in range(4)))]
            return served == [200] * 4 and (tier is not Tier.BEST_EFFORT or rig.open_breakers == 0)

        await asyncio.gather(*(ten() for _ in range(20)))
        await until(rig.settled)
        rig.door.limits = PATIENT
        for replica in rig.replicas:
            replica.behaves = answers
        async with asyncio.timeout(60):
            # Until the breakers have been probed, an engine's last bad answers may still be told.
            while not await well():
                await asyncio.sleep(0.05)
        await until(rig.settled)


async def test_whether_an_answer_was_a_stream_is_told_to_the_desk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was asked for and given: only then the first byte is the first token's."""
    told: list[Result] = []
    async with failover_rig(answers) as rig:
        desk = type(rig.gateway.desk)
        release = desk.release

        def noting(self: Desk, grant: Grant, result: Result | None = None) -> None:
            assert result is not None
            told.append(result)
            release(self, grant, result)

        monkeypatch.setattr(desk, "release", noting)
        await rig.ask()
        await rig.ask(body={"stream": True})
        rig.replicas[0].behaves = fails
        await rig.ask(body={"stream": True})
        await until(rig.settled)
    assert [(result.kind, result.streamed) for result in told] == [
        (ResultKind.OK, False),
        (ResultKind.OK, True),
        (ResultKind.ENGINE, False),
    ]


async def test_of_very_many_attempts_the_first_and_the_last_are_kept() -> None:
    async with failover_rig(answers) as rig:
        rig.door.fence("i-1")
        asking = asyncio.create_task(rig.ask())
        for _ in range(MOST_ATTEMPTS + 5):
            await until(lambda: rig.gateway.desk.queued == 1)
            rig.replicas[0].epoch += 1
            rig.gateway.desk.instance_changed(rig.record(rig.replicas[0]), seen=0)
            await until(lambda: not rig.gateway.desk.has_ready)
        rig.replicas[0].epoch += 1
        rig.open(rig.replicas[0])
        assert (await asking).status == 200
        attempts = rig.last.attempts
        assert len(attempts) == MOST_ATTEMPTS
        assert (attempts[0].id, attempts[-1].outcome) == (rig.last.id, "answered 200")
        await until(rig.settled)
