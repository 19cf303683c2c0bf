"""Host memory that instances hold, times how long: what it costs to keep them warm, and what of that served nobody.

An account of intervals: whoever changes what an instance holds says so, and what it held until then is added up for the
time since. Requests are not told one by one: the door says how long it has been busy, and what is left of an interval was
idle. No clock of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from standby.domain.instance import Rung

# An endpoint's series outlive its last instance here, so that every scrape sees the last of it; then they go.
KEPT_S: Final = 900.0


class Series(NamedTuple):
    """Whose memory it was, and on which rung."""

    tenant: str
    endpoint: str
    rung: Rung


class Spent(NamedTuple):
    """Byte-seconds; ``idle`` is the part of ``held`` in which nothing was in flight."""

    held: float
    idle: float


class Holding(NamedTuple):
    """What an instance holds from now on. ``busy_s``: how long its door has had something in flight, up to now."""

    series: Series
    host_bytes: int
    busy_s: float


@dataclass(slots=True)
class _Open:
    holding: Holding
    since: float


@dataclass(slots=True)
class ByteSeconds:
    """``now`` is a monotonic clock in seconds, never less than at the call before."""

    _open: dict[str, _Open] = field(default_factory=dict)
    _spent: dict[Series, list[float]] = field(default_factory=dict)
    _left_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def holds(self, instance: str, holding: Holding, now: float) -> None:
        """Add up what the instance has held until now, and begin with what it holds from now on."""
        known = self._open.get(instance)
        if known is not None:
            self._add(known, holding.busy_s, now)
        self._open[instance] = _Open(holding, now)
        self._left_at.pop(holding.series[:2], None)

    def gone(self, instance: str, now: float) -> None:
        """The instance is no more, and holds nothing."""
        known = self._open.pop(instance, None)
        if known is None:
            return
        self._add(known, known.holding.busy_s, now)
        where = known.holding.series[:2]
        if not any(other.holding.series[:2] == where for other in self._open.values()):
            self._left_at[where] = now

    def take(self) -> Mapping[Series, Spent]:
        """Return what was added up since the last time; call ``holds`` for each instance before."""
        taken = {series: Spent(held, idle) for series, (held, idle) in self._spent.items()}
        self._spent.clear()
        return taken

    def forgotten(self, now: float) -> list[tuple[str, str]]:
        """Return, once, the endpoints that have had no instance here for ``KEPT_S``."""
        gone = [where for where, at in self._left_at.items() if now - at >= KEPT_S]
        for where in gone:
            del self._left_at[where]
        return gone

    def _add(self, known: _Open, busy_s: float, now: float) -> None:
        before = known.holding
        lasted = max(0.0, now - known.since)
        # A door that was opened for another engine counts anew.
        busy = busy_s - before.busy_s if busy_s >= before.busy_s else busy_s
        sums = self._spent.setdefault(before.series, [0.0, 0.0])
        sums[0] += before.host_bytes * lasted
        sums[1] += before.host_bytes * max(0.0, lasted - busy)
