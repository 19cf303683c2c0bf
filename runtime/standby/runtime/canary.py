"""The canary: a short answer that an engine gave once, against which every later start and wake is compared. Pure.

An engine that wakes with damaged weights says that it is well and generates garbage (field case B15). Greedy tokens of
one fingerprint must be the same every time, as long as no step is a near-tie, which rounding alone would flip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from standby.domain.errors import ProbeFailed
from standby.runtime.engines.base import Canary, ProbeResult

PROMPTS: Final = (
    "A, B, C, D,",
    "1, 2, 3, 4, 5,",
    "The capital of France is",
    "2 4 6 8 10",
    "Mon Tue Wed",
    "Once upon a",
)
"""Short, as a wake computes them again; continued by all but the smallest models without a near-tie. The best first.

SmolLM2-135M (llama.cpp, Q4_K): 8 clear tokens after the first, the smallest margin 1.2 nats; 8 of 3.2 nats after the
second, whose prompt is twice as long.
"""
MOST_PIECES: Final = 4
CLEAR_MARGIN: Final = 0.5
"""Nats by which a token must beat the second best. Rounding moves a margin by some hundredths, other kernels by a tenth."""
WAKE_PIECES: Final = 2
SLOWEST_MS: Final = 500.0
"""A canary is cut to what its engine generates in this time; the slowest engine still compares ``WAKE_PIECES`` tokens."""
WHOLE_DEPTHS: Final = frozenset({"level 2"})
"""Depths of sleep that gave the weights up, so that a wake brings them from somewhere else."""


class CanaryMismatch(ProbeFailed):
    """The engine is up and generates other tokens than it did under the same fingerprint."""

    code = "canary_mismatch"


@dataclass(frozen=True)
class Match:
    """``pieces`` tokens were the same."""

    pieces: int


@dataclass(frozen=True)
class Mismatch:
    """``reason`` in words: the two answers up to where they part, nothing more."""

    reason: str
    got: tuple[str, ...]


Verdict: TypeAlias = Match | Mismatch


def choose(candidates: Sequence[ProbeResult]) -> Canary | None:
    """Return the prompt with the most clear tokens in front, at most ``MOST_PIECES``; of equals, the earliest.

    An engine that tells no margins cannot show which token is clear: its canary is the first piece of the first
    candidate, which must therefore have been probed for one token. None: nothing is clear, so that nothing can be compared.
    """
    found: Canary | None = None
    for candidate in candidates:
        pieces = clear_pieces(candidate)
        if pieces and any(pieces) and (found is None or len(pieces) > len(found.pieces)):
            found = Canary(prompt=candidate.prompt, pieces=pieces)
    return found


def clear_pieces(result: ProbeResult) -> tuple[str, ...]:
    """Return the tokens in front of the first near-tie; without margins the first piece."""
    if not result.margins:
        return result.pieces[:1]
    clear = 0
    for margin in result.margins[:MOST_PIECES]:
        if margin < CLEAR_MARGIN:
            break
        clear += 1
    return result.pieces[:clear]


def confirmed(canary: Canary, again: ProbeResult) -> Canary | None:
    """Return what of ``canary`` the same engine said once more, cut to what it says in ``SLOWEST_MS``.

    None: not even the first token came again, so that this engine's answers cannot be compared at all.
    """
    same = _common(canary.pieces, again.pieces)
    affordable = round(SLOWEST_MS / again.ms * len(again.pieces)) if again.ms > 0 else MOST_PIECES
    pieces = canary.pieces[: min(same, max(WAKE_PIECES, affordable))]
    return Canary(prompt=canary.prompt, pieces=pieces) if pieces else None


def wake_pieces(canary: Canary, depth: str) -> int:
    """Return how many tokens are compared after a wake from ``depth`` (SuspendResult.depth).

    Few, as somebody waits and each costs a step; all of them when the weights were given up.
    """
    return len(canary.pieces) if depth in WHOLE_DEPTHS else min(WAKE_PIECES, len(canary.pieces))


def verdict(canary: Canary, result: ProbeResult, pieces: int | None = None) -> Verdict:
    """Compare the first ``pieces`` tokens of ``canary`` (None: all) with what the engine said now."""
    expected = canary.pieces[:pieces]
    got = result.pieces[: len(expected)]
    if got == expected:
        return Match(len(expected))
    place = _common(expected, got)
    upto = place + 1
    reason = (
        f"greedy answer to {canary.prompt!r} is {_shown(got[:upto])}, and was {_shown(expected[:upto])}"
        f" (token {upto} of {len(expected)})"
    )
    return Mismatch(reason, got)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    pairs = zip(first, second, strict=False)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def _shown(pieces: Sequence[str]) -> str:
    return repr("".join(pieces)) if pieces else "nothing"
