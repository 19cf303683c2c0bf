"""Prompts that begin alike go to one instance, which has their beginning in its cache already: rendezvous hashing. Pure.

Every gateway finds the same home without asking anyone, and when an instance comes or goes only the prompts that it gains
or loses move (highest random weight; Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

_MASK: Final = (1 << 64) - 1
_ODD: Final = 0x9E3779B97F4A7C15


def seed_of(instance: str) -> int:
    """Return the number that stands for an instance, 64 bits; the same in every process."""
    return int.from_bytes(blake2b(instance.encode(), digest_size=8).digest(), "little")


def home_of(prefix: int, seeds: Sequence[int]) -> int:
    """Return the place in ``seeds`` (at least one) of the instance where prompts with this ``prefix`` are at home."""
    best, home = -1, 0
    for place, seed in enumerate(seeds):
        mixed = ((prefix ^ seed) * _ODD) & _MASK
        score = ((mixed ^ (mixed >> 32)) * _ODD) & _MASK
        if score > best:
            best, home = score, place
    return home
