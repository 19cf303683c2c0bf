"""Concurrency limits: exact over several gateways before one door, refused instead of queued, and nothing leaks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import Throttled
from standby.domain.instance import InstanceState
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.gateway.results import Result, ResultKind
from support.builders import an_endpoint, an_instance
from support.turns import turn


def limited(limit: int, **policy: object) -> Variant:
    values: dict[str, object] = {"slots": limit, "max_cold_wait": 30, **policy}
    return Variant(model="m", concurrency_limit=limit, policy=ScalePolicy.model_validate(values))


@dataclass
class Doors:
    """Several gateways' desks of one variant, and the doors that decide; a door counts as a real one does."""

    variant: Variant
    gateways: int = 2
    now: float = 100.0
    slots: dict[str, int] = field(default_factory=dict)
    inside: dict[str, int] = field(default_factory=dict)
    most: int = 0

    def __post_init__(self) -> None:
        self.rooms = AllRooms(10_000)
        self.desks = [self._desk() for _ in range(self.gateways)]

    def _desk(self) -> Desk:
        route = Route(an_endpoint(), self.variant)
        return Desk(route, self.rooms, lambda: self.now, lambda: self.now, lambda _desk, _urgent: None)

    def tell(self, instance: str, slots: int, state: InstanceState = InstanceState.READY, epoch: int = 1) -> None:
        self.slots[instance] = slots if state is InstanceState.READY else 0
        for desk in self.desks:
            desk.instance_changed(an_instance(id=instance, slots=slots, state=state, epoch=epoch), seen=self.now)

    async def request(self, gateway: int, end: asyncio.Event) -> str:
        """Do what the gateway's dispatch does, against these doors, until ``end``."""
        desk = self.desks[gateway]
        with desk.enter():
            again = False
            while True:
                grant = await desk.acquire(arrived=self.now, arrived_at=self.now, body_bytes=1, again=again)
                try:
                    if not self._let_in(desk, grant):
                        again = True
                        continue
                    try:
                        await end.wait()
                        return "served"
                    finally:
                        self.inside[grant.instance] -= 1
                finally:
                    desk.release(grant)

    def _let_in(self, desk: Desk, grant: Grant) -> bool:
        name = grant.instance
        if not self.slots[name]:
            desk.refused(grant, "draining")
            return False
        if self.inside.get(name, 0) >= self.slots[name]:
            desk.refused(grant, "full")
            return False
        self.inside[name] = self.inside.get(name, 0) + 1
        self.most = max(self.most, sum(self.inside.values()))
        return True


async def outcomes(tasks: list[asyncio.Task[str]]) -> list[str]:
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return ["throttled" if isinstance(one, Throttled) else str(one) for one in found]


@pytest.mark.parametrize("gateways", [1, 2, 3])
async def test_one_beyond_the_limit_is_refused_and_not_queued(gateways: int) -> None:
    doors = Doors(limited(4), gateways)
    doors.tell("i1", 4)
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(number % gateways, end)) for number in range(5)]
    await turn()
    assert [task.done() for task in tasks] == [False] * 4 + [True]
    end.set()
    assert await outcomes(tasks) == ["served"] * 4 + ["throttled"]
    assert doors.most == 4


async def test_at_zero_as_many_wait_as_the_limit_allows_and_the_door_decides_between_gateways() -> None:
    doors = Doors(limited(3), 2)
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(number % 2, end)) for number in range(8)]
    await turn()
    assert sum(task.done() for task in tasks) == 2, "each gateway lets three wait"
    doors.tell("i1", 3)
    await turn()
    end.set()
    found = await outcomes(tasks)
    assert (found.count("served"), found.count("throttled"), doors.most) == (3, 5, 3)
    assert [desk.queued for desk in doors.desks] == [0, 0]


async def test_who_waits_while_slots_are_on_their_way_is_served_when_they_come() -> None:
    """Two instances share the limit: as long as fewer slots than that are at the doors, nobody is beyond it."""
    doors = Doors(limited(4, slots=2, max_instances=2), 1)
    doors.tell("i1", 2)
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(0, end)) for _ in range(5)]
    await turn()
    assert [task.done() for task in tasks] == [False] * 4 + [True]
    doors.tell("i2", 2)
    await turn()
    assert doors.inside == {"i1": 2, "i2": 2}
    end.set()
    assert (await outcomes(tasks)).count("served") == 4


async def test_a_full_door_beside_a_free_one_throttles_nobody() -> None:
    doors = Doors(limited(4, slots=2, max_instances=2), 2)
    for name in ("i1", "i2"):
        doors.tell(name, 2)
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(number % 2, end)) for number in range(4)]
    await turn()
    assert doors.most == 4
    late = [asyncio.create_task(doors.request(number % 2, end)) for number in range(2)]
    await turn()
    end.set()
    assert await outcomes(tasks) == ["served"] * 4
    assert await outcomes(late) == ["throttled"] * 2


@pytest.mark.parametrize(("service_s", "expected"), [(None, 1.0), (8.0, 2.0)])
async def test_when_to_come_again_is_when_the_next_slot_is_free_as_measured(service_s: float | None, expected: float) -> None:
    """Four slots that are held for eight seconds each: one every two seconds. Unknown: a second."""
    doors = Doors(limited(4), 1)
    doors.tell("i1", 4)
    if service_s is not None:
        grant = await doors.desks[0].acquire(arrived=doors.now, arrived_at=doors.now, body_bytes=1, again=False)
        doors.desks[0].release(grant, Result(ResultKind.OK, service_s))
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(0, end)) for _ in range(5)]
    await turn()
    with pytest.raises(Throttled) as refused:
        await tasks[4]
    assert refused.value.retry_after_s == pytest.approx(expected)
    end.set()
    await asyncio.gather(*tasks[:4])


async def test_beyond_the_limit_at_zero_it_is_when_the_climb_is_over() -> None:
    doors = Doors(limited(1), 1)
    desk = Desk(
        doors.desks[0].route, doors.rooms, lambda: 100.0, lambda: 100.0, lambda _desk, _urgent: None, lambda _route: 12.0
    )
    doors.desks[0] = desk
    first = asyncio.create_task(doors.request(0, asyncio.Event()))
    await turn()
    with pytest.raises(Throttled) as refused:
        await desk.acquire(arrived=100.0, arrived_at=100.0, body_bytes=1, again=False)
    assert refused.value.retry_after_s == pytest.approx(12.0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_a_limit_below_the_instances_slots_is_what_counts_and_one_above_them_all_is_not_believed() -> None:
    assert limited(10, slots=4, max_instances=2).limit == 8
    assert limited(3, slots=4, max_instances=2).limit == 3
    assert Variant(model="m").limit is None


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "end", "cancel", "sleep", "wake", "resize", "later"]), st.integers(0, 100)),
    min_size=1,
    max_size=50,
)


@given(actions=ACTIONS, gateways=st.integers(1, 3), limit=st.integers(1, 4))
@settings(max_examples=120, deadline=None)
def test_whatever_happens_never_more_than_the_limit_and_nothing_leaks(
    actions: list[tuple[str, int]], gateways: int, limit: int
) -> None:
    """Field case B20, with a limit: slots come back in every ending, and later requests are served."""
    asyncio.run(_anything(actions, gateways, limit))


async def _anything(actions: list[tuple[str, int]], gateways: int, limit: int) -> None:
    doors = Doors(limited(limit), gateways)
    running: list[tuple[asyncio.Task[str], asyncio.Event]] = []
    everybody: list[asyncio.Task[str]] = []
    epoch = 1
    for action, number in actions:
        match action:
            case "ask":
                end = asyncio.Event()
                task = asyncio.create_task(doors.request(number % gateways, end))
                running.append((task, end))
                everybody.append(task)
            case "end" | "cancel" if running:
                task, end = running.pop(number % len(running))
                end.set() if action == "end" else task.cancel()
            case "sleep":
                doors.tell("i1", limit, InstanceState.DRAINING, epoch)
            case "wake":
                epoch += 1
                doors.tell("i1", limit, epoch=epoch)
            case "resize":
                doors.tell("i1", 1 + number % limit, epoch=epoch)
            case "later":
                doors.now += 0.05
        await turn()
        assert doors.most <= limit
    for task in everybody:
        task.cancel()
    await asyncio.gather(*everybody, return_exceptions=True)
    await turn()
    epoch += 1
    doors.tell("i1", limit, epoch=epoch)
    for desk in doors.desks:
        assert (desk.in_flight, desk.granted, desk.queued, desk.queued_bytes, desk.outstanding) == (0, 0, 0, 0, {})
    assert (doors.rooms.body_bytes, sum(doors.inside.values())) == (0, 0)
    end = asyncio.Event()
    tasks = [asyncio.create_task(doors.request(0, end)) for _ in range(limit)]
    await turn()
    end.set()
    assert await asyncio.gather(*tasks) == ["served"] * limit
