"""The desk's queue: priorities, bounds, predicted waits and demand by engine; a clock that only moves by hand."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

import pytest

from standby.domain.ask import NOTHING, Ask
from standby.domain.endpoint import Backend, ScalePolicy, Variant
from standby.domain.errors import ColdWaitExceeded, Overloaded, QueueFull, WaitExceeded
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import HybridChoice, HybridPolicy, PriorityPolicy, TrafficPolicy
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.ready_instances import WAKE_EVERY_S, ReadyInstances
from standby.gateway.results import Result, ResultKind
from standby.gateway.route import RoutePart
from standby.gateway.router import Choice
from standby.gateway.tally import MISSED_FOR_S
from support.builders import an_endpoint, an_instance
from support.turns import turn

MIB = 1024 * 1024


@dataclass
class Rig:
    policy: ScalePolicy = field(default_factory=lambda: ScalePolicy(max_cold_wait=300))
    traffic: TrafficPolicy = field(default_factory=lambda: TrafficPolicy(adaptive_concurrency=False))
    parts: tuple[RoutePart, ...] = ()
    backends: tuple[Backend, ...] = ()
    climb_s: float | None = None
    now: float = 1000.0
    urgent: int = 0

    def __post_init__(self) -> None:
        self.rooms = AllRooms(10**10)
        variant = Variant(model="m", policy=self.policy, backends=self.backends)
        route = Route(an_endpoint(), variant, traffic=self.traffic, parts=self.parts)
        self.desk = Desk(route, self.rooms, lambda: self.now, lambda: self.now, self._demand, lambda _route: self.climb_s)

    def _demand(self, _desk: Desk, urgent: bool) -> None:
        self.urgent += urgent

    def ready(self, slots: int = 1, **changes: object) -> None:
        self.desk.instance_changed(an_instance(slots=slots, **changes), seen=0.0)

    def ask(
        self, priority: Priority | None = None, body_bytes: int = 1, *, ask: Ask = NOTHING, session: str | None = None
    ) -> asyncio.Task[Grant]:
        return asyncio.create_task(
            self.desk.acquire(
                arrived=self.now,
                arrived_at=self.now,
                body_bytes=body_bytes,
                again=False,
                priority=priority,
                ask=ask,
                session=session,
            )
        )

    def end(self, grant: Grant, lasted_s: float, first_byte_s: float = 0.1) -> None:
        """An answer ends now."""
        self.desk.release(grant, Result(ResultKind.OK, lasted_s, first_byte_s))

    async def learn(self, service_s: float, first_byte_s: float = 0.1) -> None:
        """Let three requests be answered, one after the other."""
        for _ in range(3):
            grant = await self.ask()
            self.now += service_s
            self.end(grant, service_s, first_byte_s)


async def test_high_starts_at_the_next_completion_and_nothing_that_runs_is_touched() -> None:
    """Field case B22: one slot, twenty low jobs of 5 s, a high request after 6 s: it starts at 10 s."""
    rig = Rig()
    rig.ready()
    low = [rig.ask(Priority.BATCH) for _ in range(20)]
    await turn()
    begin = rig.now
    started: dict[asyncio.Task[Grant], float] = {}
    high: asyncio.Task[Grant] | None = None
    unserved = list(low)
    while unserved:
        running = next(task for task in unserved if task.done())
        unserved.remove(running)
        started[running] = rig.now - begin
        for step in (1.0, 4.0):
            rig.now += step
            if rig.now - begin == 6.0:
                high = rig.ask(Priority.HIGH)
                unserved.append(high)
                await turn()
        rig.end(running.result(), 5.0)
        await turn()
    assert high is not None
    assert started[high] == 10.0
    assert [started[task] for task in low] == [0.0, 5.0, *(15.0 + 5.0 * number for number in range(18))]
    assert high.result().queue_reason.endswith("high before batch: weight 3 to 0.5")
    assert low[-1].result().queue_reason.endswith("batch: only they wait")
    assert (rig.desk.granted, rig.desk.queued, rig.rooms.body_bytes) == (0, 0, 0)


async def test_callers_who_leave_are_gone_before_dispatch_and_what_waits_stays_bounded() -> None:
    """Field case B23: two slots held for 30 s, 100 requests/s of 1 MiB for 3 min, whose callers leave after 1 s."""
    rig = Rig(ScalePolicy(queue_requests=150, queue_bytes=120 * MIB, max_cold_wait=300))
    rig.ready(slots=2)
    running = [await rig.ask(), await rig.ask()]
    waiting: list[tuple[float, asyncio.Task[Grant]]] = []
    refused, most, most_bytes = 0, 0, 0
    for tick in range(1800):
        rig.now += 0.1
        while waiting and waiting[0][0] <= rig.now - 1.0:
            waiting.pop(0)[1].cancel()
        await turn()
        waiting += [(rig.now, rig.ask(body_bytes=MIB)) for _ in range(10)]
        await turn()
        for one in [one for one in waiting if one[1].done()]:
            waiting.remove(one)
            error = one[1].exception()
            if error is None:
                running.append(one[1].result())
            else:
                assert isinstance(error, QueueFull | Overloaded)
                assert error.retry_after_s is not None
                assert error.retry_after_s > 0
                refused += 1
        most, most_bytes = max(most, rig.desk.queued), max(most_bytes, rig.rooms.body_bytes)
        if tick % 150 == 149:
            rig.end(running.pop(0), 30.0)
            await turn()
            (served,) = [one for one in waiting if one[1].done()]
            assert rig.now - served[0] <= 1.0, "whoever had left was passed over"
            running.append(served[1].result())
            waiting.remove(served)
    for _, task in waiting:
        task.cancel()
    await turn()
    assert most <= 120
    assert most_bytes <= 120 * MIB
    assert refused > 0
    assert (rig.desk.queued, rig.desk.queued_bytes, rig.rooms.body_bytes) == (0, 0, 0)
    for grant in running:
        rig.desk.release(grant)
    assert (rig.desk.granted, rig.desk.outstanding) == (0, {})


async def test_a_wait_that_is_too_long_is_refused_at_once_with_the_difference() -> None:
    """One slot, 10 s each, 25 s of patience: two may wait, the third would wait 30 s."""
    rig = Rig(ScalePolicy(max_cold_wait=25))
    rig.ready()
    await rig.learn(10.0)
    running = await rig.ask()
    waiting = [rig.ask(), rig.ask()]
    await turn()
    with pytest.raises(Overloaded, match=r"it would wait about 30 s, the limit is 25 s") as error:
        await rig.ask()
    assert error.value.retry_after_s == pytest.approx(5.0)
    rig.end(running, 10.0)
    await turn()
    assert waiting[0].result().queue_reason == "place 1, about 10 s; normal: only they wait"
    for task in waiting:
        task.cancel()
    await turn()


async def test_no_wait_is_predicted_at_zero_and_the_price_of_the_climb_says_when_to_come_again() -> None:
    rig = Rig(ScalePolicy(queue_requests=1, max_cold_wait=25), climb_s=40.0)
    waiting = rig.ask()
    await turn()
    rig.now += 15.0
    with pytest.raises(QueueFull) as error:
        await rig.ask()
    assert error.value.retry_after_s == pytest.approx(25.0), "the climb began with the first one"
    waiting.cancel()
    await turn()
    short = Rig(ScalePolicy(max_cold_wait=0), climb_s=40.0)
    with pytest.raises(ColdWaitExceeded) as cold:
        await short.ask()
    assert cold.value.retry_after_s == pytest.approx(40.0)


async def test_each_priority_may_have_its_own_longest_wait() -> None:
    rig = Rig(traffic=TrafficPolicy(priority=PriorityPolicy(max_waits={Priority.BATCH: 0.0})))
    rig.ready()
    running = await rig.ask()
    with pytest.raises(WaitExceeded, match=r"within max_waits.batch \(0 s\) for priority batch"):
        await rig.ask(Priority.BATCH)
    patient = rig.ask(Priority.NORMAL)
    await turn()
    assert not patient.done()
    rig.desk.release(running)
    await turn()
    rig.desk.release(patient.result())


async def test_a_busy_endpoint_does_not_claim_to_be_starting() -> None:
    rig = Rig(ScalePolicy(max_cold_wait=0))
    rig.ready()
    running = await rig.ask()
    with pytest.raises(WaitExceeded, match="no slot was free within max_cold_wait"):
        await rig.ask()
    rig.desk.release(running)


async def test_a_latency_target_bounds_the_queue_but_not_batch() -> None:
    """One slot, 1 s each, target 3.5 s of which 0.5 s go to the first byte: with the scatter of two gaps one may wait."""
    traffic = TrafficPolicy(latency_target=3.5, slo_violations=0.1, adaptive_concurrency=False)
    rig = Rig(traffic=traffic)
    rig.ready()
    await rig.learn(1.0, first_byte_s=0.5)
    running = await rig.ask()
    first = rig.ask()
    await turn()
    with pytest.raises(Overloaded, match=r"the latency target leaves 3 s"):
        await rig.ask()
    batch = [rig.ask(Priority.BATCH) for _ in range(20)]
    await turn()
    assert not any(task.done() for task in batch)
    urgent = rig.ask(Priority.URGENT)
    await turn()
    assert not urgent.done(), "it has its turn before all of them"
    rig.end(running, 1.0)
    await turn()
    assert urgent.done()
    for task in (first, *batch):
        task.cancel()
    await turn()
    rig.desk.release(urgent.result())
    assert (rig.desk.queued, rig.desk.granted) == (0, 0)


async def test_only_whoever_is_alone_at_an_instance_is_said_to_be() -> None:
    rig = Rig()
    rig.ready(slots=2)
    first = await rig.ask()
    assert first.alone
    second = await rig.ask()
    assert not first.alone
    rig.desk.release(second)
    assert first.alone
    rig.desk.release(first)
    assert not first.alone


async def test_a_grant_says_where_why_and_with_what() -> None:
    rig = Rig()
    rig.ready(engine=EngineKind.VLLM, prioritised=True)
    grant = await rig.ask(Priority.HIGH)
    assert (grant.engine, grant.prioritised, grant.priority, grant.probe) == (EngineKind.VLLM, True, Priority.HIGH, False)
    assert "least outstanding" in grant.reason
    assert (grant.queue_reason, grant.waited_s, grant.arrived) == ("", 0.0, 1000.0)
    rig.desk.release(grant)


TWO = (Backend(engine=EngineKind.VLLM), Backend(engine=EngineKind.TENSORRT_LLM))
PARTS = (RoutePart("vllm", EngineKind.VLLM, "v1", 4), RoutePart("tensorrt-llm", EngineKind.TENSORRT_LLM, "v2", 4))
BY_LENGTH = TrafficPolicy(hybrid=HybridChoice(policy=HybridPolicy.THRESHOLDS, long_prompt=100))


async def test_a_waiter_of_a_hybrid_variant_asks_for_the_engine_that_it_wants() -> None:
    rig = Rig(traffic=BY_LENGTH, parts=PARTS, backends=TWO)
    long_prompt = Ask(prompt_bytes=10_000)
    first = rig.ask(ask=long_prompt, body_bytes=7)
    await turn()
    vllm, tensorrt = rig.desk.demands("g", "b", 5)
    assert (vllm.backend, vllm.queued, vllm.in_flight, vllm.sequence) == ("vllm", 0, 0, 5)
    assert (tensorrt.backend, tensorrt.queued, tensorrt.queued_bytes, tensorrt.sequence) == ("tensorrt-llm", 1, 7, 6)
    assert (vllm.oldest_arrival_at, tensorrt.oldest_arrival_at) == (None, 1000.0)
    rig.now += 3.0
    second = rig.ask(ask=Ask(prompt_bytes=10))
    await turn()
    assert rig.urgent == 2, "each engine is woken by the first one who wants it"
    assert [demand.queued for demand in rig.desk.demands("g", "b", 7)] == [1, 1]
    rig.ready(slots=4, backend="tensorrt-llm", engine=EngineKind.TENSORRT_LLM, version="v2")
    await turn()
    grant = first.result()
    assert grant.backend == "tensorrt-llm"
    told = {demand.backend: demand.in_flight for demand in rig.desk.demands("g", "b", 9)}
    assert told["tensorrt-llm"] >= 1
    for task in (first, second):
        if task.done():
            rig.desk.release(task.result())
        else:
            task.cancel()
    await turn()
    rig.now += 4.0
    vllm, tensorrt = rig.desk.demands("g", "b", 11)
    assert (vllm.queued, vllm.in_flight, tensorrt.queued, tensorrt.in_flight) == (0, 0, 0, 0)
    assert tensorrt.idle == 4.0


async def test_who_is_served_by_one_engine_asks_for_the_other_one_that_it_should_have() -> None:
    """It does not wait; the demand is told for once, and again after a while as long as that engine sleeps."""
    rig = Rig(traffic=BY_LENGTH, parts=PARTS, backends=TWO)
    rig.ready(slots=4, backend="vllm", engine=EngineKind.VLLM, version="v1")

    async def told_after(ask: Ask) -> list[int]:
        with rig.desk.enter():
            grant = await rig.ask(ask=ask)
            assert grant.backend == "vllm"
            told = [demand.queued for demand in rig.desk.demands("g", "b", 1)]
            rig.desk.release(grant)
        return told

    long_prompt = Ask(prompt_bytes=10_000)
    assert await told_after(Ask(prompt_bytes=10)) == [0, 0]
    assert await told_after(long_prompt) == [0, 1]
    assert rig.urgent == 0
    rig.now += MISSED_FOR_S
    assert await told_after(long_prompt) == [0, 0]
    rig.now += WAKE_EVERY_S
    assert await told_after(long_prompt) == [0, 1]
    tensorrt = rig.desk.demands("g", "b", 5)[1]
    assert tensorrt.idle == 0.0
    rig.ready(slots=4, id="t", backend="tensorrt-llm", engine=EngineKind.TENSORRT_LLM, version="v2")
    assert [demand.queued for demand in rig.desk.demands("g", "b", 7)] == [0, 0]
    grant = await rig.ask(ask=long_prompt)
    assert grant.backend == "tensorrt-llm"
    rig.desk.release(grant)


async def test_ten_thousand_wait_and_leave_and_every_slot_goes_to_one_who_is_there() -> None:
    """Whatever the depth: all join, two of three leave from the middle, the rest is served in order, once each."""
    rig = Rig(ScalePolicy(queue_requests=10_000, max_cold_wait=300))
    rig.ready(slots=4)
    running = [await rig.ask() for _ in range(4)]
    tasks = [rig.ask(Priority.NORMAL) for _ in range(10_000)]
    await turn()
    assert rig.desk.queued == 10_000
    stay = tasks[::3]
    for at, task in enumerate(tasks):
        if at % 3:
            task.cancel()
    await turn()
    assert rig.desk.queued == len(stay)
    order: list[asyncio.Task[Grant]] = []
    while running:
        rig.desk.release(running.pop(0))
        await asyncio.sleep(0)
        with contextlib.suppress(IndexError):
            one = stay[len(order)]
            await asyncio.sleep(0)
            running.append(one.result())
            order.append(one)
    assert order == stay
    assert (rig.desk.queued, rig.desk.granted, rig.rooms.body_bytes) == (0, 0, 0)


async def test_callers_who_name_what_is_not_there_cost_no_more_for_being_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adapter that a caller makes up is a lane of its own: all of them are answered by one look at the instances."""
    rig = Rig()
    rig.ready(slots=2, adapters=("known",))
    holding = [await rig.ask(ask=Ask(adapter="known")) for _ in range(2)]
    waiting = [rig.ask(ask=Ask(adapter=f"made-up-{number}")) for number in range(300)]
    served = rig.ask(ask=Ask(adapter="known"))
    await turn()
    looks: list[Ask] = []
    choose = ReadyInstances.choose

    def counted(self: ReadyInstances, now: float, wanted: str | None, ask: Ask, *rest: Any) -> Choice:
        looks.append(ask)
        return choose(self, now, wanted, ask, *rest)

    monkeypatch.setattr(ReadyInstances, "choose", counted)
    rig.end(holding.pop(), 1.0)
    await turn()
    assert served.result().instance == "i1", "those before it keep back only themselves"
    assert len(looks) == 2
    rig.ready(slots=2, adapters=("known", "made-up-7"))
    rig.end(holding.pop(), 1.0)
    await turn()
    assert [number for number, task in enumerate(waiting) if task.done()] == [7]
    assert rig.desk.queued == 299
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert (rig.desk.queued, rig.rooms.body_bytes) == (0, 0)
