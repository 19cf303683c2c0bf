"""Figures that an independent implementation of the same rules found, to check this one against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from standby.controller.simulator.catalogue import Setting
from standby.controller.simulator.protocol import Caps
from standby.controller.simulator.report import Report

REFERENCE: Final = "ttl-10"
COLUMNS: Final = ("cold %", "start %", "mean s", "p99 s", "p99.9 s", "device", "RAM", "cost", "J(100)")
_TOLERANCE: Final = 0.02
_QUARTER: Final = Caps(device=0.25)


class Known(NamedTuple):
    """One row: a policy, how it is replayed, and the figures in the order of COLUMNS, as printed (rounded)."""

    policy: str
    prestaged: bool
    caps: Caps | None
    figures: tuple[str, ...]


KNOWN: Final = (
    Known("ttl-1", False, None, ("1.33", "1.33", "0.887", "34.2", "81.5", "0.56", "0", "0.56", "2.62")),
    Known("ttl-10", False, None, ("0.30", "0.30", "0.174", "0", "61.1", "1", "0", "1", "1")),
    Known("ttl-60", False, None, ("0.03", "0.03", "0.020", "0", "1.3", "1.43", "0", "1.43", "0.83")),
    Known("hybrid-histogram", False, None, ("0.38", "0.38", "0.299", "7.8", "49.9", "1.09", "0", "1.09", "1.38")),
    Known("asleep-1-cold-60", False, None, ("0.03", "0.74", "0.026", "0", "2.2", "0.46", "1.02", "0.56", "0.37")),
    Known("asleep-0.25-staged-20", False, None, ("0.02", "1.57", "0.029", "0.5", "3.6", "0.24", "0.95", "0.34", "0.26")),
    Known("ski-rental", False, None, ("0.02", "1.62", "0.034", "0.7", "6.1", "0.20", "0.86", "0.29", "0.25")),
    Known("ski-rental", True, None, ("0", "1.61", "0.023", "0.6", "2.2", "0.20", "0.86", "0.29", "0.22")),
    Known("knows-gaps", True, None, ("0", "1.53", "0.020", "0.6", "2.2", "0.11", "0.73", "0.18", "0.15")),
    Known("clairvoyant", True, None, ("0", "0", "0", "0", "0", "0.07", "0.26", "0.10", "0.05")),
    Known("greedy-dual-cold", False, _QUARTER, ("9.09", "9.09", "6.206", "73.7", "124", "0.43", "0", "0.43", "16.5")),
    Known("greedy-dual-staged", True, _QUARTER, ("0", "0.77", "0.084", "0", "18.0", "0.38", "0", "0.39", "0.43")),
    Known("greedy-dual-asleep", True, _QUARTER, ("0", "0.68", "0.007", "0", "1.7", "0.38", "1.56", "0.53", "0.31")),
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One cell: what was found, what is known, and whether they agree within 2 % after the known one's rounding."""

    found: float
    known: str
    agrees: bool


def figures(report: Report, reference: Report) -> tuple[float, ...]:
    """Return a replay's figures in the order of COLUMNS, memory and costs relative to ``reference``."""
    return (
        100 * report.cold_ratio,
        100 * report.start_ratio,
        report.wait_mean_s,
        report.wait_p99_s,
        report.wait_p999_s,
        report.device_gbs / reference.device_gbs,
        report.host_gbs / reference.device_gbs,
        report.cost / reference.cost,
        report.j(100.0) / reference.j(100.0),
    )


def compare(found: float, known: str) -> Compared:
    """Return whether ``found`` is within 2 % of some number that is printed as ``known``."""
    _, _, digits = known.partition(".")
    half = 0.5 * 10 ** -len(digits) if digits else 0.5 * 10 ** -(2 if float(known) <= 1 else 0)
    low, high = (float(known) - half) * (1 - _TOLERANCE), (float(known) + half) * (1 + _TOLERANCE)
    return Compared(found, known, low <= found <= high)


def check(setting: Setting) -> Iterator[tuple[Known, Report, list[Compared]]]:
    """Replay each known row on ``setting``'s trace and yield it with its cells."""
    reference = replace(setting, prestaged=False, caps=None).replay(REFERENCE)
    for row in KNOWN:
        report = replace(setting, prestaged=row.prestaged, caps=row.caps).replay(row.policy)
        cells = zip(figures(report, reference), row.figures, strict=True)
        yield row, report, [compare(found, known) for found, known in cells]
