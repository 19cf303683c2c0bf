"""Adaptive against fixed queue depth in a stepped surge, simulated with the gateway's own admission and waiting room.

The simulation itself is held against the closed formula of M/M/c/K in ``tests/unit/gateway/test_queue_simulation.py``.
Run alone with ``PYTHONPATH=tests python tests/benchmarks/bench_traffic_queue.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from standby.domain.endpoint import ScalePolicy
from standby.domain.traffic import QueueMode, TrafficPolicy
from support.queue_simulation import FIRST_TOKEN_SHARE, Outcome, Setting, Step, simulate

SLOTS: Final = 8
TARGET_S: Final = 4.0
PATIENCE_S: Final = ScalePolicy().max_cold_wait
FIXED_DEPTH: Final = ScalePolicy().queue_requests
SEEDS: Final = (1, 2, 3, 4, 5)
# What eight slots bear with answers of a second each, in requests per second.
_CAPACITY: Final = float(SLOTS)
SURGE: Final = (
    Step(300, 0.7 * _CAPACITY, 1.0),
    Step(300, 1.5 * _CAPACITY, 1.0),
    Step(300, 0.7 * _CAPACITY, 1.0),
    Step(200, 2.5 * _CAPACITY, 1.0),
    Step(600, 0.7 * _CAPACITY, 1.0),
)
# The same loads, but in the first surge there are half as many requests that each take twice as long.
SLOWER_SURGE: Final = (SURGE[0], Step(300, 0.75 * _CAPACITY, 2.0), *SURGE[2:])
_SURGES_S: Final = ((300.0, 600.0), (900.0, 1100.0))
_DEPTHS_TRIED: Final = (8, 12, 16, 18, 20, 22, 24, 28, 32)


@dataclass(frozen=True)
class Figures:
    """Of all seeds together: requests served and those of them that missed the target, and answers/s in the surges."""

    served: int
    late: int
    throughput: float
    refused: int
    gave_up: int

    @property
    def late_share(self) -> float:
        """Share of the served ones that missed the target."""
        return self.late / self.served


def measure(steps: tuple[Step, ...], mode: QueueMode, depth: int) -> Figures:
    """Return the figures of one queue."""
    setting = Setting(SLOTS, depth, mode, TARGET_S, PATIENCE_S)
    outcomes = [simulate(setting, steps, seed) for seed in SEEDS]
    return Figures(
        sum(outcome.served for outcome in outcomes),
        sum(outcome.late for outcome in outcomes),
        sum(_in_surges(outcome) for outcome in outcomes) / len(outcomes),
        sum(outcome.refused.total() for outcome in outcomes),
        sum(outcome.gave_up for outcome in outcomes),
    )


@dataclass(frozen=True)
class Comparison:
    """The default fixed depth against the adaptive one, and ``lines`` that say what was simulated, with all numbers."""

    fixed: Figures
    adaptive: Figures
    lines: tuple[str, ...]

    @property
    def violations_ratio(self) -> float:
        """How much smaller the share of served requests is that miss the target; with none at all it counts as one."""
        return self.fixed.late_share / max(self.adaptive.late_share, 1.0 / self.adaptive.served)


def compare() -> Comparison:
    """Return how many served requests miss the target with each queue.

    Beside the two there is the deepest fixed queue that meets the target in this surge, and what becomes of it in another
    one that it cannot know.
    """
    allowed = TrafficPolicy(latency_target=TARGET_S).slo_violations
    fixed = measure(SURGE, QueueMode.STATIC, FIXED_DEPTH)
    adaptive = measure(SURGE, QueueMode.ADAPTIVE, FIXED_DEPTH)
    tried = {depth: measure(SURGE, QueueMode.STATIC, depth) for depth in _DEPTHS_TRIED}
    tuned = max(depth for depth, figures in tried.items() if figures.late_share <= allowed)
    slower = "answers twice as long in the first surge"
    simulated = (
        f"simulated: {SLOTS} slots, Poisson arrivals, exponential service of 1 s, first token after {FIRST_TOKEN_SHARE:.0%} of "
        f"it; load 0.7, 1.5, 0.7, 2.5, 0.7 of what the slots bear for 300, 300, 300, 200, 600 s; {len(SEEDS)} seeds; "
        f"target {TARGET_S:g} s to the first token for all but {allowed:.0%}; longest wait {PATIENCE_S:g} s"
    )
    lines = (
        simulated,
        _line(f"fixed depth {FIXED_DEPTH} (default)", fixed),
        _line("adaptive depth", adaptive),
        _line(f"fixed depth {tuned}, the deepest of {_DEPTHS_TRIED} that meets the target here", tried[tuned]),
        _line(f"{slower}: fixed depth {tuned}", measure(SLOWER_SURGE, QueueMode.STATIC, tuned)),
        _line(f"{slower}: adaptive depth", measure(SLOWER_SURGE, QueueMode.ADAPTIVE, FIXED_DEPTH)),
    )
    return Comparison(fixed, adaptive, lines)


def _in_surges(outcome: Outcome) -> float:
    lasted = sum(end - begin for begin, end in _SURGES_S)
    return sum(outcome.throughput(begin, end) * (end - begin) for begin, end in _SURGES_S) / lasted


def _line(name: str, figures: Figures) -> str:
    return (
        f"{name}: {figures.late} of {figures.served} served missed it ({figures.late_share:.3%}), "
        f"{figures.throughput:.3f} answers/s in the surges, {figures.refused} refused, {figures.gave_up} waited in vain"
    )


if __name__ == "__main__":
    compared = compare()
    for line in (*compared.lines, f"violations_ratio {compared.violations_ratio:.1f}"):
        print(line)
