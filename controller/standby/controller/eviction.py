"""Whose memory is taken when a start needs some: whose fall costs the least per GB, device and host memory alike. Pure.

GreedyDual with measured prices: instead of frequency and a clock, each candidate's own gaps say how likely and how soon its
memory would have been missed (``demotion.expected_loss``). It falls to the rung where that is cheapest, not to cold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from standby.controller.arrivals import GapModel
from standby.controller.demotion import FREE, Limits, expected_loss
from standby.controller.economics import Held, Ladder, PriceVector
from standby.domain.instance import Rung

# A gain must exceed the loss by this factor: measured prices are averages, and a swap has costs that no price names.
WORTH: Final = 1.5
TENURE_S: Final = 5.0
_GRAIN_GB: Final = 1e-9


class MemoryKind(StrEnum):
    """The kinds of memory that run out."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance whose memory could be taken; ``held`` says what it would hold on each rung that it has.

    ``pinned``: by its owner (ready at least so many, a lease). ``tenure_s``: since it reached its rung.
    """

    key: str
    tenant: str
    rung: Rung
    idle_s: float
    tenure_s: float
    ladder: Ladder
    gaps: GapModel
    held: Mapping[Rung, Held]
    limits: Limits = FREE
    busy: bool = False
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """How a kind of memory is divided: ``used_gb`` by tenant, of ``limit_gb`` in all."""

    limit_gb: float
    used_gb: Mapping[str, float]

    def weight(self, tenant: str) -> float:
        """Return how much a loss of ``tenant`` counts: 1 up to an equal share, less the more it holds beyond that."""
        used = self.used_gb.get(tenant, 0.0)
        fair = self.limit_gb / len(self.used_gb) if self.used_gb else self.limit_gb
        return min(1.0, fair / used) if used > 0 else 1.0


@dataclass(frozen=True, slots=True)
class Fall:
    """Lower ``key`` to ``rung``: it frees ``freed_gb`` and costs ``loss_per_gb`` for each of them, in expectation."""

    key: str
    rung: Rung
    freed_gb: float
    loss_per_gb: float
    before: Rung
    loss: float

    @property
    def reason(self) -> str:
        """Say in words what it frees and what that costs."""
        frees = f"falling from {self.before.label} to {self.rung.label} frees {self.freed_gb:.3g} GB"
        return f"{frees} at an expected price of {self.loss:.3g}"


@dataclass(frozen=True, slots=True)
class Ask:
    """Who needs ``need_gb`` of memory of ``kind``, and what for.

    ``gain``: what it is worth to the asker, in price; None: a caller waits for it. ``patient``: memory will come free soon
    without anybody's fall, because somebody works.
    """

    kind: MemoryKind
    need_gb: float
    gain: float | None = None
    patient: bool = True


def victim(ask: Ask, candidates: Iterable[Candidate], prices: PriceVector, *, share: Share | None = None) -> Fall | None:
    """Return the fall that frees the asked memory at the least expected loss per GB; None: nobody may or should fall."""
    return next((fall for fall in ranked(ask.kind, candidates, prices, share=share) if worth(fall, ask, prices)), None)


def worth(fall: Fall, ask: Ask, prices: PriceVector) -> bool:
    """Return whether the asker gains more by ``fall`` than that is expected to cost.

    A waiting caller is worth any idle instance's rest. But many sleepers hold a little device memory each: rather than
    empty them one by one for a single start, that caller waits until somebody has finished, if that makes it late at most.
    """
    need_gb = max(ask.need_gb, _GRAIN_GB)
    if ask.gain is not None:
        return fall.loss_per_gb * WORTH * need_gb < ask.gain
    if not ask.patient or fall.before is Rung.READY or ask.kind is MemoryKind.HOST:
        return True
    return fall.loss_per_gb * need_gb < prices.wait * prices.late_after_s + prices.late


def ranked(kind: MemoryKind, candidates: Iterable[Candidate], prices: PriceVector, *, share: Share | None = None) -> list[Fall]:
    """Return the cheapest fall of each candidate that frees memory of ``kind``, least expected loss per GB first.

    Never one that is busy or pinned; one that came to its rung less than TENURE_S ago only after all others.
    """
    found: list[tuple[bool, float, str, Fall]] = []
    for one in candidates:
        if one.busy or one.pinned:
            continue
        weight = 1.0 if share is None else share.weight(one.tenant)
        best = min(falls(kind, one, prices, weight), key=lambda fall: fall.loss_per_gb, default=None)
        if best is not None:
            found.append((one.tenure_s < TENURE_S, best.loss_per_gb, best.key, best))
    return [fall for *_, fall in sorted(found, key=lambda entry: entry[:3])]


def falls(kind: MemoryKind, one: Candidate, prices: PriceVector, weight: float = 1.0) -> list[Fall]:
    """Return every fall of ``one`` that frees memory of ``kind``."""
    here = _gb(kind, one.held, one.rung)
    found = []
    for there in one.ladder:
        if there.rung >= one.rung:
            continue
        freed = here - _gb(kind, one.held, there.rung)
        if freed <= _GRAIN_GB:
            continue
        loss = expected_loss(one.ladder, one.gaps, one.idle_s, (one.rung, there.rung), prices, one.limits)
        found.append(Fall(one.key, there.rung, freed, loss / freed * weight, one.rung, loss))
    return found


def _gb(kind: MemoryKind, held: Mapping[Rung, Held], rung: Rung) -> float:
    memory = held.get(rung)
    if memory is None:
        return 0.0
    return memory.device_gb if kind is MemoryKind.DEVICE else memory.host_gb
