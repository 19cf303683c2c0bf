"""How deep an engine with a device sleeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.warm_pool.sleep_depth import Depth, SleepCase, sleep_depth

pytestmark = pytest.mark.decision

CASE = SleepCase(holds=10, residue=4, weights=20, host_free=30)


def test_the_weights_are_kept_where_they_fit_with_a_reserve() -> None:
    choice = sleep_depth(CASE, reserve=10)
    assert (choice.depth, choice.reason) == (
        Depth.WEIGHTS_KEPT,
        "the weights fit into host memory: 24 of 40 bytes, 10 stay free",
    )


def test_else_they_are_dropped_and_the_reason_has_the_numbers() -> None:
    choice = sleep_depth(CASE, reserve=17)
    assert choice.depth is Depth.WEIGHTS_DROPPED
    assert choice.reason == "keeping the weights needs 24 and 17 in reserve of 40 bytes of host memory"


def test_a_residue_that_does_not_fit_ends_the_process() -> None:
    choice = sleep_depth(replace(CASE, holds=0, host_free=3), reserve=0)
    assert choice.depth is Depth.STAGED
    assert choice.reason.endswith("the residue of 4 bytes does not fit either")


def test_a_wake_that_gains_nothing_over_a_start_is_not_kept() -> None:
    crowded = replace(CASE, host_free=0, wake_dropped_s=9.0, start_s=8.0)
    assert sleep_depth(crowded, reserve=0).depth is Depth.STAGED
    vain = replace(CASE, wake_kept_s=8.0, wake_dropped_s=9.0, start_s=8.0)
    assert sleep_depth(vain, reserve=0).reason == (
        "a wake with weights kept takes 8 s, a start 8 s; a wake with weights dropped takes 9 s, a start 8 s"
    )


@given(st.builds(SleepCase, *[st.integers(0, 50)] * 4), st.integers(0, 50))
def test_what_is_kept_always_fits(case: SleepCase, reserve: int) -> None:
    depth = sleep_depth(case, reserve=reserve).depth
    kept = {Depth.STAGED: 0, Depth.WEIGHTS_KEPT: case.residue + case.weights, Depth.WEIGHTS_DROPPED: case.residue}[depth]
    assert kept <= case.host_free + case.holds
