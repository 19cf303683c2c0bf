"""The desk: who waits, who is served, and that every ending gives back what it held."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.endpoint import EndpointStatus, Failure, ScalePolicy, Variant
from standby.domain.errors import ColdWaitExceeded, EndpointFailed, EndpointNotFound, QueueFull
from standby.domain.instance import Activation, InstanceState, Rung
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from support.builders import an_endpoint, an_instance
from support.turns import turn


@dataclass
class Rig:
    """A desk with a clock that only moves by hand."""

    policy: ScalePolicy = field(default_factory=lambda: ScalePolicy(max_cold_wait=30))
    now: float = 100.0
    urgent: int = 0
    told: int = 0
    rooms: AllRooms = field(default_factory=lambda: AllRooms(limit=10_000))

    def __post_init__(self) -> None:
        self.desk = Desk(self.route(), self.rooms, lambda: self.now, lambda: self.now, self._demand)

    def route(self, **changes: object) -> Route:
        return Route(an_endpoint(**changes), Variant(model="m", policy=self.policy))

    def _demand(self, _desk: Desk, urgent: bool) -> None:
        self.urgent += urgent
        self.told += 1

    def ask(self, body_bytes: int = 10, *, again: bool = False) -> asyncio.Task[Grant]:
        return asyncio.create_task(self.desk.acquire(arrived=self.now, arrived_at=self.now, body_bytes=body_bytes, again=again))


async def test_first_waiter_is_urgent_and_is_served_when_an_instance_becomes_ready() -> None:
    rig = Rig()
    asked = [rig.ask(), rig.ask(), rig.ask()]
    await turn()
    assert (rig.urgent, rig.desk.queued, rig.desk.queued_bytes) == (1, 3, 30)
    rig.now += 2
    rig.desk.instance_changed(an_instance(slots=2), seen=rig.now)
    await turn()
    grants = [task.result() for task in asked[:2]]
    assert {grant.rung for grant in grants} == {Rung.COLD}
    assert not asked[2].done()
    rig.desk.release(grants[0])
    await turn()
    assert asked[2].result().instance == "i1"
    assert (rig.desk.queued, rig.desk.queued_bytes, rig.rooms.body_bytes) == (0, 0, 0)


async def test_request_that_arrives_after_the_climb_found_it_ready() -> None:
    rig = Rig()
    rig.desk.instance_changed(an_instance(), seen=rig.now - 5)
    grant = await rig.ask()
    assert (grant.rung, grant.activation) == (Rung.READY, None)


async def test_draining_refusal_waits_for_the_next_epoch() -> None:
    """Field case B17: the loser of the race with a shutdown is queued again, at the head."""
    rig = Rig()
    rig.desk.instance_changed(an_instance(epoch=1, slots=1), seen=rig.now - 5)
    grant = await rig.ask()
    rig.desk.refused(grant, "draining")
    rig.desk.release(grant)
    later = rig.ask()
    again = rig.ask(again=True)
    await turn()
    rig.desk.instance_changed(an_instance(epoch=1, slots=1, in_flight=0), seen=rig.now)
    await turn()
    assert not again.done(), "the same epoch was refused already"
    activation = Activation(id="a2", from_rung=Rung.ASLEEP)
    rig.desk.instance_changed(an_instance(epoch=2, slots=1, activation=activation), seen=rig.now + 1)
    await turn()
    assert again.result().epoch == 2
    assert not later.done()
    rig.desk.release(again.result())
    await turn()
    rig.desk.release(later.result())
    assert rig.desk.outstanding == {}


async def test_full_door_pauses_the_instance_for_a_moment() -> None:
    rig = Rig()
    rig.desk.instance_changed(an_instance(slots=2), seen=0)
    grant = await rig.ask()
    rig.desk.refused(grant, "full")
    rig.desk.release(grant)
    waiting = rig.ask(again=True)
    await turn()
    assert not waiting.done()
    rig.now += 1
    rig.desk.instance_changed(an_instance(slots=2), seen=0)
    await turn()
    rig.desk.release(waiting.result())


async def test_one_failure_behind_a_door_pauses_the_instance_and_does_not_end_its_epoch() -> None:
    """A broken connection or a request at its time limit: the engine lives on, so that no new epoch would ever come."""
    rig = Rig()
    rig.desk.instance_changed(an_instance(slots=2), seen=0)
    grant = await rig.ask()
    rig.desk.unreachable(grant)
    rig.desk.release(grant)
    waiting = rig.ask(again=True)
    await turn()
    assert not waiting.done()
    assert rig.desk.has_ready
    rig.now += 2
    rig.desk.instance_changed(an_instance(slots=2), seen=0)
    await turn()
    rig.desk.release(waiting.result())


async def test_a_request_that_a_door_refuses_after_the_deletion_is_told_so_at_once() -> None:
    """It would otherwise wait for max_cold_wait at a desk that nobody serves, and speak for the endpoint's successor."""
    rig = Rig()
    rig.desk.instance_changed(an_instance(slots=1), seen=0)
    with rig.desk.enter():
        grant = await rig.ask()
        rig.desk.endpoint_removed()
        told = rig.told
        rig.desk.refused(grant, "draining")
        rig.desk.release(grant)
        with pytest.raises(EndpointNotFound):
            await rig.ask(again=True)
    assert (rig.desk.in_flight, rig.desk.queued, rig.told) == (0, 0, told)


async def test_cold_wait_is_bounded_and_says_which_limit() -> None:
    rig = Rig(ScalePolicy(max_cold_wait=0))
    with pytest.raises(ColdWaitExceeded, match=r"max_cold_wait \(0 s\)"):
        await rig.ask()
    assert (rig.desk.queued, rig.rooms.body_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "rooms", "words"),
    [
        (ScalePolicy(queue_requests=1), AllRooms(10_000), "the limit is 1"),
        (ScalePolicy(queue_bytes=15), AllRooms(10_000), "the limit is 15"),
        (ScalePolicy(), AllRooms(15), "in this gateway, the limit is 15"),
    ],
)
async def test_room_is_bounded_by_count_and_by_bytes(policy: ScalePolicy, rooms: AllRooms, words: str) -> None:
    rig = Rig(policy, rooms=rooms)
    first = rig.ask()
    await turn()
    with pytest.raises(QueueFull, match=words) as refusal:
        await rig.ask()
    assert refusal.value.retry_after_s == 1.0
    first.cancel()
    await turn()
    assert (rig.desk.queued, rig.rooms.body_bytes) == (0, 0)


async def test_a_request_without_a_room_wakes_the_endpoint_all_the_same() -> None:
    """An endpoint that lets nobody wait would otherwise stay at zero for ever."""
    rig = Rig(ScalePolicy(queue_requests=0))
    with pytest.raises(QueueFull):
        await rig.ask()
    assert rig.urgent == 1
    assert rig.desk.demands("g", "b", 1)[0].queued == 1
    assert rig.desk.demands("g", "b", 2)[0].queued == 0


async def test_waiters_learn_why_an_endpoint_fails_again_and_again() -> None:
    """Field case B12: one failed start is waited out, three are told."""
    rig = Rig()
    waiting = rig.ask()
    await turn()
    once = Failure(reason="exit code 1", first_error="bad magic", attempts=1, next_retry_at=rig.now + 1)
    rig.desk.route_changed(rig.route(status=EndpointStatus.FAILED, failure=once))
    await turn()
    assert not waiting.done()
    thrice = once.model_copy(update={"attempts": 3, "next_retry_at": rig.now + 4})
    rig.desk.route_changed(rig.route(status=EndpointStatus.FAILED, failure=thrice))
    with pytest.raises(EndpointFailed, match=r"exit code 1: bad magic \(3 attempts\)") as error:
        await waiting
    assert error.value.retry_after_s == 4.0
    with pytest.raises(EndpointFailed):
        await rig.ask()
    rig.now += 5
    asked = rig.ask()
    await turn()
    assert not asked.done(), "the retry is due: somebody has to ask for it"
    asked.cancel()
    await turn()


async def test_deletion_ends_the_wait() -> None:
    rig = Rig()
    waiting = rig.ask()
    await turn()
    rig.desk.endpoint_removed()
    with pytest.raises(EndpointNotFound):
        await waiting


async def test_demand_says_what_waits_and_what_runs() -> None:
    rig = Rig()
    with rig.desk.enter(), rig.desk.enter():
        waiting = rig.ask(7)
        await turn()
        demand = rig.desk.demands("g", "b", 3)[0]
        assert (demand.in_flight, demand.queued, demand.queued_bytes, demand.idle) == (1, 1, 7, 0)
        assert demand.oldest_arrival_at == 100.0
        waiting.cancel()
        await turn()
    rig.now += 9
    demand = rig.desk.demands("g", "b", 4)[0]
    assert (demand.in_flight, demand.queued, demand.idle) == (0, 0, 9)


ENDINGS = st.lists(
    st.sampled_from(["done", "draining", "full", "unreachable", "cancelled", "late_cancel"]), min_size=1, max_size=40
)


@given(endings=ENDINGS)
@settings(max_examples=60, deadline=None)
def test_every_ending_gives_back_its_slot_and_its_room(endings: list[str]) -> None:
    """Field case B20: whatever way requests end, the counts return to zero and the next ones are admitted."""
    asyncio.run(_every_ending(endings))


async def _every_ending(endings: list[str]) -> None:
    rig = Rig()
    epoch = 1
    rig.desk.instance_changed(an_instance(epoch=epoch, slots=2), seen=0)
    for ending in endings:
        with rig.desk.enter():
            task = rig.ask()
            if ending == "late_cancel":
                task.cancel()
            await turn()
            if not task.done():
                task.cancel()
                await turn()
            with contextlib.suppress(asyncio.CancelledError):
                grant = task.result()
                if ending in {"draining", "full"}:
                    rig.desk.refused(grant, ending)
                elif ending == "unreachable":
                    rig.desk.unreachable(grant)
                rig.desk.release(grant)
        rig.now += 2
        epoch += ending == "draining"
        rig.desk.instance_changed(an_instance(epoch=epoch, slots=2), seen=0)
    assert (rig.desk.in_flight, rig.desk.queued, rig.desk.queued_bytes) == (0, 0, 0)
    assert (rig.desk.outstanding, rig.rooms.body_bytes) == ({}, 0)
    grants = await asyncio.gather(rig.ask(), rig.ask())
    for grant in grants:
        rig.desk.release(grant)
    rig.desk.instance_changed(an_instance(epoch=epoch, state=InstanceState.DRAINING), seen=0)
    assert not rig.desk.has_ready
