"""A queue before c slots, simulated by discrete events with the gateway's own waiting room, instances and admission.

Nothing of the decisions is modelled here: a request finds a slot, waits or is refused by the very code that a desk calls,
under a clock that jumps from event to event. Arrivals are Poisson, service times exponential; everything follows from the
seed.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from standby.domain.ask import NOTHING
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.priority import Priority
from standby.domain.traffic import QueueMode, TrafficPolicy
from standby.gateway.admission import Verdict
from standby.gateway.outlook import Outlook
from standby.gateway.ready_instances import ReadyInstances
from standby.gateway.results import Result, ResultKind
from standby.gateway.route import Route
from standby.gateway.waiting_room import AllRooms, Lane, Waiter, WaitingRoom, Wish
from support.builders import an_endpoint, an_instance

_INSTANCE = "i1"
# Of a service time, until the first token: what a latency target counts beside the wait.
FIRST_TOKEN_SHARE = 0.15


class Step(NamedTuple):
    """For ``lasts_s`` seconds ``rate`` requests come in each, and each needs ``service_s`` on average."""

    lasts_s: float
    rate: float
    service_s: float


class Setting(NamedTuple):
    """What is simulated; ``target_s`` counts to the first token, ``patience_s`` is the longest wait (``max_cold_wait``)."""

    slots: int
    queue_requests: int
    mode: QueueMode = QueueMode.STATIC
    target_s: float | None = None
    patience_s: float = math.inf


@dataclass
class Outcome:
    """Counts of requests, and sums in seconds."""

    arrived: int = 0
    served: int = 0
    late: int = 0
    waited_s: float = 0.0
    refused: Counter[Verdict] = field(default_factory=Counter)
    gave_up: int = 0
    deepest: int = 0
    ended: list[float] = field(default_factory=list)

    def throughput(self, begin: float, end: float) -> float:
        """Answers that ended within these moments, per second."""
        return (bisect(self.ended, end) - bisect(self.ended, begin)) / (end - begin)

    @property
    def late_share(self) -> float:
        """Share of the served requests whose first token came after the target."""
        return self.late / self.served

    @property
    def blocked_share(self) -> float:
        """Share of the arrivals that were refused."""
        return self.refused.total() / self.arrived

    @property
    def mean_wait_s(self) -> float:
        """Of those that were served."""
        return self.waited_s / self.served


def simulate(setting: Setting, steps: Sequence[Step], seed: int) -> Outcome:
    """Return what becomes of the requests of all steps, served to the last one."""
    loop = asyncio.new_event_loop()
    try:
        return _Simulation(setting, loop, random.Random(seed)).run(steps)
    finally:
        loop.close()


class _Simulation:
    def __init__(self, setting: Setting, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        policy = ScalePolicy(
            slots=setting.slots, queue_requests=setting.queue_requests, max_cold_wait=min(setting.patience_s, 10.0**9)
        )
        traffic = TrafficPolicy(latency_target=setting.target_s, queue=setting.mode, adaptive_concurrency=False)
        route = Route(an_endpoint(), Variant(model="m", policy=policy), traffic=traffic)
        self.now = 0.0
        self.outcome = Outcome()
        self._setting, self._loop, self._chance = setting, loop, chance
        self._room = WaitingRoom(AllRooms(10**12))
        self._instances = ReadyInstances()
        self._instances.serve(route)
        self._instances.changed(an_instance(id=_INSTANCE, slots=setting.slots), 0.0, removed=False)
        self._outlook = Outlook(route, self._room, self._instances, lambda _route: None, lambda: self.now, 0.0)
        self._service: dict[int, float] = {}
        self._events: list[tuple[float, int, str, object]] = []
        self._number = itertools.count()
        self._running = 0

    def run(self, steps: Sequence[Step]) -> Outcome:
        arrivals = self._arrivals(steps)
        coming = next(arrivals, None)
        while coming is not None or self._events:
            if coming is not None and (not self._events or coming[0] <= self._events[0][0]):
                self.now = coming[0]
                self._arrive(coming[1])
                coming = next(arrivals, None)
                continue
            self.now, _, kind, what = heapq.heappop(self._events)
            if kind == "end":
                assert isinstance(what, tuple)
                self._end(*what)
            else:
                assert isinstance(what, Waiter)
                self.outcome.gave_up += self._leave(what)
        assert (self._room.total.requests, self._room.rooms.body_bytes, self._running) == (0, 0, 0)
        return self.outcome

    def _arrivals(self, steps: Sequence[Step]) -> Iterator[tuple[float, float]]:
        """Yield the time of each arrival and the service time that it needs: the same ones whatever the queue does."""
        begins = 0.0
        for step in steps:
            moment = begins
            while (moment := moment + self._chance.expovariate(step.rate)) < begins + step.lasts_s:
                yield moment, self._chance.expovariate(1.0 / step.service_s)
            begins += step.lasts_s

    def _arrive(self, service_s: float) -> None:
        self.outcome.arrived += 1
        wish = Wish(self.now, self.now, 1, NOTHING, Priority.NORMAL)
        if not self._room.total.requests and self._dispatch(wish, service_s):
            return
        admission = self._outlook.admission(wish, self._running, self.now)
        if admission.verdict is not Verdict.WAIT:
            self.outcome.refused[admission.verdict] += 1
            return
        waiter = Waiter(wish, self._loop.create_future(), None, Lane())  # type: ignore[arg-type] # no desk is asked here
        self._service[id(waiter)] = service_s
        self._room.join(waiter, first=False)
        self.outcome.deepest = max(self.outcome.deepest, self._room.total.requests)
        if self._setting.patience_s < math.inf:
            self._at(self.now + self._setting.patience_s, "patience", waiter)

    def _leave(self, waiter: Waiter) -> bool:
        left = self._room.leave(waiter)
        if left:
            del self._service[id(waiter)]
            self._outlook.gave_up(waiter.wish, self.now)
        return left

    def _dispatch(self, wish: Wish, service_s: float) -> bool:
        choice = self._instances.choose(self.now, None, wish.ask, wish.priority)
        if choice.instance is None:
            return False
        self._instances.took(choice.instance)
        self._running += 1
        self._at(self.now + service_s, "end", (wish, self.now))
        first_token_s = FIRST_TOKEN_SHARE * service_s
        waited_s = self.now - wish.arrived
        self.outcome.served += 1
        self.outcome.waited_s += waited_s
        self.outcome.late += self._setting.target_s is not None and waited_s + first_token_s > self._setting.target_s
        return True

    def _end(self, wish: Wish, dispatched: float) -> None:
        lasted_s = self.now - dispatched
        self.outcome.ended.append(self.now)
        self._running -= 1
        result = Result(ResultKind.OK, lasted_s, FIRST_TOKEN_SHARE * lasted_s)
        self._instances.gave_back(_INSTANCE, 1, result, self.now)
        self._outlook.watch.began(
            wish.priority, wish.arrived, dispatched - wish.arrived, FIRST_TOKEN_SHARE * lasted_s, self.now
        )
        while self._room.total.requests and self._instances.has_room:
            chosen = self._room.next(self.now)
            assert chosen is not None
            self._room.take(chosen)
            assert self._dispatch(chosen.waiter.wish, self._service.pop(id(chosen.waiter)))

    def _at(self, moment: float, kind: str, what: object) -> None:
        heapq.heappush(self._events, (moment, next(self._number), kind, what))


class Closed(NamedTuple):
    """What the formulas of M/M/c/K say: share of arrivals that are refused, mean wait in seconds of those that are not."""

    blocked_share: float
    mean_wait_s: float


def m_m_c_k(rate: float, service_s: float, slots: int, places: int) -> Closed:
    """Return the closed formula for Poisson arrivals, exponential service, ``slots`` servers and ``places`` to wait."""
    offered = rate * service_s
    weights = [1.0]
    for number in range(1, slots + places + 1):
        weights.append(weights[-1] * offered / min(number, slots))
    total = sum(weights)
    queue = sum((number - slots) * weight for number, weight in enumerate(weights) if number > slots) / total
    blocked = weights[-1] / total
    return Closed(blocked, queue / (rate * (1.0 - blocked)))
