"""How many requests at once an instance gets, within its slots: a limit that follows the gradient of its latency. Pure.

While requests near the limit are hardly slower than others, the limit grows towards the slots; once they are more than
twice as slow, it shrinks by their ratio. The first step away from all of the slots takes more, three times: equal requests
differ so much that the mean of a few is twice the usual by chance now and then, and a healthy engine keeps every slot.
The headroom of a square root keeps small limits alone: an engine that merely shares its processor among four requests keeps
its four (the gradient of Netflix's concurrency-limits library).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

FLOOR: Final = 1.0
_TOLERANCE: Final = math.log(2.0)
_AT_ALL_SLOTS: Final = math.log(3.0)
_STEEPEST: Final = 0.2
# Of a whole correction, in the time in which as many requests end as run at once: what ends now began before the last one.
_UP: Final = 0.5
_DOWN: Final = 1.0
_RECENT: Final = 0.2
_QUIET: Final = 0.05
_ENOUGH: Final = 10
# What is usual may change for good: it rises by a fifth in 400 requests.
_DRIFT: Final = 0.0005


class Limit(NamedTuple):
    """``usual`` and ``recent`` are mean logarithms of slowness: of uncrowded requests, and of those near the limit.

    ``known`` and ``crowded`` say from how many requests.
    """

    limit: float
    usual: float = 0.0
    recent: float = 0.0
    known: int = 0
    crowded: int = 0

    @property
    def whole(self) -> int:
        """Requests at once."""
        return max(1, int(self.limit + 1e-9))


def fresh(slots: int) -> Limit:
    """Return the limit of an instance of which nothing is known yet: all of its slots."""
    return Limit(float(slots))


def sampled(state: Limit, slots: int, in_flight: int, slowness: float) -> Limit:
    """Return the limit after a request that ran beside ``in_flight - 1`` others.

    ``slowness`` is any positive measure that grows with the time to the first token and not with the length of the prompt:
    seconds, divided by those that such a request takes when it is alone. Floor 1, ceiling ``slots``. Only requests that
    ran while the limit was nearly reached move it: below, slowness is not its doing.
    """
    heard = math.log(slowness)
    limit, usual, recent, known, crowded = state
    if in_flight * 2 <= limit:
        return Limit(limit, _towards(usual, heard, _QUIET, known), recent, known + 1, crowded)
    recent, crowded = _towards(recent, heard, _RECENT, crowded), crowded + 1
    if known < _ENOUGH:
        usual, known = _towards(usual, heard, _QUIET, known), known + 1
    else:
        # The least of many means of few would be chance: what is usual follows slowly, also downwards.
        usual = usual + _DRIFT if recent > usual else usual + (recent - usual) * _QUIET
    if in_flight < limit - 1.0 or known < _ENOUGH or crowded < _ENOUGH:
        return Limit(min(limit, float(slots)), usual, recent, known, crowded)
    tolerance = _TOLERANCE if limit < slots else _AT_ALL_SLOTS
    gradient = min(1.0, max(_STEEPEST, math.exp(min(0.0, usual + tolerance - recent))))
    target = limit * gradient + math.sqrt(limit)
    limit += (target - limit) / limit * (_UP if target > limit else _DOWN)
    return Limit(min(float(slots), max(FLOOR, limit)), usual, recent, known, crowded)


def _towards(mean: float, heard: float, share: float, known: int) -> float:
    """Return the mean moved towards what was ``heard``; of the first few it is the plain mean."""
    return mean + (heard - mean) * max(share, 1 / (known + 1))
