"""Serves time-stamped requests with instances that take time for tokens: a discrete-event simulation of one endpoint.

Events happen in the order of their times; at the same time instances move first (in the order in which that was planned),
then the scaler is asked, then requests arrive. Nothing is random: two replays of the same requests are equal.

A request goes where one gateway's router would send it: of two instances drawn by the same hash to the one that has least of
prompts before it, of such the one with fewer requests (``standby.gateway.router``, which a test compares).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol

from standby.controller.scaling import Capacity, ScaleDecision
from standby.controller.simulator.tokens import TokenModel
from standby.domain.draw import READING_STEP_TOKENS, two_of
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

NEVER: Final = math.inf
_PATIENCE_S: Final = 3600.0
# More requests than one replay has: seeds draw different pairs.
_SEED_BITS: Final = 32
# Fluid decoding ends where rounding may leave a request this far from its last token.
_GRAIN_TOKENS: Final = 1e-6


class Scaler(Protocol):
    """Decides how many instances should be up. It is asked on a grid of ``every_s`` seconds.

    ``restless``: also when nothing has happened since. ``urgent``: at once when the first request waits and nothing is ready.
    """

    name: str
    every_s: float
    restless: bool
    urgent: bool

    def told(self, in_flight: int, queued: int, now: float) -> None:
        """Hear how many requests run and wait from now on."""

    def decide(self, capacity: Capacity, now: float) -> ScaleDecision:
        """Return how many instances should be ready or on their way."""


@dataclass(slots=True)
class Request:
    """One request; times in seconds since the trace began."""

    came: float
    prompt: int
    answer: int
    first_at: float = NEVER
    done_at: float = NEVER
    served: int = 0


class Phase(Enum):
    """Where an instance is. It holds its device in all of them but RESTING."""

    RESTING = auto()
    STARTING = auto()
    READY = auto()
    DRAINING = auto()
    FALLING = auto()


@dataclass(slots=True, eq=False)
class Instance:
    """One instance. ``clock`` counts the decode steps that each request running now has had or would have had."""

    number: int
    rung: Rung
    phase: Phase = Phase.RESTING
    since: float = 0.0  # of the phase
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(Phase, 0.0))
    prefills: deque[Request] = field(default_factory=deque)
    prefill_ends: float = NEVER
    running: list[tuple[float, int, Request]] = field(default_factory=list)
    clock: float = 0.0
    clock_at: float = 0.0
    plan: int = 0  # the latest event that was planned for it: earlier ones are void

    @property
    def load(self) -> int:
        """Requests inside."""
        return len(self.prefills) + len(self.running)

    @property
    def unread(self) -> int:
        """Tokens of the prompts whose first token has not come."""
        return sum(request.prompt for request in self.prefills)


class Fleet:
    """One replay: owns the instances, the queue and the timers."""

    def __init__(self, model: TokenModel, scaler: Scaler, seed: int = 0) -> None:
        self.model = model
        self.instances = [Instance(i, model.resting(i)) for i in range(model.instances)]
        self.in_flight = 0
        self.starts = 0
        self.closed_at = 0.0
        self._scaler = scaler
        self._queue: deque[Request] = deque()
        self._ticket = seed << _SEED_BITS
        self._timers: list[tuple[float, int, Instance]] = []
        self._order = count(1)
        self._ready_at: float | None = None
        self._dirty = True
        self._wake_at = 0.0
        self._asked = 0  # points of the grid so far

    def play(self, requests: Sequence[Request], end_at: float) -> None:
        """Serve all ``requests``, which are in order of time, and go on until ``end_at`` and until the last answer.

        Raises InvalidInput for a scaler that lets requests wait with nothing up, an hour after the last one came.
        """
        for request in requests:
            self._run(request.came)
            self._arrive(request, request.came)
        self._run(end_at)
        now = end_at
        while self._queue or self.in_flight:
            now = self._next()
            if not self.in_flight and now > end_at + _PATIENCE_S:
                raise InvalidInput(
                    f"policy {self._scaler.name} leaves {len(self._queue)} requests waiting an hour after the last came",
                    remedy="a policy must start an instance while somebody waits",
                )
            self._run(now)
        self.closed_at = now
        for instance in self.instances:
            self._turn(instance, instance.phase, now)

    # ---- time ------------------------------------------------------------------------------------------

    def _next(self) -> float:
        timer = self._timers[0][0] if self._timers else NEVER
        return min(timer, self._asked * self._scaler.every_s)

    def _run(self, until: float) -> None:
        """Let everything happen that comes up to ``until``."""
        while (now := self._next()) <= until:
            if self._timers and self._timers[0][0] <= now:
                _, plan, instance = heappop(self._timers)
                if plan == instance.plan:
                    self._happen(instance, now)
            else:
                self._asked += 1
                if self._dirty or self._scaler.restless or now >= self._wake_at:
                    self._ask(now)

    def _plan(self, instance: Instance, at: float) -> None:
        """Let ``instance`` be looked at then, and not when it was planned before."""
        instance.plan = next(self._order)
        heappush(self._timers, (at, instance.plan, instance))

    def _happen(self, instance: Instance, now: float) -> None:
        self._dirty = True
        if instance.phase is Phase.STARTING:
            self._turn(instance, Phase.READY, now)
            self._ready_at = now
        elif instance.phase is Phase.FALLING:
            self._turn(instance, Phase.RESTING, now)
            return
        else:
            self._work(instance, now)
        self._admit(now)

    # ---- requests --------------------------------------------------------------------------------------

    def _arrive(self, request: Request, now: float) -> None:
        self._queue.append(request)
        self._dirty = True
        self._admit(now)
        if len(self._queue) == 1 and self._scaler.urgent and not self._count(Phase.READY):
            self._ask(now)

    def _admit(self, now: float) -> None:
        """Give waiting requests to ready instances, as long as one has a slot."""
        ready = [one for one in self.instances if one.phase is Phase.READY] if self._queue else []
        while self._queue and ready:
            best = self._route(ready)
            if best is None:
                break
            request = self._queue.popleft()
            request.served += 1
            self.in_flight += 1
            self._work(best, now, request)
        self._scaler.told(self.in_flight, len(self._queue), now)

    def _route(self, ready: Sequence[Instance]) -> Instance | None:
        """Return which of the ``ready`` ones gets the next request; None: none has a slot free."""
        self._ticket += 1
        drawn = [ready[place] for place in two_of(len(ready), self._ticket)] if len(ready) > 2 else ready
        free = [one for one in drawn if one.load < self.model.slots]
        free = free or [one for one in ready if one.load < self.model.slots]
        if not free:
            return None
        ranks = [(one.unread // READING_STEP_TOKENS, one.load) for one in free]
        equals = [one for one, rank in zip(free, ranks, strict=True) if rank == min(ranks)]
        return equals[self._ticket % len(equals)]

    def _work(self, instance: Instance, now: float, request: Request | None = None) -> None:
        """Book what it has done until ``now``, take ``request`` in, and plan when it is to be looked at again."""
        if instance.running and not instance.prefills:
            instance.clock += (now - instance.clock_at) / self.model.step(len(instance.running))
        instance.clock_at = now
        if instance.prefills and instance.prefill_ends <= now:
            self._first_token(instance, instance.prefills.popleft(), now)
            if instance.prefills:
                instance.prefill_ends = now + self.model.prefill(instance.prefills[0].prompt)
        while instance.running and instance.running[0][0] <= instance.clock + _GRAIN_TOKENS:
            self._done(heappop(instance.running)[2], now)
        if request is not None:
            instance.prefills.append(request)
            if len(instance.prefills) == 1:
                instance.prefill_ends = now + self.model.prefill(request.prompt)
        if instance.prefills:
            self._plan(instance, instance.prefill_ends)
        elif instance.running:
            left = instance.running[0][0] - instance.clock
            self._plan(instance, now + left * self.model.step(len(instance.running)))
        elif instance.phase is Phase.DRAINING:
            self._fall(instance, now)

    def _first_token(self, instance: Instance, request: Request, now: float) -> None:
        request.first_at = now
        if request.answer > 1:
            heappush(instance.running, (instance.clock + request.answer - 1, next(self._order), request))
        else:
            self._done(request, now)

    def _done(self, request: Request, now: float) -> None:
        request.done_at = now
        self.in_flight -= 1

    # ---- instances -------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        self._dirty = False
        ready, starting = self._count(Phase.READY), self._count(Phase.STARTING)
        rests = [one for one in self.instances if one.phase is Phase.RESTING]
        climb = min(self.model.climb_s[one.rung] for one in rests or self.instances)
        seen = Capacity(ready + starting, ready, self._ready_at if ready else None, climb)
        decision = self._scaler.decide(seen, now)
        self._wake_at = decision.wake_at
        for _ in range(decision.count - seen.current):
            self._one_more(now)
        if decision.count < seen.current:
            self._fewer(seen.current - decision.count, now)

    def _one_more(self, now: float) -> None:
        """Keep one that was to leave, else start the one that is ready soonest."""
        staying = [one for one in self.instances if one.phase is Phase.DRAINING]
        if staying:
            self._turn(staying[0], Phase.READY, now)
            self._admit(now)
            return
        rests = [one for one in self.instances if one.phase is Phase.RESTING]
        if rests:
            best = min(rests, key=lambda one: (self.model.climb_s[one.rung], one.number))
            self._turn(best, Phase.STARTING, now)
            self._plan(best, now + self.model.climb_s[best.rung])
            self.starts += 1

    def _fewer(self, number: int, now: float) -> None:
        """Send the live controller's victims down: starting ones, then idle ones, then the least loaded."""
        up = [one for one in self.instances if one.phase in {Phase.STARTING, Phase.READY}]
        for one in sorted(up, key=lambda one: (one.phase is Phase.READY, one.load, -one.number))[:number]:
            if one.load:
                self._turn(one, Phase.DRAINING, now)
            else:
                self._fall(one, now)

    def _fall(self, instance: Instance, now: float) -> None:
        self._turn(instance, Phase.FALLING, now)
        self._plan(instance, now + self.model.sleep_s)

    def _turn(self, instance: Instance, phase: Phase, now: float) -> None:
        instance.seconds[instance.phase] += now - instance.since
        instance.phase, instance.since = phase, now

    def _count(self, phase: Phase) -> int:
        return sum(one.phase is phase for one in self.instances)
