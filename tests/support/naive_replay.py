"""The replay rules once more, deliberately naive: no queues of events, no timers; at each turn everything is looked at.

Slow and short. It shares no code with the engine but the values that both are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from standby.controller.demotion import Step
from standby.controller.simulator.cost_model import CostModel
from standby.domain.instance import Rung

FOREVER = float("inf")
Idle = Callable[[int, float, float], Step]


@dataclass(eq=False)
class Life:
    """One instance: what it is at, since when, and the ends of its executions."""

    number: int
    rung: Rung
    doing: str = "rest"  # rest, start, serve
    began: float = 0.0
    start_ends: float = FOREVER
    planned: int = 0  # order in which the present start or step was planned
    demanded: bool = False
    idle_from: float = 0.0
    until: float = FOREVER
    runs: list[float] = field(default_factory=list)
    was: Rung = Rung.COLD
    ready_at: float = -1.0


@dataclass
class Tally:
    """What was counted of one function."""

    waits: list[tuple[Rung, float]] = field(default_factory=list)
    spans: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("idle", "start", "asleep", "staged"), 0.0))


class OneFunction:
    """Functions without caps never touch each other, so each is played alone."""

    def __init__(self, number: int, size: float, model: CostModel, idle: Idle, floor: Rung, end: float) -> None:
        self.number, self.size, self.model, self.idle, self.floor, self.end = number, size, model, idle, floor, end
        self.disk = floor
        self.lives = [Life(0, floor)]
        self.queue: list[float] = []
        self.tally = Tally()
        self.now = 0.0
        self.turn = 0

    def play(self, arrivals: Sequence[float]) -> Tally:
        """Take the soonest of all things that can happen, until nothing can."""
        coming = list(arrivals)
        while True:
            things: list[tuple[float, int, int, str, Life | None]] = []
            for life in self.lives:
                things += [(end, 0, life.number, "done", life) for end in life.runs]
                if life.doing == "start":
                    things.append((life.start_ends, 1, life.planned, "ready", life))
                if life.doing == "rest" and life.idle_from + life.until < self.end:
                    things.append((life.idle_from + life.until, 1, life.planned, "step", life))
            if coming:
                things.append((coming[0], 2, 0, "arrival", None))
            if not things:
                break
            self.now, _, _, what, who = min(things, key=lambda thing: thing[:3])
            if what == "arrival":
                self.arrive(coming.pop(0))
            else:
                getattr(self, what)(who)
        for life in self.lives:
            self.now = max(self.end, self.now)
            self.change(life, life.doing)
        return self.tally

    def change(self, life: Life, doing: str) -> None:
        """Count what it did so far."""
        span = max(0.0, min(self.now, self.end) - max(life.began, self.model.warm_up_s))
        name = {"start": "start", "serve": "serve"}.get(life.doing)
        if name is None:
            name = {Rung.READY: "idle", Rung.ASLEEP: "asleep", Rung.STAGED: "staged"}.get(life.rung)
        if name == "staged" and life is not self.lives[0]:
            name = None
        if name not in {None, "serve"}:
            self.tally.spans[name] += span
        life.doing, life.began = doing, self.now

    def serve(self, life: Life, came: float, rung: Rung | None) -> None:
        if rung is not None and came >= self.model.warm_up_s:
            self.tally.waits.append((rung, self.now - came))
        if life.doing == "rest":
            self.change(life, "serve")
        life.runs.append(self.now + self.model.exec_s)

    def arrive(self, came: float) -> None:
        for life in sorted(self.lives, key=lambda one: one.number):
            if life.rung is Rung.READY and life.doing != "start" and len(life.runs) < self.model.slots:
                self.serve(life, came, None)
                return
        self.queue.append(came)
        starting = [life for life in self.lives if life.doing == "start"]
        clears = sum(self.model.slots * (1 + self.model.wait_s(life.rung, self.size) / self.model.exec_s) for life in starting)
        if len(self.queue) > clears:
            able = [life for life in self.lives if life.doing == "rest" and life.rung is not Rung.READY]
            if not able:
                number = min(set(range(len(self.lives) + 1)) - {life.number for life in self.lives})
                able = [Life(number, self.disk, began=self.now, idle_from=self.now)]
                self.lives = sorted([*self.lives, *able], key=lambda life: life.number)
            self.start(max(able, key=lambda life: (life.rung, -life.number)), demanded=True)

    def start(self, life: Life, *, demanded: bool) -> None:
        self.change(life, "start")
        life.start_ends = self.now + self.model.wait_s(life.rung, self.size)
        life.demanded, life.until = demanded, FOREVER
        self.turn += 1
        life.planned = self.turn

    def ready(self, life: Life) -> None:
        self.change(life, "rest")
        life.was, life.rung, life.ready_at = life.rung, Rung.READY, self.now
        while self.queue and len(life.runs) < self.model.slots:
            self.serve(life, self.queue.pop(0), life.was)
        if not life.runs:
            if life.demanded:
                life.idle_from = self.now
            self.ask(life, self.now - life.idle_from)

    def done(self, life: Life) -> None:
        life.runs.remove(min(life.runs))
        if self.queue:
            came = self.queue.pop(0)
            self.serve(life, came, life.was if came < life.ready_at else Rung.READY)
        elif not life.runs:
            self.change(life, "rest")
            life.idle_from = self.now
            self.ask(life, 0.0)

    def step(self, life: Life) -> None:
        self.ask(life, life.until)

    def ask(self, life: Life, idle_s: float) -> None:
        rung, until, _ = self.idle(self.number, self.now, idle_s)
        rung = max(rung, self.floor)
        life.until = until
        self.turn += 1
        life.planned = self.turn
        if rung > life.rung:
            self.start(life, demanded=False)
        elif rung < life.rung:
            self.fall(life, rung, keep=until != FOREVER)

    def fall(self, life: Life, rung: Rung, *, keep: bool) -> None:
        self.change(life, "rest")
        life.rung = rung
        if rung <= Rung.STAGED:
            self.disk = rung
            if len(self.lives) > 1 and not keep:
                self.lives.remove(life)
