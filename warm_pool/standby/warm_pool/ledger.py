"""The node's memory ledger: what may be used, what is promised to whom. Pure; every change is a new ledger.

Host memory and the memory of each device (GPU, MIG instance) are promised together: a claim that does not fit on one
of them is not granted on any. A claim follows its instance's rung: the whole need while it climbs or serves, the
measured residue while it is asleep, nothing without a process. Zygotes hold claims too, named ``zygote/<engine kind>``.
Who is pushed out for a climb that does not fit is decided in ``pushing``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from standby.domain.model import EngineKind

HOST: Final = "host"
_ZYGOTE: Final = "zygote/"
_NONE: Mapping[str, int] = MappingProxyType({})
_NO_CLAIMS: Mapping[str, Claim] = MappingProxyType({})
_FIT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Claim:
    """Bytes of host memory, and of each device's by its id; a device that is not named holds nothing."""

    host: int = 0
    devices: Mapping[str, int] = field(default_factory=lambda: _NONE)

    def __post_init__(self) -> None:
        assert self.host >= 0, self.host
        assert all(held >= 0 for held in self.devices.values()), self.devices

    def of(self, resource: str) -> int:
        """Return the bytes of ``HOST`` or of a device."""
        return self.host if resource == HOST else self.devices.get(resource, 0)

    @property
    def resources(self) -> tuple[str, ...]:
        """``HOST``, then every device that is named."""
        return (HOST, *sorted(self.devices))

    def at_least(self, other: Claim) -> Claim:
        """Return the larger amount of the two for each resource."""
        names = {*self.devices, *other.devices}
        return Claim(max(self.host, other.host), {name: max(self.of(name), other.of(name)) for name in names})


NOTHING: Final = Claim()


def zygote_claim(kind: EngineKind) -> str:
    """Return the name under which the zygote of an engine kind holds its memory; no instance is ever called so."""
    return f"{_ZYGOTE}{kind.value}"


@dataclass(frozen=True, slots=True)
class Ledger:
    """``capacity`` bytes of host memory and ``devices`` bytes of each device may be promised; ``claims`` are promised.

    ``cordoned`` devices get no new promises, for the reason that stands there; what is held on them stays held.
    """

    capacity: int
    claims: Mapping[str, Claim] = field(default_factory=lambda: _NO_CLAIMS)
    devices: Mapping[str, int] = field(default_factory=lambda: _NONE)
    cordoned: Mapping[str, str] = field(default_factory=lambda: _FIT)

    @property
    def reserved(self) -> int:
        """Bytes of host memory promised to all."""
        return self.reserved_of(HOST)

    @property
    def free(self) -> int:
        """Bytes of host memory that can still be promised."""
        return self.free_of(HOST)

    def capacity_of(self, resource: str) -> int:
        """Return what may be promised of ``HOST`` or of a device; nothing of a device that is not known."""
        return self.capacity if resource == HOST else self.devices.get(resource, 0)

    def reserved_of(self, resource: str) -> int:
        """Return what is promised of ``HOST`` or of a device."""
        return total(self.claims.values(), resource)

    def free_of(self, resource: str) -> int:
        """Return what can still be promised. Never negative: measured residues may exceed what was foreseen."""
        return max(0, self.capacity_of(resource) - self.reserved_of(resource))

    def held(self, holder: str) -> Claim:
        """Return what an instance or a zygote holds."""
        return self.claims.get(holder, NOTHING)

    def claim(self, holder: str, claim: Claim) -> Ledger:
        """Return the ledger in which ``holder`` holds exactly this, whatever it held before: what is, is."""
        return replace(self, claims=MappingProxyType({**self.claims, holder: claim}))

    def release(self, holder: str) -> Ledger:
        """Return the ledger in which ``holder`` holds nothing."""
        return replace(self, claims=MappingProxyType({name: held for name, held in self.claims.items() if name != holder}))

    def with_devices(self, devices: Mapping[str, int]) -> Ledger:
        """Return the ledger over these devices, in bytes by id."""
        return replace(self, devices=MappingProxyType(dict(devices)))

    def cordon(self, device: str, reason: str) -> Ledger:
        """Return the ledger that promises nothing new on ``device``; an empty reason lifts the cordon."""
        others = {name: why for name, why in self.cordoned.items() if name != device}
        return replace(self, cordoned=MappingProxyType({**others, device: reason} if reason else others))


@dataclass(frozen=True, slots=True)
class Reservation:
    """The answer to a request for memory. ``short`` is by how many bytes each resource does not suffice.

    ``hopeless``: nobody who could be pushed out would help, as a device is cordoned or the whole capacity is too small.
    """

    granted: bool
    ledger: Ledger
    reason: str
    short: Mapping[str, int] = field(default_factory=lambda: _NONE)
    hopeless: bool = False


def reserve(ledger: Ledger, holder: str, need: Claim) -> Reservation:
    """Return whether ``holder`` may hold ``need`` in all, everywhere or not at all, and the ledger that follows."""
    held = ledger.held(holder)
    barred = [name for name in need.devices if name in ledger.cordoned and need.of(name) > held.of(name)]
    if barred:
        reason = "; ".join(f"{named(name)} is cordoned: {ledger.cordoned[name]}" for name in sorted(barred))
        return Reservation(granted=False, ledger=ledger, reason=reason, hopeless=True)
    # A residue that was larger than foreseen is part of what lacks; who asks for no more than it holds lacks nothing.
    short = {
        resource: lack
        for resource in need.resources
        if (more := need.of(resource) - held.of(resource)) > 0
        and (lack := more - ledger.capacity_of(resource) + ledger.reserved_of(resource)) > 0
    }
    if not short:
        told = ", ".join(_share(ledger, need, resource) for resource in need.resources)
        return Reservation(granted=True, ledger=ledger.claim(holder, need), reason=told)
    reason = "; ".join(_lack(ledger, held, need, resource, by) for resource, by in short.items())
    hopeless = any(need.of(resource) > ledger.capacity_of(resource) for resource in short)
    return Reservation(granted=False, ledger=ledger, reason=reason, short=MappingProxyType(short), hopeless=hopeless)


def total(claims: Iterable[Claim], resource: str) -> int:
    """Return what ``claims`` hold of a resource together."""
    return sum(claim.of(resource) for claim in claims)


def named(resource: str) -> str:
    """Return ``HOST`` or a device in words."""
    return "host memory" if resource == HOST else f"device {resource}"


def _share(ledger: Ledger, need: Claim, resource: str) -> str:
    return f"{need.of(resource)} of {ledger.capacity_of(resource)} bytes of {named(resource)}"


def _lack(ledger: Ledger, held: Claim, need: Claim, resource: str, by: int) -> str:
    return (
        f"{named(resource)} is short by {by} bytes: needs {need.of(resource)} and holds {held.of(resource)}, "
        f"{ledger.free_of(resource)} of {ledger.capacity_of(resource)} are free"
    )
