"""What the benchmark of telemetry counts with: ratios of interleaved rounds, goals, and a gateway that tells nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.bench_proxy import Stack
from benchmarks.bench_telemetry import GOALS, verdicts
from benchmarks.bench_telemetry_cost import EVERY_LINE, NAMES, TOLD, Cost, processor_ns, ratios

TESTS = Path(__file__).parents[2]
SWITCHED = """
import signal
from support.untold_gateway import TELLS, nothing, switch

own = [getattr(*one) for one in TELLS]
switch()
signal.raise_signal(signal.SIGUSR1)
off = all(getattr(*one) is nothing for one in TELLS)
signal.raise_signal(signal.SIGUSR2)
on = [getattr(*one) for one in TELLS] == own
print("off" if off else "?", "on" if on else "?")
"""


def test_what_is_told_costs_the_median_of_its_rounds_ratios() -> None:
    """A round that was disturbed as a whole says the same as the others."""
    rounds = {NAMES[0]: [100.0, 200.0, 100.0], TOLD: [104.0, 208.0, 500.0], EVERY_LINE: [110.0, 220.0, 110.0]}
    stacks = [Stack(name, Path("none"), (), rounds={"request_us": found, "chunk_us": found}) for name, found in rounds.items()]
    cost = Cost(stacks, ratios(stacks), 7, 8)
    assert cost.overhead == pytest.approx(0.04)
    assert "+4.0%" in cost.table()[2]
    assert "7 spans" in cost.table()[-1]


def test_each_figure_is_held_against_its_goal() -> None:
    good = {"cpu_overhead": 0.05, "page_kb": 300.0, "first_paint_ms": 1000.0, "bench_rps": 2000.0, "percentile_diff": 0.03}
    assert set(good) == set(GOALS)
    assert verdicts(dict(good))[1] is False
    for name, value in good.items():
        worse = value * 0.99 if name == "bench_rps" else value * 1.01
        lines, missed = verdicts({**good, name: worse})
        assert missed
        assert [line for line in lines if line.endswith("MISSED")] == [line for line in lines if line.startswith(name)]


def test_a_part_that_cannot_run_here_misses_nothing() -> None:
    lines, missed = verdicts({"page_kb": None})
    assert lines == [f"{'page_kb':<18}{'-':>10}  not measured"]
    assert not missed


def test_the_processor_time_is_that_of_the_process() -> None:
    """The scheduler counts what runs at its ticks, some milliseconds apart."""
    before, end = processor_ns((os.getpid(),)), time.process_time() + 0.06
    while time.process_time() < end:
        pass
    assert processor_ns((os.getpid(),)) - before >= 30e6


def test_what_a_gateway_tells_can_still_be_switched_off_and_on() -> None:
    """In a process of its own, as it changes classes: a method that has gone would make the comparison a lie."""
    done = subprocess.run(
        [sys.executable, "-c", SWITCHED],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        check=False,
    )
    assert done.stdout == b"off on\n", done.stderr.decode()
