"""The simulation of a queue against the closed formula of M/M/c/K, and what the adaptive depth does in it."""

from __future__ import annotations

import pytest

from standby.domain.traffic import QueueMode
from support.queue_simulation import Setting, Step, m_m_c_k, simulate


def test_the_formula_is_right_where_it_can_be_worked_out_by_hand() -> None:
    """One server, one place, offered load 1: each of the three states is as likely; the wait is one service of 1 s."""
    assert m_m_c_k(rate=1.0, service_s=1.0, slots=1, places=1) == pytest.approx((1 / 3, 0.5))


@pytest.mark.parametrize(("rate", "slots", "places"), [(3.6, 4, 8), (9.0, 8, 20), (1.2, 1, 3)])
def test_the_simulation_agrees_with_the_closed_formula(rate: float, slots: int, places: int) -> None:
    seen = simulate(Setting(slots, places), [Step(80_000 / rate, rate, 1.0)], seed=1)
    expected = m_m_c_k(rate, 1.0, slots, places)
    assert seen.blocked_share == pytest.approx(expected.blocked_share, rel=0.05)
    assert seen.mean_wait_s == pytest.approx(expected.mean_wait_s, rel=0.04)
    assert seen.arrived == seen.served + seen.refused.total()


def test_the_same_seed_gives_the_same_numbers() -> None:
    step = Step(200, 6.0, 1.0)
    assert simulate(Setting(4, 8), [step], seed=3) == simulate(Setting(4, 8), [step], seed=3)


def test_the_adaptive_depth_keeps_the_target_in_a_surge_that_a_deep_queue_does_not() -> None:
    """Twice as many requests come as can be served: what is served is served in time, and the slots are as busy."""
    surge = [Step(60, 5.0, 1.0), Step(240, 16.0, 1.0)]
    deep = simulate(Setting(8, 1000, QueueMode.STATIC, 4.0, 50.0), surge, seed=5)
    adaptive = simulate(Setting(8, 1000, QueueMode.ADAPTIVE, 4.0, 50.0), surge, seed=5)
    assert deep.late_share > 0.5
    assert adaptive.late_share < 0.03
    assert adaptive.throughput(60, 300) == pytest.approx(deep.throughput(60, 300), rel=0.03)
    assert adaptive.deepest < 40
