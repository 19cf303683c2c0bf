"""The fair queue: shares by weight, ageing, lanes, and counts that return to zero; against a list that is searched whole."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.ask import NOTHING
from standby.domain.errors import QueueFull
from standby.domain.priority import Priority
from standby.domain.traffic import DEFAULT_WEIGHTS, PriorityPolicy
from standby.gateway.waiting_room import AllRooms, Lane, Waiter, WaitingRoom, Wish

pytestmark = pytest.mark.decision

NEVER = dict.fromkeys(Priority, 1e9)
HERE, THERE = Lane(), Lane(wanted="i1")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def a_waiter(
    loop: asyncio.AbstractEventLoop, priority: Priority, arrived: float = 0.0, body_bytes: int = 1, lane: Lane = HERE
) -> Waiter:
    wish = Wish(arrived, arrived, body_bytes, NOTHING, priority, wanted=lane.wanted)
    return Waiter(wish, loop.create_future(), None, lane)  # type: ignore[arg-type] # no desk is asked here


def a_room(weights: dict[Priority, float] | None = None, ages: dict[Priority, float] | None = None) -> WaitingRoom:
    room = WaitingRoom(AllRooms(10**9))
    room.serve(PriorityPolicy(weights=weights or DEFAULT_WEIGHTS, ages=ages or NEVER))
    return room


def take(room: WaitingRoom, now: float = 0.0) -> Waiter:
    chosen = room.next(now)
    assert chosen is not None
    room.take(chosen)
    return chosen.waiter


@given(
    weights=st.lists(st.floats(0.1, 20), min_size=4, max_size=4),
    waiting=st.sets(st.sampled_from(list(Priority)), min_size=1),
    turns=st.integers(1, 150),
)
@settings(max_examples=80, deadline=None)
def test_shares_differ_from_the_weights_by_less_than_one_request_of_each(
    loop: asyncio.AbstractEventLoop, weights: list[float], waiting: set[Priority], turns: int
) -> None:
    """At every moment, for each two that wait: turns/weight differ by at most one turn of each."""
    by_weight = dict(zip(Priority, weights, strict=True))
    room = a_room(by_weight)
    for priority in waiting:
        for _ in range(turns + 1):
            room.join(a_waiter(loop, priority), first=False)
    had = Counter[Priority]()
    for _ in range(turns):
        had[take(room).wish.priority] += 1
        for one in waiting:
            for other in waiting - {one}:
                apart = had[one] / by_weight[one] - had[other] / by_weight[other]
                assert apart <= 1 / by_weight[one] + 1e-6


def test_who_comes_anew_is_next_before_a_smaller_weight_and_saves_up_no_turns(loop: asyncio.AbstractEventLoop) -> None:
    """Field case B22: the high request goes at the next completion, however many low ones were there before it."""
    room = a_room()
    for _ in range(40):
        room.join(a_waiter(loop, Priority.BATCH), first=False)
    for _ in range(20):
        take(room)
    for _ in range(12):
        room.join(a_waiter(loop, Priority.HIGH), first=False)
    order = [take(room).wish.priority for _ in range(14)]
    assert order[:6] == [Priority.HIGH] * 6
    assert order.count(Priority.BATCH) == 2, "six to one, and not all of the high ones first"


def test_every_choice_says_why(loop: asyncio.AbstractEventLoop) -> None:
    room = a_room(ages={**NEVER, Priority.BATCH: 60.0})
    room.join(a_waiter(loop, Priority.BATCH, arrived=0.0), first=False)
    assert str(getattr(room.next(1.0), "reason", "")) == "batch: only they wait"
    room.join(a_waiter(loop, Priority.HIGH, arrived=50.0), first=False)
    assert str(getattr(room.next(59.0), "reason", "")) == "high before batch: weight 3 to 0.5"
    assert str(getattr(room.next(61.0), "reason", "")) == "batch waited 61 s, ages after 60 s"
    take(room, 59.0)
    for _ in range(8):
        room.join(a_waiter(loop, Priority.HIGH, arrived=59.0), first=False)
    reasons = []
    for _ in range(6):
        chosen = room.next(59.0)
        assert chosen is not None
        reasons.append(chosen.reason)
        room.take(chosen)
    assert "batch in its turn beside high: weight 0.5 to 3" in reasons


@pytest.mark.parametrize(("weight", "bound_s"), [(0.5, 14), (1e-4, 61)])
def test_the_wait_of_low_priority_is_bounded_under_a_steady_high_load(
    loop: asyncio.AbstractEventLoop, weight: float, bound_s: int
) -> None:
    """Field case B22: a high request comes for each one that is served, for ever; weight bounds the wait, at last age does.

    The high ones wait longer than their own age, too, and the low ones keep half of their share all the same.
    """
    room = a_room({**DEFAULT_WEIGHTS, Priority.BATCH: weight}, {**NEVER, Priority.HIGH: 5.0, Priority.BATCH: 60.0})
    for priority in (Priority.HIGH, Priority.BATCH, Priority.HIGH, Priority.HIGH):
        room.join(a_waiter(loop, priority), first=False)
    assert {take(room).wish.priority, take(room).wish.priority} == {Priority.HIGH, Priority.BATCH}
    waits: list[float] = []
    for second in range(1, 1000):
        room.join(a_waiter(loop, Priority.HIGH, arrived=float(second)), first=False)
        if second % 100 == 1:
            room.join(a_waiter(loop, Priority.BATCH, arrived=float(second)), first=False)
        served = take(room, float(second))
        if served.wish.priority is Priority.BATCH:
            waits.append(second - served.wish.arrived)
    assert len(waits) == 10
    assert max(waits) <= bound_s
    assert room.counts[Priority.BATCH] == 0


def test_who_left_is_gone_before_anybody_is_served_and_its_bytes_at_once(loop: asyncio.AbstractEventLoop) -> None:
    """Field case B23: 10,000 callers leave; nothing of them is kept, and the one who stayed is next."""
    room = a_room()
    waiters = [a_waiter(loop, Priority.NORMAL, body_bytes=100) for _ in range(10_001)]
    for waiter in waiters:
        room.join(waiter, first=False)
    assert (room.total.body_bytes, room.rooms.body_bytes) == (1_000_100, 1_000_100)
    for waiter in waiters[1:-1]:
        assert room.leave(waiter)
    assert not room.leave(waiters[1])
    assert (room.total.requests, room.total.body_bytes, len(room.everybody())) == (2, 200, 2)
    waiters[0].granted.cancel()
    assert take(room) is waiters[-1], "the first one has gone without a word"
    assert (room.total.requests, room.rooms.body_bytes) == (0, 0)


def test_a_lane_whose_head_finds_nothing_keeps_back_only_itself(loop: asyncio.AbstractEventLoop) -> None:
    room = a_room()
    first, second, third = (a_waiter(loop, Priority.NORMAL, lane=lane) for lane in (THERE, THERE, HERE))
    for waiter in (first, second, third):
        room.join(waiter, first=False)
    assert getattr(room.next(0.0), "waiter", None) is first
    passed = {(Priority.NORMAL, THERE)}
    assert getattr(room.next(0.0, passed), "waiter", None) is third
    assert room.next(0.0, passed | {(Priority.NORMAL, HERE)}) is None
    room.join(again := a_waiter(loop, Priority.NORMAL), first=True)
    assert getattr(room.next(0.0), "waiter", None) is again
    assert [room.waits(Priority.NORMAL, THERE), room.waits(Priority.HIGH, THERE)] == [True, False]


def test_a_refusal_of_all_reaches_everybody_who_still_waits(loop: asyncio.AbstractEventLoop) -> None:
    room = a_room()
    waiters = [a_waiter(loop, priority) for priority in Priority]
    for waiter in waiters:
        room.join(waiter, first=False)
    waiters[0].granted.cancel()
    room.refuse_all(QueueFull("x"))
    assert waiters[0].granted.cancelled()
    assert all(isinstance(waiter.granted.exception(), QueueFull) for waiter in waiters[1:])
    assert (room.total.requests, room.rooms.body_bytes) == (0, 0)


@dataclass
class Naive:
    """The same rules on one list that is searched whole: each priority is so many turns ahead of whose turn it is."""

    weights: dict[Priority, float]
    ages: dict[Priority, float]
    rows: list[Waiter] = field(default_factory=list)
    by_age: bool = False
    ahead: dict[Priority, Fraction] = field(default_factory=lambda: dict.fromkeys(Priority, Fraction(0)))

    def join(self, waiter: Waiter, *, first: bool) -> None:
        self.rows.insert(0 if first else len(self.rows), waiter)

    def leave(self, waiter: Waiter) -> None:
        self.rows.remove(waiter)
        if not self.rows:
            self.by_age = False
            self.ahead = dict.fromkeys(Priority, Fraction(0))

    def take(self, now: float, shut: set[Lane]) -> Waiter | None:
        open_rows = [row for row in self.rows if row.lane not in shut]
        heads = {row.wish.priority: row for row in reversed(open_rows)}
        if not heads:
            return None
        chosen = min(heads.values(), key=lambda row: (self.ahead[row.wish.priority], row.wish.priority.rank))
        old = [row for row in heads.values() if now - row.wish.arrived >= self.ages[row.wish.priority]]
        old.sort(key=lambda row: (row.wish.arrived, row.wish.priority.rank))
        self.by_age = not self.by_age and bool(old) and old[0] is not chosen
        if self.by_age:
            chosen = old[0]
        else:
            gone = self.ahead[chosen.wish.priority]
            self.ahead = {priority: max(Fraction(0), lead - gone) for priority, lead in self.ahead.items()}
        self.ahead[chosen.wish.priority] = 1 / Fraction(self.weights[chosen.wish.priority])
        self.leave(chosen)
        return chosen


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "join", "first", "leave", "take", "take", "shut", "later"]),
        st.sampled_from(list(Priority)),
        st.integers(0, 30),
    ),
    max_size=80,
)


@given(
    steps=STEPS,
    exponents=st.lists(st.integers(-2, 3), min_size=4, max_size=4),
    ages=st.lists(st.integers(1, 40), min_size=4, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_nobody_is_lost_or_served_twice_and_the_order_is_the_lists(
    loop: asyncio.AbstractEventLoop, steps: list[tuple[str, Priority, int]], exponents: list[int], ages: list[int]
) -> None:
    # Powers of two: both ways of counting turns are exact.
    weights = {priority: 2.0**exponent for priority, exponent in zip(Priority, exponents, strict=True)}
    room = a_room(weights, {priority: float(age) for priority, age in zip(Priority, ages, strict=True)})
    naive = Naive(weights, {priority: float(age) for priority, age in zip(Priority, ages, strict=True)})
    now, joined, out = 0.0, 0, list[Waiter]()
    for action, priority, number in steps:
        match action:
            case "join" | "first":
                lane = (HERE, THERE)[number % 2]
                waiter = a_waiter(loop, priority, now - (number if action == "first" else 0), number, lane)
                room.join(waiter, first=action == "first")
                naive.join(waiter, first=action == "first")
                joined += 1
            case "leave" if naive.rows:
                gone = naive.rows[number % len(naive.rows)]
                assert room.leave(gone)
                naive.leave(gone)
                out.append(gone)
            case "take" | "shut":
                shut = {THERE} if action == "shut" else set[Lane]()
                chosen = room.next(now, {(one, lane) for one in Priority for lane in shut})
                expected = naive.take(now, shut)
                assert (None if chosen is None else chosen.waiter) is expected
                if chosen is not None:
                    room.take(chosen)
                    out.append(chosen.waiter)
            case "later":
                now += number
        assert room.total.requests == len(naive.rows) == sum(room.counts.values())
        assert room.total.body_bytes == room.rooms.body_bytes == sum(row.wish.body_bytes for row in naive.rows)
        assert room.oldest_arrival_at() is None or naive.rows
    while naive.rows:
        chosen = room.next(now)
        assert chosen is not None
        assert chosen.waiter is naive.take(now, set())
        room.take(chosen)
        out.append(chosen.waiter)
    assert len(out) == len({id(waiter) for waiter in out}) == joined
    assert (room.next(now), room.total.requests, room.rooms.body_bytes, room.backends) == (None, 0, 0, {})
