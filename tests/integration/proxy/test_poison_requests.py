"""Requests that kill engines (field case B34): how many they kill, and who is taken for one."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from standby.domain.traffic import Tier, TrafficPolicy
from standby.gateway.poison import REFUSED_FOR_S
from support.door_rig import SLOTS
from support.engine_process import EngineProcess, engine_process
from support.failing_engines import dies_of_boom, fails, never, resets, text_of
from support.failover_rig import PATIENT, FailoverRig, Replica, answers, failover_rig
from support.gateway_rig import gateway_rig
from support.upstream import Call
from support.waiting import until

CRITICAL = TrafficPolicy(tier=Tier.CRITICAL)
STANDARD = TrafficPolicy()
BEST_EFFORT = TrafficPolicy(tier=Tier.BEST_EFFORT)


async def dead(rig: FailoverRig) -> int:
    """How many engines have died, each with all that an end of a process takes with it."""
    for replica in rig.replicas:
        await asyncio.gather(*replica.tasks)
    return [replica.engine.socket.exists() for replica in rig.replicas].count(False)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD, BEST_EFFORT])
async def test_a_poison_request_that_was_alone_kills_one_replica(traffic: TrafficPolicy) -> None:
    """Field case B34: whatever the tier, and however often an SDK retries; others are not refused."""
    async with failover_rig(*[dies_of_boom] * 3, traffic=traffic) as rig:
        statuses = [(await rig.ask(body={"prompt": "BOOM"})).status for _ in range(4)]
        assert statuses == [502, 422, 422, 422]
        assert await dead(rig) == 1
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


async def test_on_an_endpoints_openai_route_it_is_nothing_that_sdks_repeat() -> None:
    async with failover_rig(*[dies_of_boom] * 2) as rig:
        body = json.dumps({"messages": [{"role": "user", "content": "BOOM"}]}).encode()
        for status, code in ((502, "engine_died"), (422, "poison_request")):
            answer = await rig.ask("/endpoints/e/openai/v1/chat/completions", body)
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (status, code)
        assert rig.asked == 1
        await until(rig.settled)


async def holds(engine: EngineProcess, count: int) -> bool:
    """Whether the process has read so many requests and answered none."""
    async with httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=str(engine.socket)), base_url="http://engine"
    ) as client:
        return bool((await client.get("/stats")).json()["active"] == count)


async def test_what_a_killed_engine_had_in_flight_is_taken_over_at_once_and_together() -> None:
    """By far most deaths have nothing to do with a request: SIGKILL, the kernel's out-of-memory killer."""
    slots = 8
    async with (
        engine_process(stall=True) as engine,
        failover_rig(never, answers, traffic=CRITICAL, slots=slots) as rig,
    ):
        rig.replicas[0].epoch += 1
        rig.open(rig.replicas[0], engine.socket)
        rig.pause("i-2")
        asking = [asyncio.create_task(rig.ask(body={"prompt": f"calm {at}"})) for at in range(slots)]
        await until(lambda: holds(engine, slots))
        rig.resume("i-2")
        engine.kill()
        async with asyncio.timeout(PATIENT.first_byte_s / 2):  # by what they see, and not because a time is over
            found = await asyncio.gather(*asking)
        assert [(answer.status, text_of(answer.body)) for answer in found] == [(200, "i-2")] * slots
        assert "the engine may have begun" in rig.last.attempts[0].outcome
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)


async def test_of_several_in_flight_two_replicas_die_unasked_and_one_of_who_asks_again() -> None:
    """Field case B34, tier critical: after two deaths nobody is tried again unasked, and who asks again is tried alone."""
    running: dict[str, list[Call]] = {"i-1": [], "i-2": []}

    async def all_at_once(replica: Replica, call: Call) -> None:
        calls = running[replica.name]
        calls.append(call)
        if len(calls) == SLOTS:
            rig.resume("i-2")
            replica.die()
        # Whichever of them came last: none is answered.
        await call.gone.wait()

    at_once: list[int] = []

    async def counted(replica: Replica, call: Call) -> None:
        at_once.append(sum(rig.door.load(name).in_flight for name in ("i-3", "i-4")))
        await dies_of_boom(replica, call)

    async with failover_rig(all_at_once, all_at_once, counted, counted, traffic=CRITICAL) as rig:
        rig.pause("i-2", "i-3", "i-4")
        prompts = [*(f"calm {at}" for at in range(SLOTS - 1)), "BOOM"]
        first = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        assert [(answer.status, b"two engines" in answer.body) for answer in first] == [(502, True)] * SLOTS
        assert [len(calls) for calls in running.values()] == [SLOTS, SLOTS]
        assert not rig.dispatcher.guard.book._convicted
        rig.resume("i-3", "i-4")
        again = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        assert [answer.status for answer in again] == [200] * (SLOTS - 1) + [502]
        assert at_once == [1] * SLOTS
        assert (await rig.ask(body={"prompt": "BOOM"})).status == 422
        assert await dead(rig) == 3
        await until(rig.settled)


async def test_a_grave_suspects_twin_that_waits_is_not_tried_in_company() -> None:
    """More of the same body than slots: those that had waited for one are not the next engine's death."""

    async def dies_with_all(replica: Replica, call: Call) -> None:
        if len(replica.engine.calls) == SLOTS:
            replica.die()
        await call.gone.wait()

    async with failover_rig(dies_with_all, dies_with_all, dies_of_boom, dies_of_boom, traffic=CRITICAL) as rig:
        rig.pause("i-2", "i-3", "i-4")
        asking = [asyncio.create_task(rig.ask(body={"prompt": "BOOM"})) for _ in range(2 * SLOTS)]
        await until(lambda: rig.gateway.desk.queued == 2 * SLOTS)
        rig.resume("i-2")
        await until(lambda: not rig.replicas[1].engine.socket.exists())
        rig.resume("i-3", "i-4")
        found = sorted(answer.status for answer in await asyncio.gather(*asking))
        assert found == [422] * (SLOTS - 1) + [502] * (SLOTS + 1), "the four of two deaths, and the one that was tried alone"
        assert await dead(rig) == 3
        await until(rig.settled)


@pytest.mark.parametrize("traffic", [CRITICAL, STANDARD])
async def test_of_several_in_flight_at_most_one_more_replica_dies(traffic: TrafficPolicy) -> None:
    """Field case B34: all are suspects, and tried once more; the one that is alone when it kills again is convicted."""
    waiting: list[Call] = []

    async def all_at_once(replica: Replica, call: Call) -> None:
        if len(waiting) < SLOTS:
            waiting.append(call)
            if len(waiting) == SLOTS:
                rig.resume("i-2", "i-3", "i-4")
                replica.die()
            # Whichever of them came last: none is answered.
            await call.gone.wait()
            return
        await dies_of_boom(replica, call)

    async with failover_rig(all_at_once, dies_of_boom, dies_of_boom, dies_of_boom, traffic=traffic) as rig:
        rig.pause("i-2", "i-3", "i-4")
        prompts = [*(f"calm {at}" for at in range(SLOTS - 1)), "BOOM"]
        first = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        if traffic is STANDARD:
            assert [answer.status for answer in first] == [502] * SLOTS
            first = await asyncio.gather(*(rig.ask(body={"prompt": prompt}) for prompt in prompts))
        assert [answer.status for answer in first] == [200] * (SLOTS - 1) + [502]
        for _ in range(3):
            assert (await rig.ask(body={"prompt": "BOOM"})).status == 422
        assert await dead(rig) == 2
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


async def test_a_door_that_is_lost_with_its_engines_convicts_nobody() -> None:
    """A node's agent that is killed takes its engines with it: what was with them is not what they died of."""
    begun: list[Call] = []

    async def waits(_replica: Replica, call: Call) -> None:
        begun.append(call)
        await call.gone.wait()

    async with failover_rig(waits) as rig:
        asking = asyncio.create_task(rig.ask(body={"prompt": "calm"}))
        await until(lambda: begun)
        for connection in tuple(rig.door.connections):
            connection.transport.abort()
        assert (await asking).status == 502
        rig.dispatcher.guard.engine_failed("i-1", rig.replicas[0].epoch)
        assert rig.dispatcher.guard.book.empty
        await until(rig.settled)


async def test_a_connection_that_broke_under_a_living_engine_convicts_nobody() -> None:
    async with failover_rig(resets) as rig:
        for _ in range(3):
            assert (await rig.ask()).status == 502
            rig.resume("i-1")
        assert rig.dispatcher.guard.book.empty
