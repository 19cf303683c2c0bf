"""Who waits at one desk, whose turn it is, and how many bytes their bodies have.

Whoever waits stands in a lane of its priority. A lane holds those for whom the same instances come into question: whose
head finds none keeps nobody back but those behind it (the instance of a session that is busy, an adapter that is nowhere
loaded, an engine whose slots are taken). Within a priority and a lane the first comes first. Joining, leaving and taking
cost the same whether ten wait or ten thousand.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from standby.domain.ask import Ask
from standby.domain.errors import StandbyError
from standby.domain.priority import Priority
from standby.domain.traffic import PriorityPolicy
from standby.gateway.fairness import Standing, after_turn, next_turn

if TYPE_CHECKING:
    from standby.gateway.desk import Desk
    from standby.gateway.grants import Grant
    from standby.gateway.ready_instance import ReadyInstance
    from standby.gateway.ready_instances import ReadyInstances

_USUAL: Final = PriorityPolicy()
# Stands for every adapter that no instance has loaded; none has this name.
_NOWHERE: Final = ""


@dataclass(slots=True)
class AllRooms:
    """Body bytes in the waiting rooms of all endpoints of this gateway."""

    limit: int
    body_bytes: int = 0


class Lane(NamedTuple):
    """For whom the same instances come into question.

    ``wanted`` is the instance of a session, ``backend`` the engine that the request would wake at zero.
    """

    wanted: str | None = None
    backend: str = ""
    adapter: str | None = None


class Wish(NamedTuple):
    """A request as far as it matters where and when it is served. A tuple, as one is made for each request.

    ``arrived`` is by the monotonic clock, ``arrived_at`` by the wall clock; ``wanted`` is the instance of its session,
    ``tried`` names those where it has failed already. ``again``: it had its turn before.
    """

    arrived: float
    arrived_at: float
    body_bytes: int
    ask: Ask
    priority: Priority
    again: bool = False
    wanted: str | None = None
    tried: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class Waiter:
    """``admitted`` says why it may wait; ``place`` is the room's, growing with those who come after."""

    wish: Wish
    granted: asyncio.Future[Grant]
    desk: Desk
    lane: Lane
    admitted: str = ""
    place: int = 0


class PassedOver:
    """Lanes whose heads have found no instance, each with all of its priority for whom the same ones come into question now.

    Callers may name instances and adapters that are not there: whoever names one speaks for all who do, however many lanes
    they make.
    """

    def __init__(self, ready: Mapping[str, ReadyInstance]) -> None:
        self._ready = ready
        self._adapters = frozenset(adapter for one in ready.values() for adapter in one.record.adapters)
        self._kinds: set[tuple[Priority, Lane]] = set()

    def add(self, head: Waiter) -> None:
        """The head of a lane has found none."""
        self._kinds.add((head.wish.priority, self._kind(head.lane)))

    def __contains__(self, place: object) -> bool:
        return isinstance(place, tuple) and (place[0], self._kind(place[1])) in self._kinds

    def _kind(self, lane: Lane) -> Lane:
        wanted, backend, adapter = lane
        if wanted not in self._ready:
            wanted = None
        if adapter is not None and adapter not in self._adapters:
            adapter = _NOWHERE
        return Lane(wanted, backend, adapter)


class Next(NamedTuple):
    """Who is next, and why in words. ``aged``: by age, against the weights."""

    waiter: Waiter
    aged: bool
    reason: str


@dataclass(slots=True)
class Count:
    """Requests and bytes of their bodies."""

    requests: int = 0
    body_bytes: int = 0


@dataclass(slots=True)
class _Line:
    """Those of one priority."""

    priority: Priority
    weight: float
    ages_s: float
    start: float = 0.0
    count: int = 0
    lanes: dict[Lane, OrderedDict[Waiter, None]] = field(default_factory=dict)

    def first(self, passed: Container[tuple[Priority, Lane]]) -> Waiter | None:
        """Return who has waited longest, in lanes that were not passed over."""
        found: Waiter | None = None
        for lane, those in self.lanes.items():
            if (self.priority, lane) not in passed:
                head = next(iter(those))
                if found is None or head.place < found.place:
                    found = head
        return found


@dataclass(slots=True)
class WaitingRoom:
    """Invariant: ``total``, ``backends`` and ``rooms`` count exactly those that are in a lane."""

    rooms: AllRooms
    total: Count = field(default_factory=Count)
    backends: dict[str, Count] = field(default_factory=dict)
    _lines: dict[Priority, _Line] = field(default_factory=dict)
    _present: float = 0.0
    _aged: bool = False
    _last_place: int = 0
    _first_place: int = 0

    def __post_init__(self) -> None:
        self.serve(_USUAL)

    def serve(self, policy: PriorityPolicy) -> None:
        """From now on share by these weights and ages."""
        for priority in Priority:
            line = self._lines.setdefault(priority, _Line(priority, 1.0, 0.0))
            line.weight, line.ages_s = policy.weights[priority], policy.ages[priority]
            # With a smaller weight before, it may stand further back than one turn of the present one.
            line.start = min(line.start, self._present + 1.0 / line.weight)

    def join(self, waiter: Waiter, *, first: bool) -> None:
        """Let a request wait, at the head or at the end of its priority."""
        line = self._lines[waiter.wish.priority]
        if first:
            self._first_place -= 1
            waiter.place = self._first_place
        else:
            self._last_place += 1
            waiter.place = self._last_place
        lane = line.lanes.get(waiter.lane)
        if lane is None:
            lane = line.lanes[waiter.lane] = OrderedDict()
        lane[waiter] = None
        if first:
            lane.move_to_end(waiter, last=False)
        line.count += 1
        self._count(waiter, 1)

    def leave(self, waiter: Waiter) -> bool:
        """Take a request out, wherever it is; False when it is not here any more."""
        line = self._lines[waiter.wish.priority]
        lane = line.lanes.get(waiter.lane)
        if lane is None or waiter not in lane:
            return False
        del lane[waiter]
        if not lane:
            del line.lanes[waiter.lane]
        line.count -= 1
        self._count(waiter, -1)
        if not self.total.requests:
            self._forget_turns()
        return True

    def next(self, now: float, passed: Container[tuple[Priority, Lane]] = ()) -> Next | None:
        """Return whose turn it is, in lanes that were not ``passed`` over; None when nobody is left.

        Who has given up and did not get round to leaving is taken out and never returned.
        """
        heads: dict[Priority, Waiter] = {}
        standings = []
        for priority, line in self._lines.items():
            head = line.first(passed) if line.count else None
            while head is not None and head.granted.done():
                self.leave(head)
                head = line.first(passed)
            if head is not None:
                heads[priority] = head
                # Who comes anew, or was passed over for a while, does not save up the turns that it did not take.
                start = max(line.start, self._present)
                standings.append(Standing(priority, line.weight, start, head.wish.arrived, line.ages_s))
        if not standings:
            return None
        turn = next_turn(standings, now, aged_before=self._aged)
        return Next(heads[turn.priority], turn.aged, turn.reason)

    def take(self, chosen: Next) -> None:
        """Take out whose turn it was: its priority has had one."""
        line = self._lines[chosen.waiter.wish.priority]
        line.start, self._present = after_turn(line.start, line.weight, self._present, aged=chosen.aged)
        self._aged = chosen.aged
        self.leave(chosen.waiter)

    def turns(
        self, now: float, instances: ReadyInstances, choose: Callable[[Wish, str], Grant | None]
    ) -> Iterator[tuple[Waiter, Grant]]:
        """Yield in turn who gets an instance, taken out already; ``choose`` is given what it wished and why it is next.

        A lane whose head finds no instance keeps back nobody but itself.
        """
        passed: PassedOver | None = None
        while self.total.requests and instances.has_room:
            chosen = self.next(now, passed or ())
            if chosen is None:
                return
            waiter = chosen.waiter
            grant = choose(waiter.wish, f"{waiter.admitted}; {chosen.reason}")
            if grant is None:
                passed = passed or PassedOver(instances.usable)
                passed.add(waiter)
                continue
            self.take(chosen)
            yield waiter, grant

    def everybody(self) -> list[Waiter]:
        """Return all, in the order in which they came, those at the head first."""
        return sorted(
            (waiter for line in self._lines.values() for lane in line.lanes.values() for waiter in lane),
            key=lambda waiter: waiter.place,
        )

    def refuse_all(self, error: StandbyError) -> None:
        """End everybody's wait."""
        for waiter in self.everybody():
            self.leave(waiter)
            if not waiter.granted.done():
                waiter.granted.set_exception(error)

    def waits(self, priority: Priority, lane: Lane) -> bool:
        """Whether somebody waits in this lane of this priority."""
        return lane in self._lines[priority].lanes

    @property
    def counts(self) -> Mapping[Priority, int]:
        """How many wait, by priority."""
        return {priority: line.count for priority, line in self._lines.items()}

    def of(self, backend: str) -> Count:
        """Return how many wait for a backend."""
        return self.backends.get(backend) or Count()

    def oldest_arrival_at(self, backend: str | None = None) -> float | None:
        """Return when the first of them arrived, by the wall clock, among those who wait for ``backend``; None: all."""
        heads = (
            next(iter(those)).wish.arrived_at
            for line in self._lines.values()
            for lane, those in line.lanes.items()
            if backend is None or lane.backend == backend
        )
        return min(heads, default=None)

    def _count(self, waiter: Waiter, change: int) -> None:
        of = self.backends.get(waiter.lane.backend)
        if of is None:
            of = self.backends[waiter.lane.backend] = Count()
        for count in (self.total, of):
            count.requests += change
            count.body_bytes += change * waiter.wish.body_bytes
        self.rooms.body_bytes += change * waiter.wish.body_bytes
        if not of.requests:
            del self.backends[waiter.lane.backend]

    def _forget_turns(self) -> None:
        """Nobody waits: whoever comes next starts anew, and the numbers never grow without bound."""
        self._present, self._aged = 0.0, False
        for line in self._lines.values():
            line.start = 0.0
