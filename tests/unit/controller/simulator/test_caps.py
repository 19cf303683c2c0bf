"""Capped memory: who gives way, who waits, and that nobody who works is ever asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.demotion import Step
from standby.controller.eviction import MemoryKind
from standby.controller.simulator.baselines import FOREVER, Schedule
from standby.controller.simulator.cost_model import CostModel
from standby.controller.simulator.engine import Replay, replay
from standby.controller.simulator.greedy_dual import GreedyDual
from standby.controller.simulator.protocol import Caps, Eviction, Resting
from standby.controller.simulator.trace import Trace, merged
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

pytestmark = pytest.mark.decision

ONE_GB = CostModel(smallest_gb=10.0, largest_gb=10.0, warm_up_s=0.0)
"""Every model has 10 GB: asleep wakes in 0.8 s, staged starts in 10 s, cold in 70 s."""


class Recorder(Schedule):
    """Keeps everything ready, names the first that rests, and remembers what it was shown."""

    def __init__(self, falls_to: Rung) -> None:
        super().__init__((Rung.READY, FOREVER))
        self.falls_to = falls_to
        self.shown: list[tuple[float, MemoryKind, list[Resting]]] = []
        self.needs: list[float] = []

    def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:
        self.shown.append((now, kind, list(resting)))
        self.needs.append(need_gb)
        return Eviction(resting[0].function, resting[0].number, self.falls_to, "first") if resting else None


def per_minute(*rows: Sequence[int]) -> Trace:
    return Trace(functions=tuple("abcdef"[: len(rows)]), duration_s=60.0 * len(rows[0]), counts=np.array(rows))


def test_the_idle_one_falls_to_the_rung_that_was_named() -> None:
    """Room for one of two models: when b is asked, a falls asleep, and wakes later at b's cost."""
    policy = Recorder(Rung.ASLEEP)
    found = replay(per_minute([1, 0, 0, 0, 1], [0, 0, 1, 0, 0]), policy, ONE_GB, seed=1, caps=Caps(device=0.6), prestaged=True)
    assert [(kind, [(one.function, one.rung) for one in resting]) for _, kind, resting in policy.shown] == [
        (MemoryKind.DEVICE, [(0, Rung.READY)]),
        (MemoryKind.DEVICE, [(1, Rung.READY)]),
    ]
    assert found.starts == {"cold": 0, "staged": 2, "asleep": 1}


def test_a_start_waits_while_everybody_works() -> None:
    """b is asked while a starts and then works: it begins when a is done, 12 s after a began."""
    trace = Trace(functions=("a", "b"), duration_s=60.0, counts=np.array([[1], [1]]))
    seed = next(seed for seed in range(100) if abs(np.subtract(*trace.arrivals(seed))[0]) < 9)
    a, b = (float(times[0]) for times in trace.arrivals(seed))
    policy = Recorder(Rung.STAGED)
    found = replay(trace, policy, ONE_GB, seed=seed, caps=Caps(device=0.5), prestaged=True)
    first, second = min(a, b), max(a, b)
    assert found.wait_total_s == pytest.approx(10 + (first + 12 + 10 - second))
    assert [now for now, _, resting in policy.shown if resting] == pytest.approx([first + 12])


def test_nobody_falls_in_vain() -> None:
    """One idle instance of 10 GB is not enough for a start that needs more than that: it stays."""
    sizes = CostModel(smallest_gb=1.0, largest_gb=40.0, warm_up_s=0.0)
    names = sorted((f"f{i}" for i in range(40)), key=lambda name: sizes.size_gb(name, 1))
    small, middle, large = names[0], names[20], names[-1]
    counts = np.array([[1, 0, 0, 0, 0], [0, 0, 9, 9, 9], [0, 0, 0, 1, 0]])
    trace = Trace(functions=(small, middle, large), duration_s=300.0, counts=counts)
    total = sum(sizes.size_gb(name, 1) for name in trace.functions)
    policy = Recorder(Rung.STAGED)
    replay(trace, policy, sizes, seed=1, caps=Caps(device=(sizes.size_gb(large, 1) + 0.1) / total), prestaged=True)
    assert policy.shown
    offered = [sum(one.held_gb for one in resting) for _, _, resting in policy.shown]
    assert all(gb >= need for gb, need in zip(offered, policy.needs, strict=True))


def test_sleepers_give_way_where_host_memory_is_capped() -> None:
    """Host memory for one sleeper of three: the second pushes the first one down to staged."""
    policy = GreedyDual([10.0] * 3, ONE_GB, Rung.ASLEEP)
    trace = per_minute([1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0])
    found = replay(trace, policy, ONE_GB, seed=1, caps=Caps(device=0.4, host=0.34), prestaged=True)
    a, b, c = (float(times[0]) for times in trace.arrivals(1))
    # b's start sends a to sleep, c's sends b: there is host memory for b alone then, and a is only staged again, as it began.
    assert [one.host_gbs for one in found.functions] == pytest.approx([10 * (c - b), 10 * (360 - c), 0])
    assert found.functions[0].disk_gbs == pytest.approx(10 * (a + 360 - c))


def test_a_cap_below_the_largest_model_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"the largest model 10\.0 GB; give a share of at least 0\.500"):
        replay(per_minute([1], [1]), Recorder(Rung.STAGED), ONE_GB, seed=1, caps=Caps(device=0.4), prestaged=True)


def test_a_policy_that_names_somebody_else_is_refused() -> None:
    class Wrong(Recorder):
        def victim(self, need_gb: float, kind: MemoryKind, resting: Sequence[Resting], now: float) -> Eviction | None:
            return Eviction(1, 7, Rung.STAGED, "nobody")

    with pytest.raises(InvalidInput, match="evicts instance 7 of function 1"):
        replay(per_minute([1, 0, 0], [0, 0, 1]), Wrong(Rung.STAGED), ONE_GB, seed=1, caps=Caps(device=0.6), prestaged=True)


@settings(max_examples=60, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=2, max_size=5),
    device=st.floats(0.3, 1.0),
    host=st.none() | st.floats(0.0, 0.6),
    falls_to=st.sampled_from([Rung.ASLEEP, Rung.STAGED, Rung.COLD]),
    hold=st.floats(1.0, 90.0),
    seed=st.integers(0, 50),
)
def test_caps_hold_at_every_moment_and_everyone_is_served(
    counts: list[list[int]], device: float, host: float | None, falls_to: Rung, hold: float, seed: int
) -> None:
    model = CostModel(smallest_gb=2.0, largest_gb=8.0, warm_up_s=0.0, slots=2)
    trace = per_minute(*counts)
    sizes = [model.size_gb(name, seed) for name in trace.functions]
    caps = Caps(max(device, (max(sizes) + 0.5 * 40) / sum(sizes)), host)

    class Timed(GreedyDual):
        """Falls asleep by a timer as well."""

        timer = Schedule((Rung.READY, hold), (Rung.ASLEEP, FOREVER))

        def idle_instance(self, function: int, number: int, now: float, idle_s: float) -> Step:
            super().idle_instance(function, number, now, idle_s)
            return self.timer.idle(function, now, idle_s)

    policy = Timed(sizes, model, falls_to)
    engine = Replay(trace, policy, model, seed=seed, caps=caps, prestaged=False)
    assert engine.pool is not None
    times, owners = merged(trace.arrivals(seed))
    for now, owner in zip(times, owners, strict=True):
        engine.play([now], [owner])
        for kind in MemoryKind:
            held = sum(
                engine.pool.held(Rung.READY if one.starting else one.rung, f.size, kind)
                for f in engine.functions
                for one in f.instances
            )
            assert held == pytest.approx(engine.pool.used[kind], abs=1e-6)
            assert held <= engine.pool.limit[kind] + 1e-6
        assert all(not (one.busy and one.rung is not Rung.READY) for f in engine.functions for one in f.instances)
    engine.close()
    assert all(not f.pending and not f.queue for f in engine.functions)
    assert not engine.pool.waiting
