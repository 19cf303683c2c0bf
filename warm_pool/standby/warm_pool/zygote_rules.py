"""When a zygote is replaced, and how long to wait after one that did not hatch. Pure decisions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_FIRST_BACK_OFF_S: Final = 1.0
_LONGEST_BACK_OFF_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ZygoteLimits:
    """Settings of all zygotes of a node; times in seconds."""

    max_growth: float = 1.5
    """Resident bytes, as a multiple of those right after it had preloaded, above which it is replaced."""
    max_age_s: float = 86400.0
    max_forks: int = 0
    """0: any number."""
    keep_s: float = 300.0
    """From the last instance's leaving to the zygote's end."""
    look_s: float = 60.0
    """Between two looks at its size and at the version that is installed."""
    hatch_limit_s: float = 300.0


@dataclass(frozen=True, slots=True)
class ZygoteFacts:
    """What was seen of a zygote. Sizes in bytes, ``age_s`` in seconds. ``failure``: why it is of no use; empty: it is."""

    failure: str
    age_s: float
    resident: int
    resident_at_start: int
    forks: int
    version: str
    """What was installed when it was hatched."""
    installed: str
    """What is installed now."""


class Fate(StrEnum):
    """What to do with a zygote."""

    KEEP = "keep"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and why in words; the reason is empty for KEEP."""

    fate: Fate
    reason: str = ""


def judge(facts: ZygoteFacts, limits: ZygoteLimits) -> Verdict:
    """Return whether the zygote is replaced. An unknown version (empty) proves nothing."""
    if facts.failure:
        return Verdict(Fate.REPLACE, facts.failure)
    if facts.version and facts.installed and facts.version != facts.installed:
        return Verdict(Fate.REPLACE, f"{facts.installed} is installed, it has imported {facts.version}")
    if facts.resident > facts.resident_at_start * limits.max_growth:
        grown = f"{facts.resident / 2**20:.0f} MiB from {facts.resident_at_start / 2**20:.0f} MiB"
        return Verdict(Fate.REPLACE, f"it has grown to {grown}, the limit is {limits.max_growth:g} times")
    if facts.age_s > limits.max_age_s:
        return Verdict(Fate.REPLACE, f"it is {facts.age_s:.0f} s old, the limit is {limits.max_age_s:g} s")
    if limits.max_forks and facts.forks >= limits.max_forks:
        return Verdict(Fate.REPLACE, f"it has forked {facts.forks} times, the limit is {limits.max_forks}")
    return Verdict(Fate.KEEP)


def back_off_s(failures: int) -> float:
    """Return the seconds to wait after so many failed hatchings in a row: 1, 2, 4 … 60."""
    return min(_FIRST_BACK_OFF_S * 2.0 ** min(failures - 1, 10), _LONGEST_BACK_OFF_S)
