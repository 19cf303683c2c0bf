"""How requests cluster: the mean square of changes in concurrency over one climb, divided by the mean level. Pure.

1 where requests come independently and all that run are new, less where they run for many climbs, more where they come in
bursts. Variance is taken to be proportional to the level, as a negative binomial with a fixed dispersion has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, NamedTuple

from standby.controller.asked import EndpointDemand

# Habits of an endpoint's callers are remembered through its silences.
HALF_LIFE_S: Final = 3600.0
# Of one request that came by chance: what is assumed as long as nothing is known.
_ASSUMED: Final = 1.0


class LookAhead(NamedTuple):
    """Of a part that scales ahead of demand: over how many seconds it looks, and for how many it has to remember."""

    horizon_s: float
    window_s: float


def from_history(demand: EndpointDemand, horizon_s: float, now: float) -> float:
    """Return the dispersion over ``horizon_s`` seconds, above 0, in what is remembered of ``demand``."""
    changes = levels = _ASSUMED
    at, after = now, demand.concurrency
    for bucket in reversed(demand.history):
        while at - horizon_s >= bucket.start:
            at -= horizon_s
            changes += (after - bucket.last) ** 2
            levels += bucket.last
            after = bucket.last
    return changes / levels


@dataclass(slots=True)
class Clusters:
    """The same over hours, in three numbers: owned by one loop, read as ``value``. What is older counts half each hour."""

    changes: float = 0.0
    levels: float = 0.0
    before: int = 0
    at: float = -math.inf

    @property
    def value(self) -> float:
        """The dispersion, above 0."""
        return (_ASSUMED + self.changes) / (_ASSUMED + self.levels)

    def observe(self, concurrency: int, horizon_s: float, now: float) -> None:
        """Take in how many requests there are now; one sample for each ``horizon_s`` seconds, what comes between is ignored.

        A clock that goes back begins anew; what was learned stays.
        """
        passed = now - self.at
        if not 0 <= passed < math.inf:
            self.before, self.at = concurrency, now
            return
        if passed < horizon_s:
            return
        kept = 0.5 ** (passed / HALF_LIFE_S)
        self.changes = self.changes * kept + (concurrency - self.before) ** 2
        self.levels = self.levels * kept + self.before
        self.before, self.at = concurrency, now
