"""The cheapest rung at every idle time, by backward induction over the bins of a gap distribution. Pure.

At the start of each bin an idle instance may fall to any colder rung, for nothing, or begin a climb to a warmer one. Then it
holds what it has until the bin ends or the request comes, which costs that rung's wake. After the last bin nothing is expected
any more and the coldest rung is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from standby.controller.arrivals import BINS, EDGES
from standby.controller.economics import Ladder, PriceVector, wake_price

# Actions[b][r]: the place in the ladder, coldest first, to move to at the start of bin b from place r; r itself: stay.
Actions = list[list[int]]
Values = list[list[float]]
_LENGTHS = tuple(EDGES[b + 1] - EDGES[b] for b in range(BINS))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do at the start of each bin from each place in the ladder, and the expected price from there on."""

    actions: Actions
    values: Values


def solve(ladder: Ladder, hazards: Sequence[float], prices: PriceVector, *, climbs: bool) -> Plan:
    """Return the plan with the least expected price until the next request has its answer; ``climbs``: ahead of demand too."""
    ready = ladder[0]
    rungs = ladder[::-1]
    holds = [one.hold for one in rungs]
    wakes = [wake_price(one, ready, prices) for one in rungs]
    waits = [one.wait_s for one in rungs]
    climb = [ready.hold * one.wait_s for one in rungs]
    top = len(rungs) - 1
    places = range(top + 1)
    value = [wakes[0]] * (top + 1)
    actions: Actions = [[]] * BINS
    values: Values = [[]] * BINS
    for b in range(BINS - 1, -1, -1):
        hazard, length = hazards[b], _LENGTHS[b]
        held, left = length * (1 - hazard / 2), 1 - hazard
        value = [holds[r] * held + hazard * wakes[r] + left * value[r] for r in places]
        act = list(places)
        if climbs:
            best, to = value[top], top
            for r in range(top - 1, -1, -1):
                stay = value[r]
                # Who comes during the climb waits for half of it on average.
                early = hazard * min(1.0, waits[r] / length)
                moved = best + climb[r] + early * (wakes[r] - climb[r]) / 2
                if stay < best:
                    best, to = stay, r
                if moved < stay:
                    value[r] = moved
                    act[r] = to
        for r in range(1, top + 1):
            if value[r - 1] < value[r]:
                value[r] = value[r - 1]
                act[r] = act[r - 1]
        actions[b] = act
        values[b] = value
    return Plan(actions, values)
