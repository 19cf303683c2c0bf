"""Bounds: policies that know the arrivals to come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np

from standby.controller.demotion import Step
from standby.controller.simulator.baselines import FOREVER, Uncapped
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.trace import Seconds
from standby.domain.instance import Rung

# A start that is planned to end with an arrival ends this much earlier: two sums of seconds are not equal to the last bit.
_EARLY_S: Final = 1e-3
_RESTS: Final = (Rung.ASLEEP, Rung.STAGED, Rung.COLD)


class Future:
    """When each instance will be needed next, if nobody ever waits: instance k whenever more than 16·k run at once."""

    def __init__(self, arrivals: Sequence[Seconds], model: CostModel) -> None:
        self._needs: list[list[list[float]]] = []
        self._sums: list[list[float]] = []
        for times in arrivals:
            running = np.arange(1, len(times) + 1) - np.searchsorted(times, times - model.exec_s, side="right")
            most = int(running.max()) if len(times) else 0
            levels = range(0, most, model.slots)
            self._needs.append([times[running > level].tolist() for level in levels] or [[]])
            self._sums.append([0.0, *np.cumsum(times).tolist()])

    def next(self, function: int, number: int, now: float) -> float | None:
        """Return when it is needed after ``now``; None: never again."""
        levels = self._needs[function]
        if number >= len(levels):
            return None
        times = levels[number]
        at = bisect_right(times, now)
        return times[at] if at < len(times) else None

    def waits(self, function: int, needed: float, wake_s: float) -> float:
        """Return the seconds that all callers wait together if a start of ``wake_s`` begins with the arrival at ``needed``."""
        times, sums, ready = self._needs[function][0], self._sums[function], needed + wake_s
        first, last = bisect_left(times, needed), bisect_left(times, ready)
        return (last - first) * ready - (sums[last] - sums[first])


class KnowsGaps(Uncapped):
    """The bound without prediction: knows how long each idle time will be and who comes during the wake; wakes on demand.

    It holds the one rung that makes this gap cheapest; greedy, since it weighs one gap at a time. Of an additional instance
    it counts one caller: the others are served by the slots that come free meanwhile.
    """

    name = "knows-gaps"

    def __init__(self, future: Future, sizes: Sequence[float], model: CostModel, wait_price: float) -> None:
        self._future = future
        self._sizes = sizes
        self._model = model
        self._wait_price = wait_price
        self._holds = [{rung: model.hold(rung, size) for rung in model.rungs} for size in sizes]

    def idle_instance(self, function: int, number: int, now: float, idle_s: float) -> Step:  # noqa: ARG002
        """Return the cheapest rung for the gap that has begun, held to its end."""
        needed = self._future.next(function, number, now)
        if needed is None:
            return Step(Rung.COLD, FOREVER, "never asked again")
        gap, size, model, holds = needed - now, self._sizes[function], self._model, self._holds[function]

        def cost(rung: Rung) -> float:
            wake = model.wait_s(rung, size)
            waits = self._future.waits(function, needed, wake) if number == 0 else wake
            return holds[rung] * gap + model.device_price * size * wake + self._wait_price * waits

        return Step(min(holds, key=cost), FOREVER, f"cheapest for {gap:g} s")

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        """As ``idle_instance`` of the lowest-numbered one."""
        return self.idle_instance(function, 0, now, idle_s)


class Clairvoyant(Uncapped):
    """Knows every arrival and starts early enough: nobody waits, and each gap costs the least that it can."""

    name = "clairvoyant"

    def __init__(self, future: Future, sizes: Sequence[float], model: CostModel, *, prestaged: bool) -> None:
        self._future = future
        self._sizes = sizes
        self._model = model
        self._rests = _RESTS[:2] if prestaged else _RESTS

    def registered(self, function: int, now: float) -> Step:
        """Return when the first start must begin."""
        needed = self._future.next(function, 0, now)
        rest = self._rests[-1]
        if needed is None:
            return Step(rest, FOREVER, "never asked")
        begins = needed - now - self._model.wait_s(rest, self._sizes[function]) - _EARLY_S
        return Step(rest, begins, "until the first start") if begins > 0 else Step(Rung.READY, FOREVER, "asked too soon")

    def idle_instance(self, function: int, number: int, now: float, idle_s: float) -> Step:
        """Return the cheapest rung for the rest of the gap, until the start from it must begin."""
        needed = self._future.next(function, number, now)
        if needed is None:
            return Step(self._rests[-1], FOREVER, "never asked again")
        gap, size, model = needed - now, self._sizes[function], self._model
        best, least = Rung.READY, model.hold(Rung.READY, size) * gap
        for rung in self._rests:
            early = model.wait_s(rung, size) + _EARLY_S
            cost = model.hold(rung, size) * (gap - early) + model.hold(Rung.READY, size) * early
            if gap > early + _EARLY_S and cost < least:
                best, least = rung, cost
        if best is Rung.READY:
            return Step(Rung.READY, FOREVER, "ready until it is needed")
        return Step(best, idle_s + gap - model.wait_s(best, size) - _EARLY_S, f"{best.label} until the start must begin")

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        """As ``idle_instance`` of the lowest-numbered one."""
        return self.idle_instance(function, 0, now, idle_s)
