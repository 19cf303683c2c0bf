"""The depth of a queue that follows a latency target: pure rules, and the watch that gathers what they judge."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.priority import Priority
from standby.domain.traffic import QueueMode, TrafficPolicy
from standby.gateway.queue_depth import Depth, Window, adapt, adapts, due, first_depth
from standby.gateway.queue_watch import QueueWatch

pytestmark = pytest.mark.decision

POLICY = TrafficPolicy(latency_target=2.0, slo_violations=0.01, queue_floor=4)


def test_too_many_misses_take_places_away_from_where_the_queue_was_used() -> None:
    cut = adapt(Depth(1000.0, 0.0, ""), Window(requests=100, missed=2, deepest=40.0), POLICY, 1000, 5.0)
    assert (cut.places, cut.since) == (28.0, 5.0)
    assert cut.reason == "28 places, fewer: 2 of 100 requests missed 2 s, 0.01 of them may"


def test_places_are_added_one_floor_at_a_time_while_nobody_misses_and_they_are_used() -> None:
    depth = Depth(20.0, 0.0, "")
    assert adapt(depth, Window(100, 0, deepest=16.0), POLICY, 1000, 5.0).places == 24.0
    assert adapt(depth, Window(100, 0, deepest=3.0, turned_away=1), POLICY, 1000, 5.0).places == 24.0
    assert adapt(depth, Window(100, 0, deepest=15.0), POLICY, 1000, 5.0).places == 20.0, "it was not used"
    assert adapt(depth, Window(100, 1, deepest=20.0), POLICY, 1000, 5.0).places == 20.0, "as many miss as may"
    assert adapt(Depth(22.0, 0.0, ""), Window(100, 0, deepest=22.0), POLICY, 24, 5.0).places == 24.0


@given(
    places=st.floats(0, 5000),
    window=st.builds(Window, st.integers(0, 2000), st.integers(0, 2000), st.floats(0, 5000), st.integers(0, 5)),
    floor=st.integers(1, 50),
    ceiling=st.integers(0, 2000),
)
def test_the_depth_never_leaves_its_rails(places: float, window: Window, floor: int, ceiling: int) -> None:
    policy = TrafficPolicy(latency_target=1.0, queue_floor=floor)
    found = adapt(Depth(places, 0.0, ""), window, policy, ceiling, 1.0).places
    assert min(floor, ceiling) <= found <= max(ceiling, min(floor, ceiling))


def test_a_window_is_judged_as_soon_as_the_rest_of_it_cannot_change_the_verdict() -> None:
    assert not due(Window(10, 1), POLICY), "one of a hundred may miss, and 90 are to come"
    assert due(Window(10, 2), POLICY)
    assert due(Window(100, 0), POLICY)
    assert not due(Window(), POLICY)


def test_only_a_queue_with_a_target_adapts() -> None:
    assert adapts(POLICY)
    assert not adapts(TrafficPolicy())
    assert not adapts(TrafficPolicy(latency_target=2.0, queue=QueueMode.STATIC))


def test_one_surge_is_answered_once() -> None:
    """Whoever had come before the cut found the old depth, and says nothing of the new one."""
    watch = QueueWatch(POLICY, 1000, 0.0)
    watch.joined(50.0)
    for _ in range(40):
        watch.began(Priority.NORMAL, arrived=1.0, waited_s=9.0, first_byte_s=0.1, now=10.0)
    assert watch.depth is not None
    assert watch.depth.places == 35.0
    for _ in range(2):
        watch.began(Priority.NORMAL, arrived=11.0, waited_s=9.0, first_byte_s=0.1, now=20.0)
    assert watch.depth.places == 4.0, "nothing was used since, so that the floor is left"


def test_batch_has_no_target_and_a_static_queue_no_depth() -> None:
    watch = QueueWatch(POLICY, 1000, 0.0)
    watch.began(Priority.BATCH, 1.0, 100.0, 0.5, 101.0)
    watch.began(Priority.BATCH, 1.0, 100.0, 0.5, 101.0)
    assert watch.depth == first_depth(1000, 0.0)
    assert (watch.bound(Priority.BATCH), watch.target_s(Priority.BATCH)) == (None, None)
    assert watch.target_s(Priority.NORMAL) == 1.5, "the first byte takes half a second"
    fixed = QueueWatch(TrafficPolicy(latency_target=2.0, queue=QueueMode.STATIC), 1000, 0.0)
    assert (fixed.bound(Priority.HIGH), fixed.target_s(Priority.HIGH)) == (None, None)


def test_who_leaves_after_the_target_counts_as_missed_and_who_leaves_before_does_not() -> None:
    watch = QueueWatch(POLICY, 100, 0.0)
    watch.joined(10.0)
    for arrived in (1.0, 9.5, 9.6):
        watch.gave_up(Priority.NORMAL, arrived, now=10.0)
    assert watch.depth == first_depth(100, 0.0)
    watch.gave_up(Priority.NORMAL, 2.0, now=10.0)
    assert watch.depth is not None
    assert watch.depth.places == 7.0


def test_another_target_forgets_what_was_learnt_and_the_same_one_keeps_it() -> None:
    watch = QueueWatch(POLICY, 1000, 0.0)
    watch.joined(50.0)
    for _ in range(2):
        watch.began(Priority.NORMAL, 1.0, 9.0, 0.1, 10.0)
    watch.serve(POLICY.model_copy(update={"queue_floor": 5}), 1000, 11.0)
    assert watch.depth is not None
    assert watch.depth.places == 35.0
    watch.serve(POLICY.model_copy(update={"latency_target": 5.0}), 1000, 12.0)
    assert watch.depth.places == 1000.0
