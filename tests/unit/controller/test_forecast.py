"""Demand foreseen over one climb, against a slow reading of the same history at every tenth of a bucket."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from standby.controller import endpoint_plan, forecast, scaling
from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.dispersion import Clusters, from_history
from standby.controller.forecast import Spread, desired, foresee, stay_s, window_s
from standby.controller.scaling import Capacity
from standby.domain.endpoint import ScalePolicy

pytestmark = pytest.mark.decision

POLICY = ScalePolicy(slots=10, max_instances=8)
NOW = 1000.0
GRID = 0.25


def demand(*steps: tuple[float, int], valid: bool = True) -> EndpointDemand:
    """Requests at once from each time before NOW on, as the book of demand writes them down."""
    history: list[Bucket] = []
    before = 0
    for ago, value in steps:
        history.append(Bucket(NOW - ago, min(before, value), max(before, value), value))
        before = value
    return EndpointDemand(
        in_flight=before, valid=valid, valid_since=NOW - 600, history=tuple(history), bucket_s=GRID, active_at=NOW
    )


def up(count: int, climb: float = 2.0, starting: int = 0) -> Capacity:
    return Capacity(count + starting, count, NOW - 100 if count else None, climb)


def decided(seen: EndpointDemand, capacity: Capacity, policy: ScalePolicy = POLICY, dispersion: float | None = 1.0) -> int:
    return desired(seen, 1.0, policy, capacity, NOW, dispersion=dispersion).count


def test_a_rise_goes_on_for_another_climb() -> None:
    """From 2 to 12 in the last two seconds: 22 are foreseen, three instances; the same 12 for long need two."""
    assert decided(demand((60, 2), (1.5, 7), (0.5, 12)), up(1)) == 3
    assert decided(demand((60, 12)), up(1)) == 2
    assert decided(demand((60, 2), (3, 12)), up(1)) == 2


def test_room_for_chance_grows_with_dispersion() -> None:
    seen = demand((60, 9))
    assert decided(seen, up(1), dispersion=0.01) == 1
    assert decided(seen, up(1), dispersion=1.0) == 2  # 9 + 1.64 * 3
    assert decided(seen, up(1), dispersion=25.0) == 4  # 9 + 1.64 * 15


def test_those_on_their_way_count() -> None:
    seen = demand((60, 2), (1, 22))
    assert [decided(seen, up(1, starting=starting)) for starting in (0, 3, 4)] == [5, 5, 5]


def test_nothing_leaves_before_its_stay_is_over() -> None:
    """As long as the tenure of what has just come; a climb of 10 s at 0.8 is worth 12 s of holding."""
    assert stay_s(POLICY, 2.0) == forecast.SHORTEST_STAY_S == endpoint_plan.TENURE_S
    assert stay_s(POLICY, 10.0, 0.8) == pytest.approx(12.0)
    busy_until = [(9.0, 1), (11.0, 1)]
    stays, leaves = (desired(demand((60, 30), step), 1.0, POLICY, up(3), NOW, dispersion=1.0) for step in busy_until)
    assert stays.count == 3
    assert stays.wake_at == pytest.approx(NOW - 9.0 + GRID + 10.0, abs=0.01)
    assert leaves.count == 1


def test_the_operators_window_is_the_longest_stay_and_forever_means_never() -> None:
    brief, forever = (replace_policy(scale_in_after=seconds) for seconds in (7.0, math.inf))
    assert stay_s(brief, 2.0) == 7.0
    assert decided(demand((60, 30), (8.0, 1)), up(3), brief) == 1
    assert decided(demand((60, 30), (50.0, 1)), up(3), forever) == 3
    assert window_s(POLICY, 20.0) == 160.0


def test_what_is_not_foreseen_is_the_present_rule() -> None:
    """From zero, while the first one climbs, without data, beyond the bounds, and where a burst is over before the climb."""
    crowd = demand((60, 2), (1, 50))
    cases = [
        (crowd, up(0), POLICY),
        (crowd, up(0, starting=1), POLICY),
        (replace(crowd, valid=False), up(1), POLICY),
        (crowd, up(1, climb=40.0), POLICY),
        (crowd, up(1), replace_policy(max_instances=1)),
        (demand((60, 0)), up(1), replace_policy(min_ready=3)),
        (demand((60, 0)), up(9), POLICY),
    ]
    for seen, capacity, policy in cases:
        assert desired(seen, 1.0, policy, capacity, NOW) == scaling.desired(seen, 1.0, policy, capacity, NOW)


def test_a_young_book_takes_nothing_away() -> None:
    seen = replace(demand((60, 1)), valid_since=NOW - 8.0)
    decision = desired(seen, 1.0, POLICY, up(3), NOW)
    assert decision.count == 3
    assert decision.wake_at == pytest.approx(NOW + 2.0)


def replace_policy(**changes: float) -> ScalePolicy:
    return ScalePolicy(**{"slots": 10, "max_instances": 8, **changes})


histories = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=1, max_size=25).map(
    lambda steps: demand(*[(sum(gap for gap, _ in steps[i:]) * GRID, value) for i, (_, value) in enumerate(steps)])
)


def value_at(seen: EndpointDemand, at: float) -> int:
    return next((bucket.last for bucket in reversed(seen.history) if bucket.start <= at), 0)


@given(seen=histories, climb=st.sampled_from([0.5, 1.5, 4.0]), dispersion=st.floats(0.01, 30.0))
def test_against_a_slow_reading(seen: EndpointDemand, climb: float, dispersion: float) -> None:
    """What is foreseen now is exact; of the past it is at least what was foreseen at any moment inside the window."""
    got = foresee(seen, climb, 10.0, Spread(dispersion, 0.95), NOW)
    deviations = NormalDist().inv_cdf(0.95)

    def slow(at: float) -> float:
        here, ticks = value_at(seen, at), int(climb / GRID)
        first = seen.history[0].start
        past = [value_at(seen, at - tick * GRID) for tick in range(ticks) if at - tick * GRID > first] + [here]
        return here + max(here - min(past), deviations * math.sqrt(dispersion * here))

    moments = [NOW - tick * GRID for tick in range(int(10.0 / GRID)) if NOW - tick * GRID >= seen.history[0].start]
    assert got.now >= seen.concurrency
    assert got.now >= slow(NOW) - 1e-6
    assert got.lately >= max((slow(at) for at in moments), default=0.0) - 1e-6
    highest = max(bucket.high for bucket in seen.history)
    assert got.lately <= highest + max(highest, deviations * math.sqrt(dispersion * highest)) + 1e-6


@given(
    seen=histories,
    ready=st.integers(1, 8),
    starting=st.integers(0, 3),
    climb=st.floats(0.1, 20.0),
    share=st.floats(0.0, 1.0),
    dispersion=st.one_of(st.none(), st.floats(0.01, 100.0)),
)
def test_bounds_hold_and_the_present_always_fits(
    seen: EndpointDemand, ready: int, starting: int, climb: float, share: float, dispersion: float | None
) -> None:
    """Never beyond the bounds, never fewer than the requests of this moment fill, and a promise to look again is kept."""
    assume(ready + starting <= POLICY.max_instances)
    capacity = up(ready, climb, starting)
    decision = desired(seen, share, POLICY, capacity, NOW, dispersion=dispersion)
    assert 1 <= decision.count <= POLICY.max_instances
    if decision.count < capacity.current:
        assert decision.count * POLICY.slots >= seen.concurrency * share - 1e-6
    if climb <= forecast.LONGEST_CLIMB_S:
        assert decision.count >= min(POLICY.max_instances, math.ceil(seen.concurrency * share / POLICY.slots - 1e-9))
        if decision.wake_at < math.inf:
            assert decision.wake_at > NOW
            unchanged = replace(
                seen, history=(*seen.history, Bucket(NOW, seen.concurrency, seen.concurrency, seen.concurrency))
            )
            later = desired(unchanged, share, POLICY, capacity, decision.wake_at, dispersion=dispersion)
            assert later.count != capacity.current or later.wake_at > decision.wake_at


@given(seen=histories, climb=st.sampled_from([0.5, 1.5, 4.0]), more=st.integers(1, 30))
def test_more_demand_never_asks_for_less(seen: EndpointDemand, climb: float, more: int) -> None:
    crowded = replace(seen, in_flight=seen.in_flight + more)
    few, many = (desired(one, 1.0, POLICY, up(2, climb), NOW, dispersion=1.0).count for one in (seen, crowded))
    assert many >= few


def test_dispersion_is_the_mean_square_of_changes_by_the_level() -> None:
    """Changes of 4, -6 and 6 over two seconds each, from levels of 6, 2 and 8, and one assumed request."""
    seen = demand((6, 6), (4, 2), (2, 8), (0.5, 2))
    changes, levels = 1 + 4**2 + 6**2 + 6**2, 1 + 6 + 2 + 8
    assert from_history(seen, 2.0, NOW) == pytest.approx(changes / levels)
    assert from_history(EndpointDemand(), 2.0, NOW) == 1.0


def test_clusters_remember_over_silences_and_forget_by_the_hour() -> None:
    one = Clusters()
    assert one.value == 1.0
    for second in range(100):
        one.observe(20 if second % 10 == 5 else 0, 1.0, float(second))
    bursty = one.value
    assert bursty == pytest.approx(20 * 400 / 200, rel=0.05)
    one.observe(0, 1.0, 400.0)
    assert one.value == pytest.approx(bursty, rel=0.05)
    for second in range(401, 40_000, 10):
        one.observe(40, 1.0, float(second))
    assert one.value < 0.1


def test_clusters_take_one_sample_for_each_climb() -> None:
    one = Clusters()
    for at, value in ((0.0, 0), (1.0, 50), (2.0, 0)):
        one.observe(value, 2.0, at)
    assert one.changes == 0.0


def test_clusters_survive_a_clock_that_goes_back() -> None:
    one = Clusters()
    for at, value in ((10.0, 0), (12.0, 8), (5.0, 3), (7.0, 3)):
        one.observe(value, 2.0, at)
    assert one.changes == pytest.approx(64.0, rel=0.01)
    assert one.levels == pytest.approx(3.0, rel=0.01)
