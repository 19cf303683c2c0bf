"""What a run leaves on disk is safe to open."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from standby.bench.files import write_csv
from support.bench_values import a_run, a_sample


@pytest.mark.parametrize("hostile", ["=cmd|'/c calc'!A0", "+1+2", "-2", "@SUM(A1)", "\t=1", "  =1", "\r=1", "\n=1"])
def test_no_cell_is_a_formula(hostile: str, tmp_path: Path) -> None:
    """Whatever a server or a caller names: the target, a rung, an id, a phase, an error's words."""
    sample = a_sample(
        target=hostile, rung=hostile, request_id=hostile, phases_ms=((hostile, 1.0),), message=hostile, error="5xx"
    )
    write_csv(a_run([sample]), tmp_path / "run.csv")
    with (tmp_path / "run.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    for name in ("target", "rung", "request_id", "phases_ms", "message"):
        assert row[name].startswith("'"), name
    assert row["e2e_s"] == "1.000000"
