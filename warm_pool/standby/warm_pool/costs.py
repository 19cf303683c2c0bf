"""Measured prices of the ladder: seconds from a rung to ready, by model. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from standby.domain.instance import Rung

_WEIGHT_OF_NEWEST = 0.3
# Every new version of a model has a new digest, and the table is part of each heartbeat.
MOST_MODELS = 200


@dataclass(frozen=True, slots=True)
class Costs:
    """Model digest → rung → seconds; an exponential average, so that a slow disk of yesterday is forgotten.

    Holds the models measured last.
    """

    table: Mapping[str, Mapping[Rung, float]] = field(default_factory=lambda: MappingProxyType({}))

    def observe(self, digest: str, rung: Rung, seconds: float) -> Costs:
        """Return the costs after one more climb."""
        rungs = dict(self.table.get(digest, {}))
        known = rungs.get(rung)
        rungs[rung] = seconds if known is None else known + _WEIGHT_OF_NEWEST * (seconds - known)
        others = [(known, prices) for known, prices in self.table.items() if known != digest][-(MOST_MODELS - 1) :]
        return replace(self, table=MappingProxyType({**dict(others), digest: MappingProxyType(rungs)}))

    def gain_of_sleep(self, digest: str) -> float:
        """Return the seconds that a wake saves over a start from staged; a guess of 5 s until both were measured."""
        rungs = self.table.get(digest, {})
        if Rung.STAGED not in rungs or Rung.ASLEEP not in rungs:
            return 5.0
        return max(0.0, rungs[Rung.STAGED] - rungs[Rung.ASLEEP])
