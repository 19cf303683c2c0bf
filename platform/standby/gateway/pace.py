"""How quick and how sound an instance is, from how its requests ended; weights for the router. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from standby.gateway.results import Result, ResultKind

LEAST: Final = 0.1
# Single requests differ tenfold, so their logarithm is averaged, and over many.
_MEMORY: Final = 32
_ENOUGH: Final = 8
# Below what chance alone makes of equals.
_ALIKE: Final = 0.8
_RECOVERY: Final = 1 / 16
_DAMAGE: Final = 1 / 8


class Pace(NamedTuple):
    """``log_s``: mean logarithm of the seconds that a request took; ``health``: share of late answers that were good."""

    log_s: float = 0.0
    ended: int = 0
    health: float = 1.0


UNKNOWN: Final = Pace()


def after(pace: Pace, result: Result) -> Pace:
    """Return the pace after a request has ended; what was not the instance's doing changes nothing."""
    if result.kind is ResultKind.OK:
        health = pace.health
        if health < 1.0:
            health += (1.0 - health) * _RECOVERY
            if health > 0.99:
                health = 1.0
        if result.lasted_s <= 0.0:
            return Pace(pace.log_s, pace.ended, health)
        ended = pace.ended + 1
        return Pace(pace.log_s + (math.log(result.lasted_s) - pace.log_s) / min(ended, _MEMORY), ended, health)
    if result.kind.failed:
        return pace._replace(health=max(LEAST, pace.health * (1.0 - _DAMAGE)))
    return pace


def speeds(paces: Sequence[Pace]) -> tuple[float, ...]:
    """Return each one's speed as a share of the quickest one's, 1 where it is much alike or too little is known; never 0."""
    known = [pace.log_s for pace in paces if pace.ended >= _ENOUGH]
    if len(known) < 2:
        return (1.0,) * len(paces)
    best = min(known)
    return tuple(_speed(best - pace.log_s) if pace.ended >= _ENOUGH else 1.0 for pace in paces)


def _speed(log_share: float) -> float:
    share = math.exp(max(log_share, -10.0))
    return 1.0 if share > _ALIKE else max(LEAST, share)
