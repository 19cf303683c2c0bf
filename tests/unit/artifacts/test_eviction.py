"""The choice of what leaves the cache."""

from __future__ import annotations

import pytest

from standby.warm_pool.eviction import Candidate, Room, plan_eviction

pytestmark = pytest.mark.decision

PLENTY = 1 << 40


def candidate(digest: str, size: int, last_used: float, *, pinned: bool = False) -> Candidate:
    return Candidate(digest, size, last_used, pinned)


def test_nothing_goes_while_there_is_room() -> None:
    plan = plan_eviction([candidate("a", 40, 1)], Room(100, 20, PLENTY), 40)
    assert (plan.fits, plan.victims) == (True, ())


def test_least_recently_used_goes_first_and_no_more_than_needed() -> None:
    held = [candidate("new", 40, 3), candidate("old", 40, 1), candidate("mid", 20, 2)]
    assert plan_eviction(held, Room(100, 0, PLENTY), 30).victims == ("old",)
    assert plan_eviction(held, Room(100, 0, PLENTY), 50).victims == ("old", "mid")


def test_pinned_never_goes() -> None:
    held = [candidate("old", 40, 1, pinned=True), candidate("new", 40, 2)]
    assert plan_eviction(held, Room(100, 0, PLENTY), 50).victims == ("new",)


def test_nothing_goes_when_it_would_not_suffice() -> None:
    plan = plan_eviction([candidate("a", 70, 1, pinned=True), candidate("b", 20, 2)], Room(100, 0, PLENTY), 50)
    assert (plan.fits, plan.victims) == (False, ())
    assert "70 bytes in use" in plan.reason


def test_larger_than_the_cap_never_fits() -> None:
    plan = plan_eviction([candidate("a", 10, 1)], Room(100, 0, PLENTY), 101)
    assert (plan.fits, plan.victims) == (False, ())
    assert "101 bytes are more than the cache's cap of 100 bytes" in plan.reason


def test_running_downloads_count() -> None:
    assert not plan_eviction([], Room(100, 60, PLENTY), 50).fits


def test_a_full_disk_evicts_although_the_cap_is_far() -> None:
    plan = plan_eviction([candidate("a", 40, 1)], Room(1000, 0, 20), 50)
    assert (plan.fits, plan.victims) == (True, ("a",))
