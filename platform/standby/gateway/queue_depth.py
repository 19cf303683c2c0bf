"""How many may wait before a request is better told to come again: found by what the latency target bears. Pure.

Additive increase, multiplicative decrease: places are added while nobody misses the target and the places are used, and
taken away when more miss it than ``slo_violations`` allows. Only requests that came after the last change speak of the
depth that they found, so that one surge is answered once and not by every answer that it delays.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from standby.domain.traffic import QueueMode, TrafficPolicy

SHRINK: Final = 0.7
_FEWEST: Final = 20
_MOST: Final = 1000
_USED: Final = 0.8


class Window(NamedTuple):
    """What was seen since the depth last changed: requests that came after it and ended, those that missed the target.

    ``deepest`` is the last place that was taken, ``turned_away`` how many found none.
    """

    requests: int = 0
    missed: int = 0
    deepest: float = 0.0
    turned_away: int = 0


class Depth(NamedTuple):
    """How many places there are (fractions grow into places), since when, and why in words."""

    places: float
    since: float
    reason: str


def adapts(traffic: TrafficPolicy) -> bool:
    """Whether the depth follows a latency target; else it is as the scale policy says."""
    return traffic.queue is QueueMode.ADAPTIVE and traffic.latency_target is not None


def first_depth(ceiling: int, now: float) -> Depth:
    """Return the depth of a queue of which nothing is known."""
    return Depth(float(ceiling), now, f"{ceiling} places: nothing is known yet")


def due(window: Window, traffic: TrafficPolicy) -> bool:
    """Whether the window says enough: the target is missed whatever else comes, or there were enough requests."""
    return window.missed > _allowed(window, traffic) or window.requests >= _needed(traffic)


def adapt(depth: Depth, window: Window, traffic: TrafficPolicy, ceiling: int, now: float) -> Depth:
    """Return the depth after ``window``, between ``queue_floor`` and ``ceiling`` places.

    A queue that is not used says nothing of whether it may be longer, and one that is used by half is cut from there.
    """
    floor = min(traffic.queue_floor, ceiling)
    target = traffic.latency_target or math.inf
    seen = f"{window.missed} of {window.requests} requests missed {target:g} s, {traffic.slo_violations:.3g} of them may"
    if window.missed > _allowed(window, traffic):
        places = max(float(floor), SHRINK * min(depth.places, float(ceiling), max(1.0, window.deepest)))
        return Depth(places, now, _words(places, "fewer", seen))
    used = window.turned_away > 0 or window.deepest >= _USED * depth.places
    if window.missed == 0 and used:
        places = min(float(ceiling), depth.places + floor)
        return Depth(places, now, _words(places, "more" if places > depth.places else "the most there may be", seen))
    places = min(max(depth.places, float(floor)), float(ceiling))
    return Depth(places, now, _words(places, "as before", seen))


def _needed(traffic: TrafficPolicy) -> int:
    """Return how many requests tell the allowed share from none."""
    return min(_MOST, max(_FEWEST, math.ceil(1.0 / traffic.slo_violations)))


def _allowed(window: Window, traffic: TrafficPolicy) -> float:
    return traffic.slo_violations * max(window.requests, _needed(traffic))


def _words(places: float, how: str, seen: str) -> str:
    return f"{int(places)} places, {how}: {seen}"
