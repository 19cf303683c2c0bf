"""Which cached artifacts have to go for a new one: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """One cached artifact as the decision sees it; ``last_used`` in seconds of any one clock."""

    digest: str
    bytes: int
    last_used: float
    pinned: bool


@dataclass(frozen=True)
class Room:
    """The space there is, in bytes. ``reserved`` belongs to downloads that run; ``disk_free`` is the volume's."""

    capacity: int
    reserved: int
    disk_free: int


@dataclass(frozen=True)
class EvictionPlan:
    """``victims`` in order, empty when nothing has to go or when it would not help; ``reason`` always says why."""

    fits: bool
    victims: tuple[str, ...]
    reason: str


def plan_eviction(candidates: Sequence[Candidate], room: Room, incoming: int, to_write: int | None = None) -> EvictionPlan:
    """Return what to evict so that ``incoming`` bytes fit under the cap and on the disk: least recently used first.

    ``to_write`` is what the disk has to take on the way, when that is not ``incoming``: more for an archive that is
    unpacked beside itself, less for a download that was begun before.

    Pinned artifacts never go. When the rest does not suffice nothing goes: a cache emptied for nothing would make the
    next activation slow as well.
    """
    if incoming > room.capacity:
        return EvictionPlan(False, (), f"{incoming} bytes are more than the cache's cap of {room.capacity} bytes")
    used = sum(candidate.bytes for candidate in candidates) + room.reserved
    missing = max(used + incoming - room.capacity, (incoming if to_write is None else to_write) - room.disk_free)
    if missing <= 0:
        return EvictionPlan(True, (), f"{incoming} bytes fit: {used} of {room.capacity} bytes are used")
    victims, freed = _least_recently_used(candidates, missing)
    if freed >= missing:
        return EvictionPlan(True, victims, f"{incoming} bytes need {missing} more: evicting {freed} bytes")
    held = used - sum(candidate.bytes for candidate in candidates if not candidate.pinned)
    return EvictionPlan(
        False,
        (),
        f"{incoming} bytes do not fit: cap {room.capacity} bytes, {held} bytes in use or being downloaded, "
        f"{room.disk_free} bytes free on the disk",
    )


def _least_recently_used(candidates: Sequence[Candidate], missing: int) -> tuple[tuple[str, ...], int]:
    chosen: list[str] = []
    freed = 0
    for candidate in sorted((c for c in candidates if not c.pinned), key=lambda c: (c.last_used, c.digest)):
        if freed >= missing:
            break
        chosen.append(candidate.digest)
        freed += candidate.bytes
    return tuple(chosen), freed
