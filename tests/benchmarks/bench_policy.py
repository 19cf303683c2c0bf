"""What standby's policy costs on a trace beside timers, ski-rental, eviction by worth, and the bounds: ``make bench-policy``.

The rules of the replay and the published policies are in ``standby.controller.simulator``; ``--check`` also prints what an
independent implementation of the same rules found on the same trace. ``--traces DIR`` holds ``azure_functions_2019_dev.csv``
(Shahrad et al., "Serverless in the Wild", USENIX ATC 2020) and ``azure_llm_2023_*.csv`` (Patel et al., "Splitwise", ISCA
2024), whose requests one endpoint serves that scales over instances; without them synthetic traces of the same kind are made,
and the figures are not those of the goals. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bench_policy_plan import plan_figures
from standby.controller.simulator import known, tables
from standby.controller.simulator.catalogue import Setting
from standby.controller.simulator.protocol import Caps
from standby.controller.simulator.report import Report
from standby.controller.simulator.trace import Trace, read
from support import bench_requests

TRACE = "azure_functions_2019_dev.csv"
BESIDE = Path(__file__).parents[2].parent / "shared" / "traces"
OURS, TIMER, YARDSTICK, BOUND = "standby", "ttl-10", "ski-rental", "knows-gaps"
TIMERS = (TIMER, "ttl-1", "ttl-60", "hybrid-histogram", "asleep-1-cold-60")
TIERS = ("asleep-0.25-staged-20", YARDSTICK, "standby-worst-case", "standby-no-prewarm", OURS, BOUND, "clairvoyant")
EVICTING = ("greedy-dual-staged", "greedy-dual-asleep", OURS)
GOALS = {
    "cold_vs_ttl10": 0.0,
    "waste_vs_ttl10": 0.15,
    "wait_p999_s": 2.0,
    "j100_vs_ski": 0.85,
    "j100_vs_bound": 1.25,
    "cap25_j100": 0.28,
    "plan_p99_ms": 50.0,
    **bench_requests.GOALS,
}


def synthetic(seed: int, functions: int = 120, minutes: int = 480) -> Trace:
    """Return a trace of the same kind: most functions are rare, few are busy, some come in bursts, some by the clock."""
    rng = np.random.default_rng([seed, 7])
    rates = np.exp(rng.uniform(np.log(0.005), np.log(60.0), functions) - rng.exponential(1.0, functions))
    counts = rng.poisson(rates[:, None] * rng.gamma(0.5, 2.0, (functions, minutes)))
    for at in range(0, functions, 5):
        counts[at] = 0
        counts[at, rng.integers(0, 30) :: int(rng.choice([5, 10, 15, 30, 60]))] = rng.integers(1, 4)
    return Trace(functions=tuple(f"synthetic-{i}" for i in range(functions)), duration_s=60.0 * minutes, counts=counts)


def replayed(setting: Setting, names: tuple[str, ...], console: Console, title: str) -> dict[str, Report]:
    """Replay each policy, print their table, and return the reports by name."""
    began = time.perf_counter()
    reports = {name: setting.replay(name) for name in names}
    seconds = time.perf_counter() - began
    console.print(f"[bold]{title}[/bold]: {len(names) * setting.trace.invocations / seconds:,.0f} invocations per s")
    console.print(tables.summary(reports.values(), setting))
    console.print(tables.per_function(reports.values()))
    return reports


def figures(bare: dict[str, Report], staged: dict[str, Report], capped: dict[str, Report]) -> dict[str, float]:
    """Return the line of the goals; what is relative is relative to the ten-minute timer unless named otherwise."""
    timer, ours = bare[TIMER], staged[OURS]
    return {
        "cold_vs_ttl10": ours.cold_ratio / timer.cold_ratio if timer.cold_ratio else 0.0,
        "waste_vs_ttl10": ours.device_gbs / timer.device_gbs,
        "wait_p999_s": ours.wait_p999_s,
        "j100_vs_ski": ours.j(100.0) / staged[YARDSTICK].j(100.0),
        "j100_vs_bound": ours.j(100.0) / staged[BOUND].j(100.0),
        "cap25_j100": capped[OURS].j(100.0) / timer.j(100.0),
    }


def main() -> None:
    """Replay, print the tables, and the JSON line last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--traces", type=Path, default=BESIDE)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="compare with the known values of this trace (2 minutes)")
    asked = parser.parse_args()
    console = Console(width=200, highlight=False)
    path = asked.traces / TRACE
    if path.exists():
        trace = read(path)
    else:
        console.print(f"{path} is not there: a synthetic trace of the same kind is replayed; the goals are for the real one")
        trace = synthetic(asked.seed)
    bare = Setting(trace=trace, seed=asked.seed)
    staged = replace(bare, prestaged=True)
    timers = replayed(bare, TIMERS, console, "cold at first")
    tiers = replayed(staged, TIERS, console, "weights on the disk from the registration on")
    quarter = replayed(replace(staged, caps=Caps(device=0.25)), EVICTING, console, "device memory for a quarter of all models")
    both = replace(staged, caps=Caps(device=0.25, host=0.25))
    narrow = replayed(both, EVICTING, console, "host memory for a quarter as well")
    for name, one in narrow.items():
        console.print(f"both caps, {name}: J(100) is {one.j(100.0) / timers[TIMER].j(100.0):.3f} of the timer's")
    if asked.check and path.exists():
        console.print(tables.against_known(list(known.check(bare))))
    found = {name: round(value, 4) for name, value in figures(timers, tiers, quarter).items()}
    plans = plan_figures(console)
    found["plan_p99_ms"] = plans["plan_live_p99_ms"]
    found |= {name: round(value, 4) for name, value in bench_requests.compared(asked.traces, asked.seed, console).items()}
    for name, goal in GOALS.items():
        console.print(f"{name}: {found[name]} (goal: {goal} or less) {'met' if found[name] <= goal else 'MISSED'}")
    print(json.dumps({**found, **plans}))


if __name__ == "__main__":
    main()
