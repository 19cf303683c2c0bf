"""What an endpoint held over time, from looks at it: pure.

A node measures an instance's memory a second after each change. Until then an instance with a working process is counted
as large as it was ever seen awake: too much rather than too little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from standby.domain.instance import HAS_PROCESS, InstanceState

GB: Final = 1e9
_NOTHING: Final = "cold"
_AWAKE: Final = frozenset(state.value for state in HAS_PROCESS - {InstanceState.ASLEEP})


class Look(NamedTuple):
    """One look: when, in which state the warmest instance was, and what all instances held together."""

    at_s: float
    state: str
    resident_bytes: int


def look_at(instances: Sequence[Mapping[str, Any]], at_s: float) -> Look:
    """Return one look at an endpoint's instances, as the control API lists them: the first is the warmest."""
    state = str(instances[0]["state"]) if instances else _NOTHING
    return Look(at_s, state, sum(int(one["resident_bytes"]) for one in instances))


def awake_bytes(looks: Sequence[Look]) -> int | None:
    """Return the most that was held while ready; None where no look met it."""
    return max((one.resident_bytes for one in looks if one.state == "ready" and one.resident_bytes), default=None)


def counted(looks: Sequence[Look]) -> list[Look]:
    """Return the looks with what is counted as held."""
    awake = awake_bytes(looks) or 0
    return [one._replace(resident_bytes=max(one.resident_bytes, awake)) if one.state in _AWAKE else one for one in looks]


def held_gb_s(looks: Sequence[Look]) -> float:
    """Return memory times time from the first to the last look, in 10^9 bytes times seconds."""
    return sum(before.resident_bytes * (after.at_s - before.at_s) for before, after in pairwise(counted(looks))) / GB
