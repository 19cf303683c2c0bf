"""The policies to compare with: fixed timers, tiers by the clock, ski-rental, the hybrid histogram. What knows the future is
in ``oracles``, what evicts in ``greedy_dual``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from standby.controller.demotion import Step
from standby.controller.eviction import MemoryKind
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.protocol import Eviction, Resting
from standby.domain.instance import Rung

FOREVER: Final = math.inf


class Uncapped:
    """What policies have in common that learn nothing and evict nobody."""

    def arrived(self, function: int, now: float, gap_s: float | None) -> None:
        """Nothing is learnt."""

    def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:  # noqa: ARG002
        """Nobody is evicted: whoever needs memory waits."""
        return None


class Schedule(Uncapped):
    """The same for every function: each rung until an idle time in seconds; the last one has no end."""

    name = "schedule"

    def __init__(self, *stages: tuple[Rung, float]) -> None:
        self._steps = _steps(stages)

    def idle(self, function: int, now: float, idle_s: float) -> Step:  # noqa: ARG002
        """Return the first step that ends later than now."""
        return _at(self._steps, idle_s)


def no_keepalive() -> Schedule:
    """Return the policy that drops everything at once."""
    return Schedule((Rung.COLD, FOREVER))


def fixed_ttl(minutes: float) -> Schedule:
    """Return the policy that keeps everything ready for so many minutes, then drops it."""
    return Schedule((Rung.READY, minutes * 60), (Rung.COLD, FOREVER))


class SkiRental(Uncapped):
    """Demotes where what holding has cost equals what the deeper wake would cost more: never worse than twice the best.

    ``wait_price`` is per second of a caller's wait. A wake costs the wait and the device memory reserved meanwhile.
    """

    name = "ski-rental"

    def __init__(self, sizes: Sequence[float], model: CostModel, wait_price: float) -> None:
        self._steps = [_steps(envelope(size, model, wait_price)) for size in sizes]

    def idle(self, function: int, now: float, idle_s: float) -> Step:  # noqa: ARG002
        """Return the function's rung on the lower envelope."""
        return _at(self._steps[function], idle_s)


def envelope(size: float, model: CostModel, wait_price: float) -> list[tuple[Rung, float]]:
    """Return the lower envelope of ``wake + hold·t`` over all rungs: each rung on it until its idle time in seconds."""
    wakes = {rung: wake_cost(rung, size, model, wait_price) for rung in model.rungs}
    stages: list[tuple[Rung, float]] = []
    here: Rung | None = Rung.READY
    while here is not None:
        crossings = [
            ((wakes[below] - wakes[here]) / (model.hold(here, size) - model.hold(below, size)), model.hold(below, size), below)
            for below in model.rungs
            if below < here and model.hold(below, size) < model.hold(here, size)
        ]
        until, _, below = min(crossings, default=(FOREVER, 0.0, None))
        stages.append((here, max(0.0, until)))
        here = below
    return stages


def wake_cost(rung: Rung, size: float, model: CostModel, wait_price: float) -> float:
    """Return the price of one start from ``rung``: a caller's wait and the device memory that is reserved meanwhile."""
    return (wait_price + model.device_price * size) * model.wait_s(rung, size)


_BIN_S: Final = 60.0
_BINS: Final = 240
_OUTSIDE_SHARE: Final = 0.5
_EVEN_CV: Final = 2.0
_HEAD, _TAIL = 0.05, 0.99
_MARGIN: Final = 0.1
_FORECAST_PREWARM, _FORECAST_WINDOW = 0.85, 0.3


class HybridHistogram(Uncapped):
    """Serverless in the Wild (Shahrad et al., USENIX ATC 2020): a histogram of idle times in minutes per function.

    Its head says when to load again, its tail when to give up; where it says nothing, everything is kept for its whole
    range of four hours. An invocation that finds work under way counts as an idle time of zero. Loading is planned for the
    head itself. Where most idle times lie outside, the original fits an ARIMA model; here their mean is the forecast.
    """

    name = "hybrid-histogram"

    def __init__(self, sizes: Sequence[float]) -> None:
        self._counts = [[0] * _BINS for _ in sizes]
        self._squares = [0] * len(sizes)  # the sum of each count's square
        self._inside = [0] * len(sizes)
        self._outside: list[list[float]] = [[] for _ in sizes]
        self._asked = [False] * len(sizes)

    def arrived(self, function: int, now: float, gap_s: float | None) -> None:  # noqa: ARG002
        """Count the idle time that this invocation ended."""
        if not self._asked[function]:
            self._asked[function] = True
            return
        at = int((gap_s or 0.0) / _BIN_S)
        if at >= _BINS:
            self._outside[function].append(gap_s or 0.0)
            return
        counts = self._counts[function]
        self._squares[function] += 2 * counts[at] + 1
        counts[at] += 1
        self._inside[function] += 1

    def idle(self, function: int, now: float, idle_s: float) -> Step:  # noqa: ARG002
        """Return what the windows say: away until the head, ready until the tail, then away."""
        prewarm, unload = self._windows(function)
        if idle_s < prewarm:
            return Step(Rung.COLD, prewarm, "the head of the histogram is later")
        if idle_s < unload:
            return Step(Rung.READY, unload, "between head and tail")
        return Step(Rung.COLD, FOREVER, "past the tail")

    def _windows(self, function: int) -> tuple[float, float]:
        inside, outside = self._inside[function], self._outside[function]
        if outside and len(outside) / (inside + len(outside)) >= _OUTSIDE_SHARE:
            forecast = math.fsum(outside) / len(outside)
            prewarm = _FORECAST_PREWARM * forecast
            return prewarm, prewarm + _FORECAST_WINDOW * forecast
        mean = inside / _BINS
        if not inside or math.sqrt(max(0.0, self._squares[function] / _BINS - mean * mean)) / mean < _EVEN_CV:
            return 0.0, _BIN_S * _BINS
        head, tail = (_percentile(self._counts[function], inside, share) for share in (_HEAD, _TAIL))
        return head * _BIN_S * (1 - _MARGIN), (tail + 1) * _BIN_S * (1 + _MARGIN)


def _percentile(counts: Sequence[int], total: int, share: float) -> int:
    passed = 0
    for at, number in enumerate(counts):
        passed += number
        if passed >= share * total:
            return at
    return len(counts) - 1


def _steps(stages: Sequence[tuple[Rung, float]]) -> list[Step]:
    return [Step(rung, until, f"{rung.label} until {until:g} s") for rung, until in stages]


def _at(steps: Sequence[Step], idle_s: float) -> Step:
    for step in steps:
        if idle_s < step[1]:
            return step
    return steps[-1]
