"""Whether an artifact may be read into the page cache: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WarmPlan:
    """``reason`` always says why."""

    go: bool
    reason: str


@dataclass(frozen=True)
class Warmed:
    """What reading ahead has done; ``skipped`` says why nothing was read, else it is empty."""

    read_bytes: int
    skipped: str = ""


def plan_warming(needed: int, available: int, reserve: int) -> WarmPlan:
    """Return whether ``needed`` bytes may fill the page cache while ``available`` may be taken and ``reserve`` must stay.

    All in bytes; ``available`` is the kernel's MemAvailable, which counts pages of this very artifact as well. More than
    that would push out the artifact's own beginning, or the pages of what serves now.
    """
    if available - needed < reserve:
        return WarmPlan(False, f"{needed} bytes to read, {available} bytes available, of which {reserve} must stay free")
    return WarmPlan(True, f"{needed} bytes fit into {available} available bytes")
