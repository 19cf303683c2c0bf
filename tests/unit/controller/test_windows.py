"""Scale-out by means over a stable and a panic window: against an independent reading of Knative's formulas, and in life."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller import scaling
from standby.controller.actions import Assign, Retarget, Unassign
from standby.controller.asked import Bucket, EndpointDemand
from standby.domain.endpoint import ScalePolicy
from support.cluster import Cluster

NOW = 1000.0
CLIMB_S = 2.0
levels = st.lists(st.integers(0, 30), min_size=2, max_size=120)


def seen(values: list[int]) -> EndpointDemand:
    """The gateways said one value each second, the last one now."""
    start = NOW - len(values) + 1
    history = tuple(
        Bucket(start + at, min(values[max(0, at - 1)], v), max(values[max(0, at - 1)], v), v) for at, v in enumerate(values)
    )
    return EndpointDemand(in_flight=values[-1], valid=True, valid_since=0.0, history=history)


def knative(values: list[int], ready: int, load: float, most: int) -> int:
    """What the formulas say, second by second; None of our code: averages of samples, ceilings, panic at twice the ready."""

    def wanted(window: int) -> int:
        taken = values[-window:]
        return math.ceil(sum(taken) / len(taken) / load - 1e-9)

    stable, panic = wanted(60), wanted(6)
    return min(most, max(stable, panic) if panic / ready >= 2 else stable)


def _excess(values: list[int], count: int, slots: int, most: int) -> tuple[int, float]:
    """How many of the last values need more than ``count``, and for how many seconds that has been so."""
    excess = 0
    while excess < len(values) and min(most, math.ceil(values[-1 - excess] / slots)) > count:
        excess += 1
    # the bucket in which it began holds the lower value as well: it ends a quarter of a second later
    return excess, excess - 1 - 0.25 if excess < len(values) else excess - 1


@given(values=levels, ready=st.integers(1, 4), slots=st.integers(1, 4), most=st.integers(4, 12))
@settings(max_examples=400, deadline=None)
def test_out_is_what_lasts_or_what_the_means_before_it_need(values: list[int], ready: int, slots: int, most: int) -> None:
    """The rule of lasting demand judges the present excess; the windows end where that began, and need some past."""
    policy = ScalePolicy(slots=slots, max_instances=most)
    capacity = scaling.Capacity(ready, ready, NOW - 500.0, CLIMB_S)
    found = scaling.desired(seen(values), 1.0, policy, capacity, NOW)
    needed = min(most, math.ceil(values[-1] / slots))
    if needed <= ready:
        assert found.count <= ready
        return
    excess, lasted = _excess(values, ready, slots, most)
    if lasted >= CLIMB_S:
        count = ready
        # what came later has lasted for less, and may yet be enough for more
        while needed > count and lasted >= CLIMB_S:
            count = min(most, math.ceil(min(values[len(values) - excess :]) / slots))
            excess, lasted = _excess(values, count, slots, most)
        assert ready <= found.count <= needed
        assert found.count == count
        return
    before = values[: len(values) - excess]
    if len(before) < CLIMB_S:
        assert found.count == ready
        return
    ceiling = knative(before, ready, slots, most)
    # a quarter of a second of the present excess lies inside the windows
    slack = math.ceil(30 * 0.25 / (min(6, len(before)) * slots)) + 1
    assert found.count <= min(needed, max(ready, ceiling + slack))
    assert found.count >= min(needed, max(ready, min(ceiling, knative([*before[1:], 0], ready, slots, most)) - slack))


def test_load_that_comes_and_goes_gets_what_it_needs_on_average() -> None:
    """Never long enough for a slow start: by lasting demand alone there would be one instance for ever."""
    policy = ScalePolicy(slots=4, max_instances=9)
    capacity = scaling.Capacity(1, 1, NOW - 500.0, climb_s=30.0)
    pulses = [12 if second % 10 < 5 else 0 for second in range(120)] + [12]
    decision = scaling.desired(seen(pulses), 1.0, policy, capacity, NOW)
    assert decision.count == 2
    assert "on average over" in decision.reason
    assert scaling.desired(seen([*[1] * 119, 12]), 1.0, policy, capacity, NOW).count == 1, "one burst is no mean"


def test_a_short_storm_is_a_panic() -> None:
    policy = ScalePolicy(slots=4, max_instances=20)
    capacity = scaling.Capacity(1, 1, NOW - 500.0, climb_s=1.0)
    calm = [1] * 100
    storm = [24, 0, 24, 0, 24, 0, 24]
    decision = scaling.desired(seen([*calm, *storm]), 1.0, policy, capacity, NOW)
    assert decision.count >= 3
    assert "over 6.0 s" in decision.reason


def test_what_waited_for_a_start_is_no_mean() -> None:
    """Field case B07: an instance has just become ready, and everything before that is a queue behind its start."""
    capacity = scaling.Capacity(1, 1, NOW - 1.0, CLIMB_S)
    assert scaling.desired(seen([0, 40] * 30), 1.0, ScalePolicy(slots=4, max_instances=9), capacity, NOW).count == 1


def pulsing(**policy: Any) -> Cluster:
    cluster = Cluster(load_s=8.0)
    cluster.add_node()
    cluster.add_endpoint(
        memory_mb=128, slots=4, max_instances=6, keep_ready=300, keep_asleep=600, keep_staged="forever", **policy
    )
    for _ in range(40):
        cluster.ask(in_flight=11)
        cluster.run_until(cluster.now + 4.0)
        cluster.ask(in_flight=0)
        cluster.run_until(cluster.now + 4.0)
    return cluster


def test_pulses_do_not_make_instances_come_and_go() -> None:
    for window in (60, 20, 5):
        cluster = pulsing(scale_in_after=window)
        moves = [a for at, a in cluster.trace if at > 1120.0 and isinstance(a, (Assign, Unassign))]
        climbs = [a for at, a in cluster.trace if at > 1120.0 and isinstance(a, Retarget) and a.rung > a.before]
        assert moves == []
        if window == 60:
            assert climbs == []
            assert cluster.state_of().count("ready") >= 2
        assert len(climbs) <= 16, "at most one climb in two pulses"
