"""What router and simulator share: numbers that look random and are the same for the same ticket, and a measure. Pure."""

from __future__ import annotations

from typing import Final

_MASK: Final = (1 << 64) - 1

# An engine reads fewer tokens in about the time of one step, so that fewer to be read there are no reason to go elsewhere.
READING_STEP_TOKENS: Final = 256


def chance(ticket: int, salt: int = 0) -> float:
    """Return a number in [0, 1) that looks random and is always the same for the same ticket and salt."""
    return (_mixed(ticket + salt * 0x632BE59BD9B4E019) >> 11) / (1 << 53)


def two_of(count: int, ticket: int) -> tuple[int, int]:
    """Return two different places below ``count``, which is at least 2; every pair is as likely."""
    mixed = _mixed(ticket)
    first = mixed % count
    return first, (first + 1 + (mixed >> 32) % (count - 1)) % count


def _mixed(number: int) -> int:
    """Return 64 bits that depend on every bit of ``number`` (the finalizer of SplitMix64)."""
    mixed = (number * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)
