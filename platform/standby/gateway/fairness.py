"""Which priority's turn it is: start-time fair queueing by weights, and ageing, so that every priority moves. Pure.

Each priority that somebody waits with has a start on one virtual line of time. The earliest start is next; a turn moves
it on by 1/weight, and the line's present is the start of the last one served. Who comes anew starts at the present, so
that nobody saves up turns, and a start is never more than one turn ahead of the present: over any stretch in which two
priorities both wait, their turns differ from their weights by less than one turn of each. After P. Goyal, H. M. Vin and
H. Cheng, "Start-time fair queueing" (1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from standby.domain.priority import Priority


class Standing(NamedTuple):
    """A priority that somebody waits with; ``arrived`` is the first one's arrival, in seconds like ``ages_s``."""

    priority: Priority
    weight: float
    start: float
    arrived: float
    ages_s: float


class Turn(NamedTuple):
    """Whose turn it is. ``aged``: by the time that it has waited, against the weights."""

    priority: Priority
    aged: bool
    reason: str


def next_turn(standings: Sequence[Standing], now: float, *, aged_before: bool = False) -> Turn:
    """Return whose turn it is among at least one: who has waited for long goes first, the oldest of them before all.

    ``aged_before``: the last turn went by age against the weights. Then this one goes by weight: where a whole priority
    has waited for long, under a load that lasts, the others keep half of what their weights give them.
    """
    chosen = min(standings, key=lambda one: (one.start, one.priority.rank))
    aged = [] if aged_before else [one for one in standings if now - one.arrived >= one.ages_s]
    oldest = min(aged, key=lambda one: (one.arrived, one.priority.rank), default=chosen)
    if oldest is chosen:
        return Turn(chosen.priority, False, _by_weight(chosen, standings))
    words = f"{oldest.priority.value} waited {now - oldest.arrived:.3g} s, ages after {oldest.ages_s:g} s"
    return Turn(oldest.priority, True, words)


def after_turn(start: float, weight: float, present: float, *, aged: bool) -> tuple[float, float]:
    """Return the start of the priority that was served and the line's present.

    A turn by age never puts the priority further back than one turn: it would pay for its patience for long afterwards.
    """
    if aged:
        return present + 1.0 / weight, present
    present = max(present, start)
    return present + 1.0 / weight, present


def _by_weight(chosen: Standing, standings: Sequence[Standing]) -> str:
    others = [one for one in standings if one is not chosen]
    name = chosen.priority.value
    if not others:
        return f"{name}: only they wait"
    # The one that is nearest to it tells most: the most urgent of the others.
    other = min(others, key=lambda one: one.priority.rank)
    weights = f"weight {chosen.weight:g} to {other.weight:g}"
    if chosen.priority.rank < other.priority.rank:
        return f"{name} before {other.priority.value}: {weights}"
    return f"{name} in its turn beside {other.priority.value}: {weights}"
