"""Reports as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from standby.controller.simulator.catalogue import Setting
from standby.controller.simulator.known import COLUMNS, Compared, Known
from standby.controller.simulator.report import Report, Spread

_GBH = 3600.0


def summary(reports: Iterable[Report], setting: Setting) -> Table:
    """Return one line per policy: cold starts, waits, waste in GB·h by kind of memory, cost and J."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=_title(setting), title_justify="left")
    table.add_column("policy")
    columns = ("cold %", "start %", "mean s", "p50", "p99", "p99.9", "max", "idle GB·h", "starting", "residue", "RAM", "disk")
    for column in (*columns, "cost", f"J({setting.wait_price:g})", "starts c/s/a"):
        table.add_column(column, justify="right")
    for one in reports:
        memory = (one.idle_gbs, one.starting_gbs, one.residue_gbs, one.host_gbs, one.disk_gbs)
        table.add_row(
            one.policy,
            f"{100 * one.cold_ratio:.2f}",
            f"{100 * one.start_ratio:.2f}",
            f"{one.wait_mean_s:.3f}",
            f"{one.wait_p50_s:.1f}",
            f"{one.wait_p99_s:.1f}",
            f"{one.wait_p999_s:.1f}",
            f"{one.wait_max_s:.1f}",
            *(f"{gbs / _GBH:,.0f}" for gbs in memory),
            f"{one.cost / _GBH:,.0f}",
            f"{one.j(setting.wait_price) / _GBH:,.0f}",
            "/".join(str(number) for number in one.starts.values()),
        )
    return table


def per_function(reports: Iterable[Report]) -> Table:
    """Return how cold ratio and mean wait are spread over functions: one busy function hides all others in the sums."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="per function that was asked", title_justify="left")
    table.add_column("policy")
    for column in ("cold % mean", "p50", "p75", "p90", "wait s mean", "p50", "p75", "p90"):
        table.add_column(column, justify="right")
    for one in reports:
        cold, wait = _spread(one.cold_per_function), _spread(one.wait_per_function)
        table.add_row(one.policy, *(f"{100 * value:.1f}" for value in cold), *(f"{value:.2f}" for value in wait))
    return table


def against_known(rows: Sequence[tuple[Known, Report, list[Compared]]]) -> Table:
    """Return found/known per cell; what lies more than 2 % apart is marked."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="found / known (memory, cost and J relative to ttl-10)")
    table.add_column("policy")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for row, _, cells in rows:
        name = row.policy + (" prestaged" if row.prestaged else "") + (" capped" if row.caps else "")
        table.add_row(name, *(f"{cell.found:.4g}/{cell.known}{'' if cell.agrees else ' !'}" for cell in cells))
    return table


def _spread(spread: Spread) -> tuple[float, float, float, float]:
    return spread.mean, spread.p50, spread.p75, spread.p90


def _title(setting: Setting) -> str:
    trace, caps = setting.trace, setting.caps
    said = f"{len(trace.functions)} functions, {trace.invocations:,} invocations, {sum(setting.sizes()):,.0f} GB of models"
    said += f", seed {setting.seed}" + (", prestaged" if setting.prestaged else "")
    for kind, share in (("device", caps.device if caps else None), ("host", caps.host if caps else None)):
        said += "" if share is None else f", {kind} memory {share:g} of all models"
    return said
