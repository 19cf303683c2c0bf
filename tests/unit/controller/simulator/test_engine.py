"""The engine against a naive second implementation, against cases computed by hand, and against itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.demotion import Step
from standby.controller.simulator.baselines import FOREVER, Schedule, fixed_ttl, no_keepalive
from standby.controller.simulator.cost_model import CostModel, RungPrice
from standby.controller.simulator.engine import Replay, replay
from standby.controller.simulator.protocol import Policy
from standby.controller.simulator.report import Report
from standby.controller.simulator.trace import Trace, merged
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung
from support.naive_replay import OneFunction

pytestmark = pytest.mark.decision

ONE_GB = CostModel(smallest_gb=10.0, largest_gb=10.0, warm_up_s=0.0)
"""Every model has 10 GB: asleep wakes in 0.8 s, staged starts in 10 s, cold in 70 s."""


def stamped(*times: float, duration_s: float = 600.0) -> Trace:
    return Trace(functions=("f",), duration_s=duration_s, stamps=np.array(times))


def run(trace: Trace, policy: Policy, model: CostModel = ONE_GB, *, prestaged: bool = False) -> Report:
    return replay(trace, policy, model, seed=1, prestaged=prestaged)


def test_first_requests_share_one_cold_start() -> None:
    """Three come during 70 s of loading: one start, each waits for the rest of it, and 10 GB are held meanwhile."""
    found = run(stamped(100.0, 110.0, 150.0), fixed_ttl(1))
    assert found.starts == {"cold": 1, "staged": 0, "asleep": 0}
    assert found.cold_ratio == 1.0
    assert found.wait_total_s == pytest.approx(70 + 60 + 20)
    assert found.wait_max_s == pytest.approx(70)
    assert found.starting_gbs == pytest.approx(10 * 70)
    assert found.idle_gbs == pytest.approx(10 * 60)
    assert found.j(100.0) == pytest.approx(1300 + 100 * 150)


def test_each_rung_of_a_schedule_is_held_and_charged() -> None:
    """Ready 10 s, asleep 20 s, staged to the end; the second request wakes it 15 s after the first was done."""
    tiers = Schedule((Rung.READY, 10.0), (Rung.ASLEEP, 30.0), (Rung.STAGED, FOREVER))
    found = run(stamped(0.0, 87.0), tiers, prestaged=True)
    # 0 start from staged, 10 serve, 12 idle, 22 asleep, 42 staged, 87 start, 97 serve, 99 idle, 109 asleep, 129 staged
    assert found.wait_total_s == pytest.approx(20)
    assert found.idle_gbs == pytest.approx(10 * 20)
    assert found.host_gbs == pytest.approx(10 * 40)
    assert found.residue_gbs == pytest.approx(0.5 * 40)
    assert found.disk_gbs == pytest.approx(10 * (45 + 471))
    assert found.cost == pytest.approx(found.device_gbs + 0.1 * found.host_gbs + 0.005 * found.disk_gbs)


def test_a_queue_longer_than_a_start_clears_begins_another() -> None:
    """A wake of 0.8 s clears 16·1.4 = 22.4: the 23rd that waits begins a second start, from where a new one starts."""
    always = Schedule((Rung.ASLEEP, FOREVER))
    first = run(stamped(0.0, *[100.0] * 22), always, prestaged=True)
    second = run(stamped(0.0, *[100.0] * 23), always, prestaged=True)
    assert first.starts == {"cold": 0, "staged": 1, "asleep": 1}
    assert second.starts == {"cold": 0, "staged": 2, "asleep": 1}


def test_who_came_after_the_start_ended_waited_only_for_a_slot() -> None:
    """17 come at once and one later: 17 are served by the cold start, the 17th when a slot is free; the last waits for none."""
    found = run(stamped(*[0.0] * 17, 70.5, 80.0), fixed_ttl(1))
    assert found.served_by["cold"] == 17
    assert found.invocations == 19
    assert found.wait_total_s == pytest.approx(16 * 70 + 72 + 1.5)


def test_nothing_is_counted_within_the_warm_up() -> None:
    found = run(stamped(0.0, 300.0), no_keepalive(), replace(ONE_GB, warm_up_s=310.0))
    assert found.invocations == 0
    assert found.wait_total_s == 0
    assert found.starting_gbs == pytest.approx(10 * 60)


def test_a_climb_ahead_of_the_request_ends_before_it() -> None:
    """Staged until 50 s idle, then ready again: the climb takes 10 s, so a request 65 s after waits for nothing."""

    class Ahead(Schedule):
        def idle(self, function: int, now: float, idle_s: float) -> Step:
            return Step(Rung.STAGED, 50.0, "away") if idle_s < 50 else Step(Rung.READY, FOREVER, "back")

    found = run(stamped(0.0, 77.0), Ahead((Rung.READY, FOREVER)), prestaged=True)
    assert found.starts["staged"] == 3  # the first, and one ahead of each gap
    assert found.wait_total_s == pytest.approx(10)


def test_a_step_that_ends_in_the_past_is_refused() -> None:
    with pytest.raises(InvalidInput, match="holds ready until 0"):
        run(stamped(1.0), Schedule((Rung.READY, 0.0)))


stages = st.lists(
    st.tuples(st.sampled_from([Rung.READY, Rung.ASLEEP, Rung.STAGED, Rung.COLD]), st.floats(0.5, 40.0)), min_size=1, max_size=4
)


@settings(max_examples=150, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 40), min_size=4, max_size=4), min_size=1, max_size=3),
    lengths=stages,
    last=st.sampled_from([Rung.READY, Rung.ASLEEP, Rung.STAGED, Rung.COLD]),
    seed=st.integers(0, 1000),
    prestaged=st.booleans(),
    slots=st.integers(1, 4),
)
def test_the_naive_implementation_agrees(
    counts: list[list[int]], lengths: list[tuple[Rung, float]], last: Rung, seed: int, prestaged: bool, slots: int
) -> None:
    """Random traces under random schedules, that climb as well as fall: the same waits from the same rungs, the same spans."""
    model = CostModel(slots=slots, warm_up_s=70.0)
    total, steps = 0.0, []
    for rung, length in lengths:
        total += length
        steps.append((rung, total))
    policy = Schedule(*steps, (last, FOREVER))
    trace = Trace(functions=tuple("abc"[: len(counts)]), duration_s=240.0, counts=np.array(counts))
    engine = Replay(trace, policy, model, seed=seed, prestaged=prestaged)
    engine.play(*merged(trace.arrivals(seed)))
    engine.close()
    floor = Rung.STAGED if prestaged else Rung.COLD
    for function, arrivals in zip(engine.functions, trace.arrivals(seed), strict=True):
        naive = OneFunction(function.number, function.size, model, policy.idle, floor, 240.0).play(arrivals.tolist())
        waits = sorted((rung, wait) for rung, some in function.waits.items() for wait in some)
        assert [rung for rung, _ in waits] == [rung for rung, _ in sorted(naive.waits)]
        assert [wait for _, wait in waits] == pytest.approx([wait for _, wait in sorted(naive.waits)])
        spans = (function.idle_s, function.start_s, function.asleep_s, function.disk_s)
        assert spans == pytest.approx(tuple(naive.spans.values()), abs=1e-6)


def test_two_replays_are_equal_and_another_seed_is_not() -> None:
    trace = Trace(functions=("a", "b"), duration_s=600.0, counts=np.full((2, 10), 7))
    model = CostModel(warm_up_s=60.0)
    first, again = (replay(trace, fixed_ttl(1), model, seed=3, prestaged=False) for _ in range(2))
    assert first == again
    assert replay(trace, fixed_ttl(1), model, seed=4, prestaged=False) != first


def test_sizes_do_not_depend_on_the_other_functions() -> None:
    model = CostModel()
    assert model.size_gb("f", 1) == model.size_gb("f", 1)
    assert model.size_gb("f", 1) != model.size_gb("f", 2)
    assert all(1 <= model.size_gb(f"f{i}", 1) <= 40 for i in range(200))


def test_prices_of_a_rung() -> None:
    model = CostModel()
    assert model.hold(Rung.ASLEEP, 10) == pytest.approx(0.1 * 10 + 0.5)
    assert model.wait_s(Rung.COLD, 10) == 70
    assert RungPrice(wait_s=1, wait_s_per_gb=2).wait(3) == 7
