"""What watching costs, and whether what watches is quick: ``make bench-telemetry``.

``--only PART`` runs one part and may be given several times. Parts:

* cost: processor time for each request with everything told and with nothing (``bench_telemetry_cost.py``);
* console: the size of the console's page and its first paint in Chromium, with a thousand endpoints;
* generator: requests a second of ``standby bench`` from one core, and its percentiles beside locust's in one run
  (``bench_load_generator.py``).

Prints last one line of JSON; the exit code is 1 where a goal is missed. A part that cannot run here has null for a figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.bench_telemetry_cost import cost

Figures = dict[str, float | None]

# Goals: each figure with its bound, and whether it is a lower one.
GOALS: Final = {
    "cpu_overhead": (0.05, False),
    "page_kb": (300.0, False),
    "first_paint_ms": (1000.0, False),
    "bench_rps": (2000.0, True),
    "percentile_diff": (0.03, False),
}
ROUNDS: Final = 10
_GENERATOR: Final = Path(__file__).with_name("bench_load_generator.py")
_GENERATOR_LIMIT_S: Final = 600


class Broken(Exception):
    """A part has failed, unlike one that cannot run here: its figures are missing, and so is the goal."""

    def __init__(self, words: str, names: tuple[str, ...]) -> None:
        super().__init__(words)
        self.names = names


def measure_cost(rounds: int) -> Figures:
    """Gateways that tell everything, and one of them while it tells nothing."""
    found = cost(rounds)
    _say(*found.table())
    return {"cpu_overhead": round(found.overhead, 4)}


def measure_console(_rounds: int) -> Figures:
    """The console in a real browser."""
    from playwright.async_api import Error

    from support.console_figures import measure

    try:
        found = asyncio.run(measure())
    except Error as error:
        _say(f"the console could not be opened in Chromium: {error.message.splitlines()[0]}")
        return dict.fromkeys(("page_kb", "first_paint_ms"))
    _say(*(f"{name:<16}{value:>10g}" for name, value in found.items() if isinstance(value, int | float)))
    return {"page_kb": found["page_kb"], "first_paint_ms": found["first_paint_ms"]}


def measure_generator(_rounds: int) -> Figures:
    """The load generator beside a public one, as a program of its own: it wants a core for itself."""
    names = ("bench_rps", "percentile_diff")
    done = subprocess.run(
        [sys.executable, str(_GENERATOR)], stdout=subprocess.PIPE, text=True, timeout=_GENERATOR_LIMIT_S, check=False
    )
    lines = done.stdout.splitlines()
    _say(*lines[:-1])
    try:
        told = json.loads(lines[-1])
        return {name: told[name] for name in names}
    except (IndexError, ValueError, KeyError, TypeError) as error:
        _say(*lines[-1:])
        raise Broken(f"{_GENERATOR.name} ended with exit code {done.returncode} and told no figures", names) from error


PARTS: Final[dict[str, Callable[[int], Figures]]] = {
    "cost": measure_cost,
    "console": measure_console,
    "generator": measure_generator,
}


def verdicts(figures: Figures) -> tuple[list[str], bool]:
    """Return a line for each figure beside its goal, and whether one is missed; pure."""
    lines, missed = [], False
    for name, (bound, lower) in GOALS.items():
        if name not in figures:
            continue
        value = figures[name]
        if value is None:
            lines.append(f"{name:<18}{'-':>10}  not measured")
            continue
        good = value >= bound if lower else value <= bound
        missed = missed or not good
        lines.append(
            f"{name:<18}{value:>10g}  goal {'at least' if lower else 'at most'} {bound:g}  {'ok' if good else 'MISSED'}"
        )
    return lines, missed


def _say(*lines: str) -> None:
    for line in lines:
        print(f"  {line}", flush=True)


def main() -> None:
    """Run the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=tuple(PARTS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the cost")
    options = parser.parse_args()
    figures: Figures = {}
    broken = False
    for name, part in PARTS.items():
        if options.only is not None and name not in options.only:
            continue
        print(f"{name}:", flush=True)
        try:
            figures |= part(options.rounds)
        except Broken as error:
            _say(f"BROKEN: {error}")
            figures |= dict.fromkeys(error.names)
            broken = True
    lines, missed = verdicts(figures)
    print("\n".join(lines))
    print(json.dumps(figures))
    sys.exit(missed or broken)


if __name__ == "__main__":
    main()
