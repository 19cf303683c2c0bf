"""Homes of prompts: the same everywhere, evenly spread, and moved only where they must."""

from __future__ import annotations

from collections import Counter

import pytest

from standby.gateway.prefix import home_of, seed_of

pytestmark = pytest.mark.decision

_NAMES = [f"n{number}.e.AllTraffic.{number}" for number in range(8)]
_PREFIXES = [seed_of(f"prompt {number}") for number in range(4000)]


def _homes(names: list[str]) -> list[str]:
    seeds = [seed_of(name) for name in names]
    return [names[home_of(prefix, seeds)] for prefix in _PREFIXES]


def test_homes_are_spread_evenly() -> None:
    counts = Counter(_homes(_NAMES))
    assert set(counts) == set(_NAMES)
    assert all(400 < times < 600 for times in counts.values())


def test_only_the_prompts_of_an_instance_that_leaves_move() -> None:
    before, after = _homes(_NAMES), _homes(_NAMES[:-1])
    assert all(old == new or old == _NAMES[-1] for old, new in zip(before, after, strict=True))


def test_the_order_of_instances_does_not_matter() -> None:
    assert _homes(_NAMES) == _homes(_NAMES[::-1])
