"""Which instances leave first when there are too many."""

from __future__ import annotations

from collections.abc import Iterable

from standby.controller.view import Placed


def in_order(placed: Iterable[Placed]) -> list[Placed]:
    """Return ``placed`` in the order in which they leave.

    Failed, then starting, then idle (longest first), then the least busy: nothing that works is taken while
    something that does not work is left (scale-in that prefers running over starting ones loses requests, field case B18).
    """
    several = list(placed)
    return sorted(several, key=_rank) if len(several) > 1 else several


def _rank(placed: Placed) -> tuple[int, float, float, str]:
    if placed.failed:
        return (0, 0.0, 0.0, placed.key)
    if placed.climbing:
        return (1, -placed.since, 0.0, placed.key)
    if not placed.busy:
        idle_at = placed.instance.idle_at if placed.instance is not None else None
        return (2, idle_at if idle_at is not None else placed.since, 0.0, placed.key)
    return (3, placed.in_flight, -placed.since, placed.key)
