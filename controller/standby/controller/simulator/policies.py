"""standby's own policies as the simulator sees them: the very decisions of the live controller."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from standby.controller.arrivals import GapModel
from standby.controller.demotion import FOREVER, Limits, Step, expected_loss, hold
from standby.controller.economics import Held, Ladder, PriceVector, RungCost, Scarcity, ladder
from standby.controller.eviction import Ask, Candidate, Fall, MemoryKind, ranked, worth
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.protocol import Eviction, Resting
from standby.domain.instance import Rung


class Priced:
    """Demotes, climbs ahead and evicts by the live controller's functions, over each function's own gaps."""

    def __init__(self, name: str, sizes_gb: Sequence[float], model: CostModel, prices: PriceVector, limits: Limits) -> None:
        self.name = name
        self._prices = prices
        self._limits = limits
        self._model = model
        self._sizes = sizes_gb
        self._ladders = [ladder_of(model, size) for size in sizes_gb]
        self._levels = [0] * len(sizes_gb)  # the scarcity of host memory that each ladder was made for
        self._scarcity = Scarcity()
        self._held = [held_by(model, size) for size in sizes_gb]
        self._gaps = [GapModel() for _ in sizes_gb]
        self._told = [Rung.READY] * len(sizes_gb)
        self._order: tuple[MemoryKind, float, list[Fall]] | None = None
        self._asker: tuple[int, float, bool] | None = None  # function, idle time, whether it climbs; None: a caller waits

    def arrived(self, function: int, now: float, gap_s: float | None) -> None:
        """Learn the gap that this invocation ended."""
        self._asker = None
        if gap_s is not None:
            self._gaps[function].observe(gap_s, now)

    def idle(self, function: int, now: float, idle_s: float) -> Step:
        """Ask the live controller's decision."""
        self._scarcity = self._scarcity.seen(now, lacked=False)
        step = hold(self._ladder(function), self._gaps[function], idle_s, self._prices, self._limits)
        self._asker = (function, idle_s, idle_s > 0 and step.rung > self._told[function])
        self._told[function] = step.rung
        return step

    def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:
        """Ask the live controller's decision; a climb ahead of demand takes nobody's memory."""
        gain = None
        if kind is MemoryKind.HOST:
            self._scarcity = self._scarcity.seen(now, lacked=True)
            gain = self._gain_of_sleep()
        if kind is MemoryKind.DEVICE and self._asker is not None and self._asker[2]:
            return None
        ask = Ask(kind, need_gb, gain=None if gain is None else gain * need_gb)
        here = {f"{one.function}/{one.number}": one.rung for one in resting}
        for fall in self._ranked(kind, resting, now):
            if here.get(fall.key) is fall.before:
                if not worth(fall, ask, self._prices):
                    return None
                function, _, number = fall.key.partition("/")
                return Eviction(int(function), int(number), fall.rung, fall.reason)
        return None

    def _ranked(self, kind: MemoryKind, resting: Sequence[Resting], now: float) -> list[Fall]:
        # Asked again for the same need, the order is still the same.
        if self._order is None or self._order[:2] != (kind, now):
            self._order = (kind, now, ranked(kind, self._candidates(resting), self._prices))
        return self._order[2]

    def _ladder(self, function: int) -> Ladder:
        if self._levels[function] != self._scarcity.level:
            self._levels[function] = self._scarcity.level
            dearer = replace(self._model, host_price=self._model.host_price * self._scarcity.factor)
            self._ladders[function] = ladder_of(dearer, self._sizes[function])
        return self._ladders[function]

    def _gain_of_sleep(self) -> float | None:
        if self._asker is None:
            return None
        function, idle_s, _ = self._asker
        lost = expected_loss(
            self._ladders[function], self._gaps[function], idle_s, (Rung.ASLEEP, Rung.STAGED), self._prices, self._limits
        )
        return lost / self._held[function][Rung.ASLEEP].host_gb

    def _candidates(self, resting: Iterable[Resting]) -> list[Candidate]:
        return [
            Candidate(
                key=f"{one.function}/{one.number}",
                tenant="",
                rung=one.rung,
                idle_s=one.idle_s,
                tenure_s=FOREVER,
                ladder=self._ladders[one.function],
                gaps=self._gaps[one.function],
                held=self._held[one.function],
                limits=self._limits,
            )
            for one in resting
        ]


def ladder_of(model: CostModel, size_gb: float) -> Ladder:
    """Return the ladder of a model of ``size_gb`` whose weights stay on disk."""
    rungs = (rung for rung in model.rungs if rung is not Rung.COLD)
    return ladder(RungCost(rung, model.hold(rung, size_gb), model.wait_s(rung, size_gb)) for rung in rungs)


def held_by(model: CostModel, size_gb: float) -> Mapping[Rung, Held]:
    """Return the memory that a model of ``size_gb`` holds on each rung."""
    return {rung: Held(at.on_device(size_gb), at.host * size_gb, at.disk * size_gb) for rung, at in model.rungs.items()}


def ours(name: str, sizes_gb: Sequence[float], model: CostModel, prices: PriceVector) -> Priced:
    """Return the policy called ``name``, one of NAMES. Raises KeyError for another."""
    return Priced(name, sizes_gb, model, prices, _LIMITS[name])


_LIMITS: Final[Mapping[str, Limits]] = {
    "standby": Limits(),
    "standby-no-prewarm": Limits(prewarm=False),
    "standby-worst-case": Limits(worst_case=True),
}
NAMES: Final = tuple(_LIMITS)
