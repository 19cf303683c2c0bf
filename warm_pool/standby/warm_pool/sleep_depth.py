"""How deep a device engine should sleep: what the ledger can keep decides, then what the wake costs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Depth(IntEnum):
    """Level 1 keeps the weights in pinned host memory, level 2 drops them and reads them again; STAGED ends the process."""

    STAGED = 0
    WEIGHTS_KEPT = 1
    WEIGHTS_DROPPED = 2


@dataclass(frozen=True, slots=True)
class SleepChoice:
    """The depth and why."""

    depth: Depth
    reason: str


@dataclass(frozen=True, slots=True)
class SleepCase:
    """What is known of an engine that is to sleep. Bytes of host memory, seconds as measured; None: not measured yet.

    ``holds`` is what the ledger has promised to it, ``residue`` what its processes keep when the weights are dropped,
    ``weights`` what level 1 pins on top of that; ``host_free`` can still be promised to others.
    """

    holds: int
    residue: int
    weights: int
    host_free: int
    wake_kept_s: float | None = None
    wake_dropped_s: float | None = None
    start_s: float | None = None


def sleep_depth(case: SleepCase, *, reserve: int) -> SleepChoice:
    """Return the lightest sleep that leaves ``reserve`` bytes of host memory to others.

    The wake from level 1 copies the weights over the bus, that from level 2 reads them from disk or page cache: level 1
    is chosen wherever it fits. A sleep from which a wake takes as long as a start keeps memory for nothing.
    """
    available = case.host_free + case.holds
    kept = case.residue + case.weights
    if kept + reserve <= available and not _vain(case.wake_kept_s, case.start_s):
        told = f"the weights fit into host memory: {kept} of {available} bytes, {reserve} stay free"
        return SleepChoice(Depth.WEIGHTS_KEPT, told)
    # What level 1 lacks; a wake that gains nothing is said only where memory would have allowed it.
    why = (
        f"keeping the weights needs {kept} and {reserve} in reserve of {available} bytes of host memory"
        if kept + reserve > available
        else f"a wake with weights kept takes {case.wake_kept_s:g} s, a start {case.start_s:g} s"
    )
    if case.residue > available:
        return SleepChoice(Depth.STAGED, f"{why}; the residue of {case.residue} bytes does not fit either")
    if _vain(case.wake_dropped_s, case.start_s):
        slower = f"a wake with weights dropped takes {case.wake_dropped_s:g} s, a start {case.start_s:g} s"
        return SleepChoice(Depth.STAGED, f"{why}; {slower}")
    return SleepChoice(Depth.WEIGHTS_DROPPED, why)


def _vain(wake_s: float | None, start_s: float | None) -> bool:
    return wake_s is not None and start_s is not None and wake_s >= start_s
