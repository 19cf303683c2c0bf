"""What the engine knows of each function and each of its instances."""

from __future__ import annotations

from collections import deque
from typing import Final

from standby.controller.simulator.cost_model import CostModel
from standby.domain.instance import Rung

NEVER: Final = float("inf")


class Instance:
    """One instance. ``since`` is when it began what it does now: resting on ``rung``, starting, or (ready) being idle."""

    __slots__ = (
        "busy",
        "demanded",
        "function",
        "gone",
        "idle_at",
        "number",
        "ready_at",
        "rung",
        "since",
        "starting",
        "step_at",
        "timer_at",
        "until",
        "waiting",
        "woke_from",
    )

    def __init__(self, function: Function, number: int, rung: Rung, now: float) -> None:
        self.function = function
        self.number = number
        self.rung = rung
        self.busy = 0  # executions
        self.since = now
        self.idle_at = now  # where its idle time counts from
        self.starting = False
        self.waiting = False  # it would start, and memory is lacking
        self.demanded = False  # its start was wanted by somebody who waits
        self.gone = False
        self.woke_from = rung  # its last start
        self.ready_at = 0.0
        self.until = NEVER  # the idle time at which the policy wants to be asked again, and when that is
        self.step_at = NEVER
        self.timer_at = NEVER  # the earliest timer of this instance in the heap; a later one is set when it rings


class Function:
    """One function: its queue, its instances, and what was counted of it. Spans in seconds, summed over instances."""

    __slots__ = (
        "asleep_s",
        "disk",
        "disk_s",
        "idle_at",
        "idle_s",
        "instances",
        "number",
        "pending",
        "queue",
        "ready",
        "size",
        "start_s",
        "starting",
        "starts",
        "waits",
        "wakes",
    )

    def __init__(self, number: int, size: float, model: CostModel, disk: Rung) -> None:
        self.number = number
        self.size = size
        self.wakes = {rung: model.wait_s(rung, size) for rung in model.rungs}
        self.disk = disk  # the rung from which an additional instance starts
        self.queue: deque[float] = deque()
        self.pending = 0  # queued and running
        self.idle_at: float | None = None  # when pending last became 0; None: never
        self.ready: list[Instance] = []  # by number
        self.starting: list[Instance] = []  # those that wait for memory too
        self.instances: list[Instance] = [Instance(self, 0, disk, 0.0)]  # all, by number; never empty
        self.waits: dict[Rung, list[float]] = {rung: [] for rung in model.rungs}
        self.starts: dict[Rung, int] = dict.fromkeys(model.rungs, 0)
        self.idle_s = 0.0
        self.start_s = 0.0
        self.asleep_s = 0.0
        self.disk_s = 0.0

    def best_resting(self) -> Instance | None:
        """Return the warmest instance that neither works nor starts; of equals the lowest-numbered."""
        best = None
        for instance in self.instances:
            if instance.rung is Rung.READY or instance.starting or instance.waiting:
                continue
            if best is None or instance.rung > best.rung:
                best = instance
        return best

    def one_more(self, now: float) -> Instance:
        """Return a new instance on the function's disk rung, with the lowest number that is free."""
        number = next((n for n, there in enumerate(self.instances) if there.number != n), len(self.instances))
        instance = Instance(self, number, self.disk, now)
        self.instances.insert(number, instance)
        return instance

    def open(self, instance: Instance) -> None:
        """Let arrivals take slots of ``instance``."""
        at = next((i for i, there in enumerate(self.ready) if there.number > instance.number), len(self.ready))
        self.ready.insert(at, instance)
