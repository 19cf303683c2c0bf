"""What a run leaves on disk: JSON for programs, CSV for spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from standby.bench.values import Run, Sample, Summary
from standby.domain.errors import InvalidInput
from standby.domain.values import Value

_FORMULAS: Final = frozenset("=+-@")

COLUMNS: Final = (
    "target",
    "step",
    "due_s",
    "lag_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "waited_s",
    "rung",
    "status",
    "error",
    "prompt_tokens",
    "completion_tokens",
    "request_id",
    "trace_id",
    "phases_ms",
    "message",
)


class Document(Value):
    """What ``--json`` writes; ``Document.model_validate_json`` reads it again, ``Document.model_json_schema()`` describes it.

    ``run`` has every sample where they were asked for, else none.
    """

    schema_name: Literal["standby.bench/1"] = "standby.bench/1"
    summary: Summary
    run: Run


def document(run: Run, summary: Summary, *, samples: bool) -> str:
    """Return what programs read."""
    kept = run if samples else run.model_copy(update={"samples": ()})
    return Document(summary=summary, run=kept).model_dump_json(indent=2)


def write_json(run: Run, summary: Summary, path: Path, *, samples: bool) -> None:
    """Write what programs read. Raises InvalidInput where the file cannot be written."""
    try:
        path.write_text(f"{document(run, summary, samples=samples)}\n", encoding="utf-8")
    except OSError as error:
        raise _unwritable(path, error) from error


def write_csv(run: Run, path: Path) -> None:
    """Write one row for each request. Raises InvalidInput where the file cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(_rows(run))
    except OSError as error:
        raise _unwritable(path, error) from error


def _rows(run: Run) -> Iterator[tuple[object, ...]]:
    for sample in run.samples:
        yield (
            _plain(sample.target),
            run.steps[sample.step] if run.steps else "",
            *(_rounded(value) for value in (sample.due_s, sample.lag_s, sample.ttft_s, sample.tpot_s, sample.e2e_s)),
            _rounded(sample.waited_s),
            _plain(sample.rung),
            sample.status,
            sample.error,
            sample.prompt_tokens,
            sample.completion_tokens,
            _plain(sample.request_id),
            sample.trace_id,
            _plain(_phases(sample)),
            _plain(sample.message),
        )


def _phases(sample: Sample) -> str:
    return ",".join(f"{name}={ms:g}" for name, ms in sample.phases_ms)


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _plain(text: str) -> str:
    # What a server said must not be a formula where a spreadsheet opens the file; some look behind spaces.
    return f"'{text}" if text.lstrip()[:1] in _FORMULAS or text[:1] in ("\t", "\r", "\n") else text


def _unwritable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{path} cannot be written: {error.strerror}", remedy="give a path in a folder that exists")
