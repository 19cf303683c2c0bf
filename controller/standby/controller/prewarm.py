"""Climbing ahead of a request that is expected: what may be climbed now, and what it brought afterwards. Pure.

When a climb pays is part of the plan of every endpoint (``horizon``: the expected wake that it saves exceeds what it holds).
Here those wishes are weighed against each other: they have the lowest priority, take nobody's memory, stay within a budget
and are dropped as soon as memory is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from standby.controller.demotion import Step
from standby.controller.economics import Ladder, PriceVector, RungCost, wake_price
from standby.domain.instance import Rung

_GRAIN_GB: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Budget:
    """What climbs ahead of demand may take of one node: ``share`` of its device memory and ``at_once`` climbs at a time."""

    share: float = 0.25
    at_once: int = 2


@dataclass(frozen=True, slots=True)
class Wish:
    """A climb that its endpoint's plan asks for: from ``rung`` to ``step.rung``; ``saves`` is the expected price it avoids."""

    key: str
    rung: Rung
    step: Step
    device_gb: float
    saves: float


@dataclass(frozen=True, slots=True)
class Room:
    """One node's device memory in GB: all of it, what is free, and what climbs ahead of demand hold already."""

    total_gb: float
    free_gb: float
    ahead_gb: float = 0.0
    climbing: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a wish is granted, and why."""

    wish: Wish
    granted: bool
    reason: str


def grant(wishes: Iterable[Wish], room: Room, budget: Budget, *, wanted: bool) -> tuple[Verdict, ...]:
    """Return a verdict for each wish, those that save most per GB first.

    ``wanted``: a request waits for memory or for a start on this node; then nothing is granted.
    """
    free, ahead, climbing = room.free_gb, room.ahead_gb, room.climbing
    verdicts = []
    for wish in sorted(wishes, key=lambda one: (-one.saves / max(one.device_gb, _GRAIN_GB), one.key)):
        fault = _fault(wish, free, budget.share * room.total_gb - ahead, budget.at_once - climbing, wanted=wanted)
        if not fault:
            free, ahead, climbing = free - wish.device_gb, ahead + wish.device_gb, climbing + 1
        verdicts.append(Verdict(wish, not fault, fault or wish.step.reason))
    return tuple(verdicts)


def _fault(wish: Wish, free_gb: float, left_gb: float, left: int, *, wanted: bool) -> str:
    if wish.step.rung <= wish.rung:
        return f"{wish.step.rung.label} is not above {wish.rung.label}"
    if wanted:
        return "a request waits for this node"
    if left <= 0:
        return "as many climb ahead of demand as may at once"
    if wish.device_gb > free_gb + _GRAIN_GB:
        return f"it needs {wish.device_gb:.3g} GB of device memory and {max(free_gb, 0.0):.3g} GB are free"
    if wish.device_gb > left_gb + _GRAIN_GB:
        return f"it needs {wish.device_gb:.3g} GB and climbs ahead of demand have {max(left_gb, 0.0):.3g} GB left"
    return ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a climb ahead of demand cost, what it saved, and the difference: above 0 it had better not been made."""

    paid: float
    saved: float

    @property
    def regret(self) -> float:
        """Return how much more it cost than it saved."""
        return self.paid - self.saved


def outcome(
    ladder: Ladder, before: Rung, after: Rung, prices: PriceVector, *, held_s: float, came_after_s: float | None
) -> Outcome:
    """Return what a climb from ``before`` to ``after`` brought, once it is known. Raises KeyError for an unknown rung.

    ``held_s``: seconds that ``after`` was held; ``came_after_s``: from the climb's begin to the request, None: it never came.
    """
    rungs: dict[Rung, RungCost] = {one.rung: one for one in ladder}
    low, high, ready = rungs[before], rungs[after], ladder[0]
    paid = ready.hold * low.wait_s + max(0.0, high.hold - low.hold) * held_s
    if came_after_s is None:
        return Outcome(paid, 0.0)
    if came_after_s >= low.wait_s:
        return Outcome(paid, wake_price(low, ready, prices) - wake_price(high, ready, prices))
    # Who comes while it climbs waits for the rest; the memory of the climb would have been reserved for the wake as well.
    left = low.wait_s - came_after_s
    return Outcome(paid, wake_price(low, ready, prices) - prices.of_wait(left))
