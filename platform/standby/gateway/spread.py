"""Which variant's turn it is: shares by weight, evenly mixed at every moment, without chance. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def take_turn(weights: Sequence[float], credit: Sequence[float]) -> tuple[int, tuple[float, ...]]:
    """Return whose turn it is and the credit to come back with; both sequences are of one length, at least 1.

    Every turn gives each its weight as credit and takes the sum of all from the one with most (smooth weighted
    round-robin). Over any stretch of turns each one's share differs from its weight's by less than one turn, and what
    weighs 0 gets none, unless all do: then all weigh the same.
    """
    if not any(weights):
        weights = [1.0] * len(weights)
    grown = [have + weight for have, weight in zip(credit, weights, strict=True)]
    turn = max(range(len(grown)), key=grown.__getitem__)
    grown[turn] -= sum(weights)
    return turn, tuple(grown)
