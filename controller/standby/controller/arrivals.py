"""When the next request of an endpoint may come, learned from the gaps between its idle beginnings and its next requests.

A histogram over logarithmic bins with exponential forgetting, mixed with a prior that is the same at every scale: without a
gap seen, what was quiet for x seconds is quiet for 4x with probability 1/2. The prior weighs as much as one gap, so an endpoint
with few requests is not taken at its word, and one with many is. Nothing here is tuned to an hour or a minute.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, Final

from standby.domain.errors import InvalidInput

PER_OCTAVE: Final = 4
OCTAVES: Final = 17  # from 1 s to 36 h
BINS: Final = PER_OCTAVE * OCTAVES + 1
# Bin b holds gaps from EDGES[b] to EDGES[b + 1] seconds; the count after the last bin is of longer ones.
EDGES: Final[tuple[float, ...]] = (0.0, *(2.0 ** (k / PER_OCTAVE) for k in range(BINS)))
FORGET: Final = 0.99  # the weight that a gap keeps when the next one comes: about a hundred count
HALF_LIFE_S: Final = 86_400.0  # the weight also halves in a day, so that last week's habits end in a quiet endpoint too
PRIOR_WEIGHT: Final = 1.0
PRIOR_INDEX: Final = 0.5  # of the Pareto law: P(gap > x) falls with x to the power of minus this
_PRIOR_HAZARD: Final = 1 - 2 ** (-PRIOR_INDEX / PER_OCTAVE)
_PRIOR: Final = (*((1 - _PRIOR_HAZARD) ** b * _PRIOR_HAZARD for b in range(BINS)), (1 - _PRIOR_HAZARD) ** BINS)
_PRIOR_LEFT: Final = tuple((1 - _PRIOR_HAZARD) ** b for b in range(BINS + 1))
# Weights grow instead of all counts shrinking, so that an observation costs the same whatever the number of bins.
_RESCALE_ABOVE: Final = 1e100
_STALE: Final = 1 / 16
_LONGEST_STEP: Final = 40.0  # half-lives: what is older is forgotten


class GapModel:
    """The gaps of one endpoint; owned by one loop, read by pure functions. Bounded: one number for each bin.

    ``hazards`` may lag by a sixteenth of the evidence, so that a busy endpoint's plan is not computed for every request.
    """

    __slots__ = ("_at", "_counts", "_hazards", "_scale", "_total", "_unread", "count", "memo")

    def __init__(self) -> None:
        self.count = 0  # gaps ever seen
        self.memo: dict[str, Any] = {}  # demotion's last plans and what they were made from; not part of the state
        self._counts = [0.0] * (BINS + 1)
        self._total: float = 0.0
        self._scale: float = 1.0
        self._at: float | None = None
        self._unread = 0.0
        self._hazards: tuple[float, ...] | None = None

    def observe(self, gap_s: float, at: float) -> None:
        """Learn that a request came ``gap_s`` seconds after the endpoint fell idle, at instant ``at`` of a monotonic clock.

        A clock that steps back forgets nothing; a negative gap is one of zero; what is not a number is left out.
        """
        if gap_s != gap_s:  # noqa: PLR0124 - the only test for NaN that needs no call
            return
        if not math.isfinite(at):
            at = self._at if self._at is not None else 0.0
        if self._at is not None and at > self._at:
            self._scale *= math.exp2(min((at - self._at) / HALF_LIFE_S, _LONGEST_STEP))
            self._at = at
        elif self._at is None:
            self._at = at
        self._counts[bin_of(gap_s)] += self._scale
        self._total += self._scale
        self._scale /= FORGET
        self.count += 1
        self._unread += 1.0
        if self._scale > _RESCALE_ABOVE:
            self._rescale()

    @property
    def weight(self) -> float:
        """How many gaps the histogram speaks for, after forgetting."""
        return self._total / self._scale

    @property
    def hazards(self) -> tuple[float, ...]:
        """For each bin the probability that the request comes in it, given that it did not come before."""
        if self._hazards is None or self._unread >= max(1.0, self.weight * _STALE):
            self._hazards = self._compute()
            self._unread = 0.0
        return self._hazards

    def survival(self, idle_s: float) -> float:
        """Return the probability that a gap is longer than ``idle_s`` seconds."""
        if idle_s <= 0 or idle_s != idle_s:  # noqa: PLR0124 - NaN, as above
            return 1.0
        last = min(bisect_right(EDGES, idle_s) - 1, BINS)
        left: float = math.prod(1 - hazard for hazard in self.hazards[:last])
        if last >= BINS:
            return left * math.pow(EDGES[BINS] / idle_s, PRIOR_INDEX)
        part = (idle_s - EDGES[last]) / (EDGES[last + 1] - EDGES[last])
        return left * (1 - self.hazards[last] * part)

    def within(self, seconds: float, idle_s: float) -> float:
        """Return the probability that the request comes in the next ``seconds``, given that none came for ``idle_s``."""
        before = self.survival(idle_s)
        return 1 - self.survival(idle_s + seconds) / before if before > 0 else 0.0

    def to_json(self) -> dict[str, Any]:
        """Return what a restarted controller needs; clocks are not part of it."""
        scale = self._scale
        counts = {str(b): round(value / scale, 6) for b, value in enumerate(self._counts) if value > scale * 1e-6}
        return {"per_octave": PER_OCTAVE, "count": self.count, "counts": counts}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> GapModel:
        """Return the model that ``to_json`` wrote. Raises InvalidInput for anything else."""
        model = cls()
        try:
            pairs = [(int(b), float(value)) for b, value in said["counts"].items()]
            count, grid = int(said["count"]), int(said["per_octave"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise InvalidInput(f"a gap histogram cannot be read: {error!r}", remedy="drop it; it is learned anew") from error
        if grid != PER_OCTAVE or count < 0 or any(not 0 <= b <= BINS or not 0 <= value <= 1e12 for b, value in pairs):
            raise InvalidInput(
                f"a gap histogram of {grid} bins per octave, count {count}, is not of this version's kind",
                remedy="drop it; it is learned anew",
            )
        for b, value in pairs:
            model._counts[b] = value
        model._total = math.fsum(model._counts)
        model.count = count
        return model

    def _compute(self) -> tuple[float, ...]:
        share = PRIOR_WEIGHT * self._scale
        left = self._total
        hazards = []
        for count, prior, prior_left in zip(self._counts, _PRIOR, _PRIOR_LEFT, strict=True):
            # Forgetting in floating point may leave a hair less than nothing in the last bins.
            hazards.append((count + share * prior) / (max(left, count) + share * prior_left))
            left -= count
        hazards.pop()
        return tuple(hazards)

    def _rescale(self) -> None:
        scale = self._scale
        self._counts = [value / scale for value in self._counts]
        self._total = math.fsum(self._counts)
        self._scale = 1.0


def bin_of(gap_s: float) -> int:
    """Return the number of the bin of a gap in seconds; BINS for one beyond the last edge."""
    if gap_s < 1.0:
        return 0
    if gap_s >= EDGES[BINS]:
        return BINS
    return bisect_right(EDGES, gap_s) - 1
