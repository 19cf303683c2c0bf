"""How long one plan of the whole cluster takes, in three sizes and states: ``python tests/benchmarks/bench_policy_plan.py``.

Steady: nothing is to do. Live: as the controller's loop meets it, a few of a hundred endpoints change. Climbing: every tenth
endpoint wants two or three instances more, at once. The collector of garbage is calmed as it is in the controller.
"""

from __future__ import annotations

import gc
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from standby.controller.plan import plan
from standby.controller.view import ClusterView
from support.bench_figures import percentile
from support.plan_views import NOW, State, a_cluster

SIZES: Final = ((250, 25), (500, 50), (1000, 100))
PER_ENDPOINT: Final = 5
CROWD: Final = 10_000


class Measured(NamedTuple):
    """Of one state in one size: milliseconds of one plan, and what it wants done."""

    p50: float
    p99: float
    actions: Counter[str]


def plan_figures(console: Console, *, rounds: int = 60) -> dict[str, float]:
    """Print all sizes and states; return the largest one's figures in milliseconds and the exponents of growth."""
    table = Table("state", "endpoints", "nodes", "instances", "p50 ms", "p99 ms", "actions", title="one plan of the cluster")
    found: dict[str, float] = {}
    for state in (State.STEADY, State.LIVE, State.CLIMBING):
        medians = []
        for endpoints, nodes in SIZES:
            one = _measured(a_cluster(endpoints, nodes, PER_ENDPOINT, state), rounds)
            medians.append(one.p50)
            told = ", ".join(f"{count} {name}" for name, count in sorted(one.actions.items())) or "none"
            sizes = (str(endpoints), str(nodes), str(endpoints * PER_ENDPOINT))
            table.add_row(state.value, *sizes, f"{one.p50:.1f}", f"{one.p99:.1f}", told)
            found[f"plan_{state.value}_p99_ms"] = round(one.p99, 1)
        found[f"plan_{state.value}_exponent"] = round(_exponent([endpoints for endpoints, _ in SIZES], medians), 2)
    console.print(table)
    waking = _measured(a_cluster(CROWD, 100, 0, State.WAKING), max(3, rounds // 20))
    console.print(f"{CROWD} endpoints at zero asked for at once: {waking.p50:.0f} ms, {dict(waking.actions)}")
    found["plan_crowd_ms"] = round(waking.p50, 1)
    for name in ("steady", "live", "climbing"):
        console.print(f"{name}: cost grows with the endpoints to the power of {found[f'plan_{name}_exponent']}")
    return found


def _measured(view: ClusterView, rounds: int) -> Measured:
    actions = Counter(type(action).__name__ for action in plan(view, NOW).actions)
    gc.collect()
    gc.freeze()
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        plan(view, NOW)
        times.append(1000 * (time.thread_time() - began))
    gc.unfreeze()
    return Measured(percentile(times, 0.5), percentile(times, 0.99), actions)


def _exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of the line through the logarithms: 1 is linear; n log n is 1.15 between these sizes."""
    xs, ys = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


if __name__ == "__main__":
    print(json.dumps(plan_figures(Console(width=140, highlight=False))))
