"""What holding a rung costs and what a caller's wait costs, in one currency, and the ladder of rungs built from measurements.

The unit of price is one GB of device memory held for one second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Final

from standby.domain.endpoint import PricePreset
from standby.domain.errors import ConfigurationError
from standby.domain.instance import Rung
from standby.domain.prices import Footprint, ModelPrices, Transition

GB: Final = 1e9
HIGHEST_PRICE: Final = 1e9
_LATE_IN_WAITS: Final = 10.0
_PERIOD_S: Final = 60.0
_STEPS_PER_OCTAVE: Final = 4
_RISE: Final = 2
_PRESET_WAITS: Final[Mapping[str, float]] = MappingProxyType(
    {PricePreset.FRUGAL: 25.0, PricePreset.BALANCED: 100.0, PricePreset.SNAPPY: 400.0}
)
PRESET_NAMES: Final = tuple(_PRESET_WAITS)
# What a climb from each rung is called in a node's measurements. A climb from cold is a fetch and then a start.
_CLIMB: Final[Mapping[Rung, tuple[Transition, ...]]] = MappingProxyType(
    {
        Rung.COLD: (Transition.FETCH, Transition.START),
        Rung.STAGED: (Transition.START,),
        Rung.ZYGOTE: (Transition.FORK,),
        Rung.ASLEEP: (Transition.WAKE,),
    }
)


@dataclass(frozen=True, slots=True)
class PriceVector:
    """What an operator weighs: ``device``, ``host`` and ``disk`` per GB·s held, ``wait`` per second that a caller waits.

    ``late`` comes on top, once, for every caller who waits longer than ``late_after_s``: a price linear in time alone leaves
    the last per mille of waits to chance. Raises ConfigurationError for what is negative, not a number or above 1e9.
    """

    device: float = 1.0
    host: float = 0.1
    disk: float = 0.005
    wait: float = 100.0
    late: float = 1000.0
    late_after_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= HIGHEST_PRICE:
                raise ConfigurationError(
                    f"price {field.name} is {value!r}, it must be a number from 0 to {HIGHEST_PRICE:g}",
                    remedy=f"use the price of one GB of device memory for one second as unit, or a preset: {_names()}",
                )

    def with_wait(self, wait: float) -> PriceVector:
        """Return the same at another price of a wait; who waits too long is ten times as dear, as far as prices go."""
        return replace(self, wait=wait, late=min(_LATE_IN_WAITS * wait, HIGHEST_PRICE))

    def of_wait(self, seconds: float) -> float:
        """Return the price of one caller's waiting ``seconds``."""
        return self.wait * seconds + (self.late if seconds > self.late_after_s else 0.0)

    def of_memory(self, device_gb: float, host_gb: float, disk_gb: float) -> float:
        """Return the price of holding this much memory for one second."""
        return self.device * device_gb + self.host * host_gb + self.disk * disk_gb


def preset(name: str) -> PriceVector:
    """Return the prices called ``name``: frugal, balanced or snappy. Raises ConfigurationError for another name."""
    wait = _PRESET_WAITS.get(name)
    if wait is None:
        raise ConfigurationError(f"price preset {name!r} is not known", remedy=f"use one of {_names()}")
    return PriceVector().with_wait(wait)


def _names() -> str:
    return ", ".join(PRESET_NAMES)


@dataclass(frozen=True, slots=True)
class RungCost:
    """One rung of one model on one node: ``hold`` is its price per second while held, ``wait_s`` the seconds until ready."""

    rung: Rung
    hold: float
    wait_s: float


Ladder = tuple[RungCost, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """GB of memory that one instance holds on one rung, by kind."""

    device_gb: float = 0.0
    host_gb: float = 0.0
    disk_gb: float = 0.0


@dataclass(frozen=True, slots=True)
class Scarcity:
    """How much dearer than its price a kind of memory is, because it runs out: the price at which it just suffices.

    ``level`` counts quarters of an octave: a minute in which memory was lacking raises the price by two, any other lowers it by
    one. It rises faster than it falls because a lack is seen only when somebody has lost something.
    """

    level: int = 0
    highest: int = 16
    since: float = -math.inf
    lacked: bool = False

    @property
    def factor(self) -> float:
        """Return by how much the price is multiplied: 1 while there is enough."""
        return math.exp2(self.level / _STEPS_PER_OCTAVE)

    def seen(self, now: float, *, lacked: bool) -> Scarcity:
        """Return the scarcity after ``lacked``, whether memory was lacking at ``now``, on a monotonic clock in seconds."""
        lacked = lacked or self.lacked
        passed = now - self.since
        if passed < _PERIOD_S or not math.isfinite(now):
            return self if lacked == self.lacked else replace(self, lacked=lacked)
        quiet = int(min(passed / _PERIOD_S, self.highest))
        level = min(self.level + _RISE, self.highest) if lacked else max(self.level - quiet, 0)
        return replace(self, level=level, since=now, lacked=False)


def ladder(rungs: Iterable[RungCost]) -> Ladder:
    """Return the rungs that are worth having, warmest first.

    A rung is left out where a warmer one costs no more to hold (dominated), and where a number is negative or not finite: what
    cannot be priced cannot be weighed. Of one rung the last counts. Ready stays whatever it costs. Raises ConfigurationError
    where ready is absent.
    """
    priced = {one.rung: one for one in rungs if _priced(one)}
    known = [priced[rung] for rung in sorted(priced, reverse=True)]
    if not known or known[0].rung is not Rung.READY:
        raise ConfigurationError("a ladder without the rung ready", remedy="give the price of holding ready, finite, 0 or more")
    kept = [known[0]]
    for one in known[1:]:
        if one.hold >= kept[-1].hold:
            continue
        # Colder and yet sooner ready: the warmer one is the one that nobody needs.
        while len(kept) > 1 and kept[-1].wait_s >= one.wait_s:
            kept.pop()
        kept.append(one)
    return tuple(kept)


def measured(prices: ModelPrices, weights_gb: float, vector: PriceVector, *, zygote: bool = False, cold: bool = True) -> Ladder:
    """Return the ladder of a model as its node measured it; rungs whose climb was never measured are left out.

    ``weights_gb``: its size on the node's disk. ``zygote``: the engine has one there; its memory is the node's, shared by all,
    and costs nothing here. ``cold``: the weights may leave the disk. Raises ConfigurationError where memory was not measured.
    """
    held = {
        Rung.READY: _ready(prices.footprint, weights_gb),
        Rung.ASLEEP: _asleep(prices.footprint, weights_gb),
        Rung.ZYGOTE: Held(disk_gb=weights_gb) if zygote else None,
        Rung.STAGED: Held(disk_gb=weights_gb),
        Rung.COLD: Held() if cold else None,
    }
    rungs = [
        RungCost(rung, vector.of_memory(memory.device_gb, memory.host_gb, memory.disk_gb), wait)
        for rung, memory in held.items()
        if memory is not None and (wait := _wait(prices, rung)) is not None
    ]
    return ladder(rungs)


def wake_price(one: RungCost, ready: RungCost, vector: PriceVector) -> float:
    """Return what a request that finds rung ``one`` costs: the caller's wait and the memory reserved while it starts."""
    return vector.of_wait(one.wait_s) + ready.hold * one.wait_s


def _priced(one: RungCost) -> bool:
    return math.isfinite(one.hold) and math.isfinite(one.wait_s) and one.hold >= 0 and one.wait_s >= 0


def _wait(prices: ModelPrices, rung: Rung) -> float | None:
    steps = [prices.transitions.get(step) for step in _CLIMB.get(rung, ())]
    seconds = [step.seconds for step in steps if step is not None]
    return sum(seconds) if len(seconds) == len(steps) else None


def _ready(footprint: Footprint, weights_gb: float) -> Held | None:
    if footprint.awake is None and footprint.device_awake is None:
        return None
    return Held((footprint.device_awake or 0) / GB, (footprint.awake or 0) / GB, weights_gb)


def _asleep(footprint: Footprint, weights_gb: float) -> Held | None:
    if footprint.asleep is None:
        return None
    return Held((footprint.device_asleep or 0) / GB, footprint.asleep / GB, weights_gb)
