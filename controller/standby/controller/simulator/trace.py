"""Traces: who was asked when. Per-minute counts of many functions, or time-stamped requests of one service."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from standby.domain.errors import InvalidInput

COUNT_COLUMNS: Final = ("function", "mean_duration_ms")
REQUEST_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MINUTE_S: Final = 60.0

Seconds = NDArray[np.float64]


@dataclass(frozen=True, eq=False, slots=True)
class Trace:
    """Invocations of named functions over ``duration_s`` seconds.

    Either ``counts`` (functions by minutes) says how many fell into each minute, or ``stamps`` (one function) says when,
    in seconds since the first minute began; then ``prompt_tokens`` and ``answer_tokens`` run beside it.
    """

    functions: tuple[str, ...]
    duration_s: float
    counts: NDArray[np.int64] | None = None
    stamps: Seconds | None = None
    prompt_tokens: NDArray[np.int64] | None = None
    answer_tokens: NDArray[np.int64] | None = None

    @property
    def invocations(self) -> int:
        """How many there are in all."""
        return int(self.counts.sum()) if self.counts is not None else len(self.stamps if self.stamps is not None else ())

    def arrivals(self, seed: int) -> list[Seconds]:
        """Return each function's arrival times in seconds, sorted: exact ones, or random inside their minutes by ``seed``.

        One stream of PCG64 serves all functions in the order of the file, so that any two replays of a seed agree.
        """
        if self.counts is None:
            return [self.stamps if self.stamps is not None else np.empty(0)]
        rng = np.random.default_rng(seed)
        minutes = np.arange(self.counts.shape[1])
        return [np.sort((np.repeat(minutes, row) + rng.random(int(row.sum()))) * _MINUTE_S) for row in self.counts]


def merged(arrivals: Iterable[Seconds]) -> tuple[list[float], list[int]]:
    """Return all arrival times in order, with the number of the function beside each; ties keep the functions' order."""
    each = list(arrivals)
    times = np.concatenate(each) if each else np.empty(0)
    owners = np.repeat(np.arange(len(each)), [len(one) for one in each])
    order = np.argsort(times, kind="stable")
    return times[order].tolist(), owners[order].tolist()


def read(path: Path) -> Trace:
    """Read a trace; its header says which of the two formats it is.

    Raises InvalidInput naming the line, what is wrong there, and the remedy.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            header = next(lines, None)
            if header is None:
                raise InvalidInput(f"trace {path} is empty", remedy="give a file with a header line and at least one row")
            if tuple(header[:2]) == COUNT_COLUMNS:
                return _counts(path, header, lines)
            if tuple(header) == REQUEST_COLUMNS:
                return _requests(path, lines)
    except OSError as error:
        raise InvalidInput(f"trace {path} cannot be read: {error.strerror}", remedy="check the path") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"trace {path} is no text: byte {error.start} is not UTF-8", remedy="unpack it first") from error
    except csv.Error as error:
        raise InvalidInput(f"trace {path}, line {lines.line_num}: {error}", remedy="give plain CSV") from error
    raise InvalidInput(
        f"trace {path}, line 1: unknown columns {', '.join(header[:4])}",
        remedy=f"give either {', '.join(COUNT_COLUMNS)} and one column per minute, or {', '.join(REQUEST_COLUMNS)}",
    )


def _counts(path: Path, header: list[str], lines: Iterable[list[str]]) -> Trace:
    _check_minutes(path, header[len(COUNT_COLUMNS) :])
    names: dict[str, int] = {}
    rows: list[list[int]] = []
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        if len(line) != len(header):
            raise _bad(path, number, f"{len(line)} columns where the header has {len(header)}", "repair or drop the line")
        name = line[0]
        if not name or name in names:
            fault = f"function {name!r} was on line {names[name]} already" if name else "the function has no name"
            raise _bad(path, number, fault, "give each function one line")
        names[name] = number
        rows.append([_whole(path, number, header[at], line[at]) for at in range(len(COUNT_COLUMNS), len(line))])
    if not rows:
        raise InvalidInput(f"trace {path} has a header and no function", remedy="give at least one line of counts")
    counts = np.array(rows, dtype=np.int64)
    return Trace(functions=tuple(names), duration_s=counts.shape[1] * _MINUTE_S, counts=counts)


def _check_minutes(path: Path, minutes: list[str]) -> None:
    if not minutes:
        raise _bad(path, 1, "no column of a minute", "give one column of counts per minute")
    numbers = [_whole(path, 1, "a minute", minute) for minute in minutes]
    for before, after in pairwise(numbers):
        if after != before + 1:
            fault = f"minute {before} is followed by {after}"
            remedy = "fill the gap with columns of 0" if after > before + 1 else "sort the columns by minute, each once"
            raise _bad(path, 1, fault, remedy)


def _requests(path: Path, lines: Iterable[list[str]]) -> Trace:
    stamps: list[float] = []
    prompts: list[int] = []
    answers: list[int] = []
    origin: datetime | None = None
    for number, line in enumerate(lines, start=2):
        if not line:
            continue
        if len(line) != len(REQUEST_COLUMNS):
            raise _bad(path, number, f"{len(line)} columns, not {len(REQUEST_COLUMNS)}", "repair or drop the line")
        at = _moment(path, number, line[0])
        if origin is None:
            origin = at.replace(second=0, microsecond=0)
        if (at.tzinfo is None) != (origin.tzinfo is None):
            raise _bad(path, number, f"{line[0]} changes between having a time zone and none", "write all times alike")
        seconds = (at - origin).total_seconds()
        if stamps and seconds < stamps[-1]:
            raise _bad(path, number, f"{line[0]} is {stamps[-1] - seconds:.3f} s before the line above", "sort by TIMESTAMP")
        stamps.append(seconds)
        prompts.append(_whole(path, number, "ContextTokens", line[1]))
        answers.append(_whole(path, number, "GeneratedTokens", line[2]))
    if not stamps:
        raise InvalidInput(f"trace {path} has a header and no request", remedy="give at least one request")
    return Trace(
        functions=(path.stem,),
        duration_s=(math.floor(stamps[-1] / _MINUTE_S) + 1) * _MINUTE_S,
        stamps=np.array(stamps),
        prompt_tokens=np.array(prompts, dtype=np.int64),
        answer_tokens=np.array(answers, dtype=np.int64),
    )


def _moment(path: Path, number: int, text: str) -> datetime:
    # The published files have seven digits of a second; fromisoformat of Python 3.11 takes any number of them.
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise _bad(path, number, f"TIMESTAMP {text!r} is no time", "write e.g. 2023-11-16 18:15:46.68") from None


def _whole(path: Path, number: int, what: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        fault = f"{what} is empty" if not text.strip() else f"{what} is {text!r}, not a whole number"
        raise _bad(path, number, fault, "write 0 where nothing was asked") from None
    if value < 0:
        raise _bad(path, number, f"{what} is {value}, below 0", "drop the line or correct the count")
    return value


def _bad(path: Path, number: int, fault: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"trace {path}, line {number}: {fault}", remedy=remedy)
