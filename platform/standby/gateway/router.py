"""Which ready instance gets a request: least outstanding, ties broken by the caller's own ticket. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class Candidate(NamedTuple):
    """A ready instance as this gateway sees it. A tuple, as one is made for each instance and request."""

    instance: str
    outstanding: int
    slots: int
    blocked_until: float = 0.0


class Choice(NamedTuple):
    """The chosen instance, or none with the reason and the moment when asking again makes sense."""

    instance: str | None
    reason: str
    retry_at: float | None = None


def choose(candidates: Iterable[Candidate], now: float, ticket: int) -> Choice:
    """Return the candidate with the fewest outstanding requests per slot that has a free slot and is not blocked.

    ``ticket`` is any growing number: it rotates between equals, so that ties do not all fall on one instance.
    """
    least = math.inf
    equals: list[Candidate] = []
    next_unblock: float | None = None
    full = 0
    for candidate in candidates:
        if candidate.outstanding >= candidate.slots:
            full += 1
        elif candidate.blocked_until > now:
            next_unblock = candidate.blocked_until if next_unblock is None else min(next_unblock, candidate.blocked_until)
        elif (load := candidate.outstanding / candidate.slots) < least:
            least, equals = load, [candidate]
        elif load == least:
            equals.append(candidate)
    if not equals:
        return Choice(None, f"no free slot: {full} full, next unblock {next_unblock}", next_unblock)
    chosen = equals[ticket % len(equals)]
    return Choice(chosen.instance, f"least outstanding: {chosen.outstanding} of {chosen.slots} slots")
