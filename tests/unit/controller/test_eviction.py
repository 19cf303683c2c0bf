"""Who gives memory back first."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.arrivals import GapModel
from standby.controller.demotion import FOREVER, expected_loss
from standby.controller.economics import Held, PriceVector, RungCost, ladder
from standby.controller.eviction import Ask, Candidate, MemoryKind, Share, ranked, victim
from standby.domain.instance import Rung

pytestmark = pytest.mark.decision
READY, ASLEEP, STAGED = Rung.READY, Rung.ASLEEP, Rung.STAGED
DEVICE, HOST = MemoryKind.DEVICE, MemoryKind.HOST
PRICES = PriceVector()


def candidate(
    key: str, gap: float, *, size: float = 10.0, rung: Rung = READY, idle: float = 5.0, tenant: str = "t", seen: int = 30
) -> Candidate:
    gaps = GapModel()
    for k in range(seen):
        gaps.observe(gap, k * gap)
    rungs = [RungCost(READY, size, 0), RungCost(ASLEEP, 0.1 * size + 0.5, 0.3 + 0.05 * size)]
    held = {READY: Held(device_gb=size), ASLEEP: Held(0.5, size, size), STAGED: Held(disk_gb=size)}
    made = ladder([*rungs, RungCost(STAGED, 0.005 * size, 5 + 0.5 * size)])
    return Candidate(key, tenant, rung, idle, FOREVER, made, gaps, held)


def test_one_that_is_not_soon_missed_goes_first_and_sleeps() -> None:
    fall = victim(Ask(DEVICE, 5), [candidate("soon", 8), candidate("rare", 9000)], PRICES)
    assert fall is not None
    assert (fall.key, fall.rung, fall.freed_gb) == ("rare", ASLEEP, 9.5)
    assert fall.reason.startswith("falling from ready to asleep frees 9.5 GB at an expected price of ")


@pytest.mark.parametrize(("busy", "pinned"), [(True, False), (False, True)])
def test_busy_and_pinned_never_fall(*, busy: bool, pinned: bool) -> None:
    rare = replace(candidate("rare", 9000), busy=busy, pinned=pinned)
    fall = victim(Ask(DEVICE, 5), [candidate("soon", 8), rare], PRICES)
    assert fall is not None
    assert fall.key == "soon"
    assert victim(Ask(DEVICE, 5), [rare], PRICES) is None


def test_newcomer_falls_only_after_all_others() -> None:
    rare = replace(candidate("rare", 9000), tenure_s=1.0)
    assert [fall.key for fall in ranked(DEVICE, [rare, candidate("soon", 8)], PRICES)] == ["soon", "rare"]


def test_host_memory_is_freed_by_sleepers() -> None:
    awake, sleeper = candidate("awake", 9000), candidate("sleeper", 900, rung=ASLEEP)
    fall = victim(Ask(HOST, 5), [awake, sleeper], PRICES)
    assert fall is not None
    assert (fall.key, fall.rung, fall.freed_gb) == ("sleeper", STAGED, 10.0)


def test_swap_must_gain_more_than_it_costs() -> None:
    sleeper = candidate("sleeper", 900, rung=ASLEEP, idle=800)
    loss = ranked(HOST, [sleeper], PRICES)[0].loss_per_gb
    assert loss > 0
    assert victim(Ask(HOST, 4, gain=4 * loss * 1.4), [sleeper], PRICES) is None
    assert victim(Ask(HOST, 4, gain=4 * loss * 1.6), [sleeper], PRICES) is not None
    assert victim(Ask(HOST, 4), [sleeper], PRICES) is not None


def test_sleepers_are_not_emptied_for_their_residue() -> None:
    """A start that needs 30 GB would take sixty sleepers' half a GB each; while somebody works it waits instead."""
    sleepers = [candidate(str(k), 900, rung=ASLEEP, idle=800) for k in range(60)]
    assert victim(Ask(DEVICE, 30), sleepers, PRICES) is None
    assert victim(Ask(DEVICE, 30, patient=False), sleepers, PRICES) is not None
    assert (
        victim(Ask(DEVICE, 30), [*sleepers, candidate("idle", 8)], PRICES) == ranked(DEVICE, [candidate("idle", 8)], PRICES)[0]
    )


def test_tenant_over_its_share_gives_first() -> None:
    """Of two alike, the one whose tenant holds three quarters of the memory."""
    small, large = candidate("a", 8, tenant="small"), candidate("b", 8, tenant="large")
    share = Share(100, {"small": 25, "large": 75})
    assert [fall.key for fall in ranked(DEVICE, [small, large], PRICES, share=share)] == ["b", "a"]
    assert [fall.key for fall in ranked(DEVICE, [small, large], PRICES)] == ["a", "b"]
    assert share.weight("small") == 1
    assert share.weight("large") == pytest.approx(2 / 3)
    assert share.weight("nobody") == 1


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(1, 5000), st.floats(1, 40), st.sampled_from([READY, ASLEEP]), st.floats(0, 3000), st.integers(0, 9)
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([DEVICE, HOST]),
)
def test_no_single_fall_is_cheaper_per_gb(rows: list[tuple[float, float, Rung, float, int]], kind: MemoryKind) -> None:
    """Against trying every pair of candidate and rung."""
    each = [
        candidate(str(k), gap, size=size, rung=rung, idle=idle, seen=seen)
        for k, (gap, size, rung, idle, seen) in enumerate(rows)
    ]
    tried = []
    for one, to in product(each, [ASLEEP, STAGED]):
        before, after = one.held[one.rung], one.held[to]
        freed = before.device_gb - after.device_gb if kind is DEVICE else before.host_gb - after.host_gb
        if to < one.rung and freed > 0:
            tried.append(expected_loss(one.ladder, one.gaps, one.idle_s, (one.rung, to), PRICES) / freed)
    fall = victim(Ask(kind, 0.1, patient=False), each, PRICES)
    assert (fall is None) == (not tried)
    assert fall is None or fall.loss_per_gb == pytest.approx(min(tried))
