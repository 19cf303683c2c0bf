"""The node's memory ledger: what may be used, what is promised to whom. Pure; every change is a new ledger.

An instance's claim follows its rung: the whole estimate while it climbs or serves, the measured residue while it is
asleep, nothing without a process. A climb that does not fit may push out sleepers (``victims``), never the busy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

_NO_CLAIMS: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Ledger:
    """Bytes of host memory: ``capacity`` may be promised, ``claims`` are promised by instance."""

    capacity: int
    claims: Mapping[str, int] = field(default_factory=lambda: _NO_CLAIMS)

    @property
    def reserved(self) -> int:
        """Bytes promised to all instances."""
        return sum(self.claims.values())

    @property
    def free(self) -> int:
        """Bytes that can still be promised."""
        return max(0, self.capacity - self.reserved)

    def claim(self, instance: str, amount: int) -> Ledger:
        """Return the ledger in which ``instance`` holds exactly ``amount`` bytes, whatever it held before."""
        assert amount >= 0, amount
        return replace(self, claims=MappingProxyType({**self.claims, instance: amount}))

    def release(self, instance: str) -> Ledger:
        """Return the ledger in which ``instance`` holds nothing."""
        return replace(
            self,
            claims=MappingProxyType({name: held for name, held in self.claims.items() if name != instance}),
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """The answer to a request for memory."""

    granted: bool
    ledger: Ledger
    reason: str
    short_by: int = 0


def reserve(ledger: Ledger, instance: str, amount: int) -> Reservation:
    """Return whether ``instance`` may hold ``amount`` bytes in all, and the ledger that follows."""
    held = ledger.claims.get(instance, 0)
    short_by = amount - held - ledger.free
    if short_by > 0:
        reason = f"needs {amount} bytes and holds {held}, {ledger.free} of {ledger.capacity} are free"
        return Reservation(granted=False, ledger=ledger, reason=reason, short_by=short_by)
    return Reservation(granted=True, ledger=ledger.claim(instance, amount), reason=f"{amount} of {ledger.capacity} bytes")


@dataclass(frozen=True, slots=True)
class Sleeper:
    """An instance that could be stopped to make room: asleep, so nobody is served by it."""

    instance: str
    held: int
    idle_s: float
    wake_gain_s: float


def victims(sleepers: Iterable[Sleeper], short_by: int) -> tuple[str, ...]:
    """Return the sleepers to stop, cheapest to lose first, until ``short_by`` bytes are free; empty if they never are.

    What is lost is the time that a wake saves over a start (``wake_gain_s``), for each byte it holds, weighed by how
    recently it was used (GreedyDual-Size without the clock; FaasCache, ASPLOS'21).
    """
    order = sorted(sleepers, key=lambda s: s.wake_gain_s / max(1, s.held) / (1.0 + s.idle_s))
    chosen: list[str] = []
    freed = 0
    for sleeper in order:
        if freed >= short_by:
            break
        chosen.append(sleeper.instance)
        freed += sleeper.held
    return tuple(chosen) if freed >= short_by else ()
