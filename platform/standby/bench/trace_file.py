"""Recorded traffic as arrivals: three published formats, told apart by their header.

- ``function, mean_duration_ms`` and one column of counts per minute (Azure Functions 2019; Shahrad et al., USENIX ATC 2020);
- ``app, func, end_timestamp, duration``, seconds (Azure Functions 2021; Zhang et al., SOSP 2021);
- ``TIMESTAMP, ContextTokens, GeneratedTokens`` (Azure LLM inference 2023; Patel et al., ISCA 2024), which has lengths, too.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from standby.bench.arrivals import inside_minutes
from standby.bench.lengths import MOST_TOKENS
from standby.domain.errors import InvalidInput

COUNTS: Final = ("function", "mean_duration_ms")
CALLS: Final = ("app", "func", "end_timestamp", "duration")
REQUESTS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class _Lines(Protocol):
    """What ``csv.reader`` returns."""

    @property
    def line_num(self) -> int: ...

    def __next__(self) -> list[str]: ...


class Recorded(NamedTuple):
    """One request of a trace: seconds from the first one; lengths in tokens, None: the trace has none."""

    at_s: float
    prompt_tokens: int | None = None
    answer_tokens: int | None = None


def read_trace(path: Path, chance: random.Random, *, function: str | None = None, most: int | None = None) -> list[Recorded]:
    """Return the first requests of a trace in order, at ``most`` so many, of one function of it or of all.

    Counts per minute become random moments inside their minutes. Raises InvalidInput naming the line and what is wrong there.
    """
    try:
        # Bytes that are no UTF-8 are seen where they stand: a decoder that stops at them knows no lines.
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
            found = list(islice(_requests_of(path, csv.reader(file), chance, function), most))
    except OSError as error:
        raise InvalidInput(f"trace {path} cannot be read: {error.strerror}", remedy="check the path") from error
    if not found:
        of = "" if function is None else f" of function {function!r}"
        raise InvalidInput(f"trace {path} has no request{of}", remedy="give another trace or another --function")
    first = found[0].at_s
    return [recorded._replace(at_s=recorded.at_s - first) for recorded in found]


def replayed(requests: Sequence[Recorded], *, speed: float, duration_s: float | None) -> list[Recorded]:
    """Return the trace ``speed`` times as fast, cut after ``duration_s`` of the replay."""
    if not speed > 0.0:
        raise InvalidInput(f"a speed of {speed:g} is not possible", remedy="give --speed above 0; 10 is ten times as fast")
    hurried = (request._replace(at_s=request.at_s / speed) for request in requests)
    return [request for request in hurried if duration_s is None or request.at_s < duration_s]


def _requests_of(path: Path, lines: _Lines, chance: random.Random, function: str | None) -> Iterator[Recorded]:
    rows = _rows(path, lines)
    header = tuple(cell.strip() for cell in next(rows, (1, []))[1])
    return _read(path, header, rows, chance, function)


def _rows(path: Path, lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines that hold something, with their numbers in the file."""
    while True:
        try:
            line = next(lines)
        except StopIteration:
            return
        except csv.Error as error:
            raise _bad(path, lines.line_num, f"no CSV: {error}", "give plain CSV") from error
        if not _is_text("".join(line)):
            raise _bad(path, lines.line_num, f"no text: {''.join(line)[:20]!r}", "unpack it first")
        if line:
            yield lines.line_num, line


def _is_text(letters: str) -> bool:
    return "\0" not in letters and (letters.isascii() or not any("\udc80" <= letter <= "\udcff" for letter in letters))


def _read(
    path: Path, header: tuple[str, ...], rows: Iterable[tuple[int, list[str]]], chance: random.Random, function: str | None
) -> Iterator[Recorded]:
    if header[:2] == COUNTS and len(header) > 2:
        return _counted(path, header, rows, chance, function)
    if header == CALLS:
        return _in_order(_calls(path, rows, function))
    if header == REQUESTS:
        if function is not None:
            raise InvalidInput(f"trace {path} is of one service, not of functions", remedy="leave --function out")
        return _in_order(_requests(path, rows))
    raise InvalidInput(
        f"trace {path}, line 1: unknown columns {', '.join(header[:4]) or '(none)'}",
        remedy=f"give {', '.join(COUNTS)} and one column per minute; or {', '.join(CALLS)}; or {', '.join(REQUESTS)}",
    )


def _in_order(recorded: Iterable[Recorded]) -> Iterator[Recorded]:
    return iter(sorted(recorded, key=lambda one: one.at_s))


def _counted(
    path: Path, header: tuple[str, ...], rows: Iterable[tuple[int, list[str]]], chance: random.Random, function: str | None
) -> Iterator[Recorded]:
    # All functions together ask one target, and a busy file has millions of requests: counts are added up first.
    counts = [0] * (len(header) - len(COUNTS))
    for number, line in rows:
        _check_width(path, number, line, len(header))
        if function is None or line[0] == function:
            for at, text in enumerate(line[len(COUNTS) :]):
                counts[at] += _whole(path, number, f"minute {header[len(COUNTS) + at]}", text)
    return (Recorded(at) for at in inside_minutes(counts, chance))


def _calls(path: Path, rows: Iterable[tuple[int, list[str]]], function: str | None) -> Iterator[Recorded]:
    for number, line in rows:
        _check_width(path, number, line, len(CALLS))
        if function is None or line[1] == function:
            ended, lasted = (_seconds(path, number, name, cell) for name, cell in zip(CALLS[2:], line[2:], strict=True))
            yield Recorded(ended - lasted)


def _requests(path: Path, rows: Iterable[tuple[int, list[str]]]) -> Iterator[Recorded]:
    first: datetime | None = None
    for number, line in rows:
        _check_width(path, number, line, len(REQUESTS))
        try:
            # The published files have seven digits of a second; fromisoformat takes any number of them.
            at = datetime.fromisoformat(line[0].strip())
        except ValueError:
            raise _bad(path, number, f"TIMESTAMP {line[0]!r} is no time", "write e.g. 2023-11-16 18:15:46.68") from None
        first = first or at
        if (at.tzinfo is None) != (first.tzinfo is None):
            raise _bad(path, number, f"{line[0]} changes between having a time zone and none", "write all times alike")
        prompt, answer = (_tokens(path, number, name, cell) for name, cell in zip(REQUESTS[1:], line[1:], strict=True))
        yield Recorded((at - first).total_seconds(), prompt, answer)


def _check_width(path: Path, number: int, line: list[str], width: int) -> None:
    if len(line) != width:
        raise _bad(path, number, f"{len(line)} columns where the header has {width}", "repair or drop the line")


def _whole(path: Path, number: int, what: str, text: str) -> int:
    value = _seconds(path, number, what, text)
    if value < 0 or value != int(value):
        raise _bad(path, number, f"{what} is {text!r}, not a whole number from 0 on", "correct the line or drop it")
    return int(value)


def _tokens(path: Path, number: int, what: str, text: str) -> int:
    # A prompt has to be made of them.
    tokens = _whole(path, number, what, text)
    if tokens > MOST_TOKENS:
        raise _bad(path, number, f"{what} is {text!r}, the limit is {MOST_TOKENS}", "correct the line or drop it")
    return tokens


def _seconds(path: Path, number: int, what: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _bad(path, number, f"{what} is {text!r}, not a number", "write 0 where there is nothing") from None
    if not abs(value) < 1e15:
        raise _bad(path, number, f"{what} is {text!r}, not a number of use", "correct the line or drop it")
    return value


def _bad(path: Path, number: int, fault: str, remedy: str) -> InvalidInput:
    return InvalidInput(f"trace {path}, line {number}: {fault}", remedy=remedy)
