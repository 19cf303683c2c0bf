"""What an engine's log says of a failure: the first error line and the tail, with secrets masked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from standby.telemetry.redact import mask

__all__ = ["TAIL_LINES", "first_error_line", "last_lines", "log_lines", "mask", "plain_line"]

TAIL_LINES: Final = 20
_HEAD_BYTES: Final = 256 * 1024
_TAIL_BYTES: Final = 64 * 1024
_LINE_LIMIT: Final = 500
_LONG_LINE: Final = 4000
# Engines colour their lines and may write anything else: a terminal must not carry out what a log says.
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_ERROR: Final = re.compile(
    r"(?i)\b(error|errors|fail(?:ed|ure)?|fatal|abort(?:ed)?|exception|cannot|can't|could not|unable|invalid|"
    r"no such file|out of memory|not found|terminate called|ggml_assert|denied)\b|\w+(?:Error|Exception)\b"
)
# Spans that a collector does not take stop no engine, and vLLM tells of each batch.
_NO_CAUSE: Final = re.compile(r"(?i)\bexport(?:ing|ed)?\b.{0,40}\bspans?\b|\bspans?\b.{0,40}\bexport")
_TRACEBACK: Final = "Traceback (most recent call last):"
# Python programs write who, how bad, when and where before each line, also of a traceback: as vLLM's
# "(EngineCore pid=12) ERROR 11-29 22:23:57 [core.py:1510] ", or "2026-11-29 22:23:57,115 - ERROR - ".
_PREFIX: Final = re.compile(
    r"(?:\([^()]{1,60}\)\s+)?"
    r"(?:\[?\d{2,4}-\d\d[-\dT:.,Z ]*\]?[\s|:-]*)?"
    r"\[?(?P<level>DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\]?(?=[\s:|-])[:|\s-]*"
    r"(?:\d\d-\d\d \d\d:\d\d:\d\d )?(?:\[[\w./-]+:\d+\] ?)?"
)
_PREFIX_LIMIT: Final = 200  # of an endless line of dashes the pattern would be looked for in quadratic time
_HARMLESS: Final = frozenset({"DEBUG", "INFO", "WARN", "WARNING"})
_HEADLINE_LINES: Final = 2  # "EngineCore failed to start." and the like, right above the traceback that says why
_GOES_ON: Final = re.compile(r":\s*$|validation errors? for ")
_RAISED: Final = re.compile(r"[A-Za-z_][\w.]*(?::|\s*$)")
_CHAINED: Final = re.compile(r"(?:During handling of|The above exception was)")
_CHAIN_LINES: Final = 8  # between one exception's words and the line that says that another followed


def first_error_line(lines: list[str]) -> str:
    """Return the first line that names an error, masked; of a Python traceback its last line. Empty if none does.

    A summary at the end ("see root cause above") explains nothing: the first one is nearest to the cause. A line that calls
    itself a warning or less counts only where there is no other: engines warn of much that stops nobody.
    """
    told = [_told(_CONTROLS.sub("", line)) for line in lines]
    for position, (level, text) in enumerate(told):
        if level in _HARMLESS or _NO_CAUSE.search(text):
            continue
        if text.startswith(_TRACEBACK):
            return _clean(_raised(told, position))
        if _ERROR.search(text):
            near = range(position + 1, min(position + 1 + _HEADLINE_LINES, len(told)))
            trace = next((place for place in near if told[place][1].startswith(_TRACEBACK)), None)
            return _clean(_whole(told, position) if trace is None else _raised(told, trace))
    return next((_clean(text) for _, text in told if _ERROR.search(text)), "")


def _raised(told: list[tuple[str, str]], trace: int) -> str:
    """Return the exception at the end of a traceback, and the one that it led to, which often names the file."""
    end = _end_of(told, trace)
    if end is None:
        return _TRACEBACK
    for position in range(end + 1, min(end + 1 + _CHAIN_LINES, len(told))):
        if _CHAINED.match(told[position][1]):
            later = _end_of(told, position + 2)
            return _whole(told, end) + (f"; then {_whole(told, later)}" if later is not None else "")
    return _whole(told, end)


def _end_of(told: list[tuple[str, str]], trace: int) -> int | None:
    """Return where the traceback's exception stands: after it, not indented, a name as of a class.

    Another process of the engine may have written a line of its own in between.
    """
    level = told[trace][0]
    after = range(trace + 1, len(told))
    return next((place for place in after if told[place][0] == level and _RAISED.match(told[place][1])), None)


def _whole(told: list[tuple[str, str]], position: int) -> str:
    """Return a line's text, with the next one where it only announces it."""
    text = told[position][1].strip()
    announces = _GOES_ON.search(text) and position + 1 < len(told)
    return f"{text} {told[position + 1][1].strip()}" if announces else text


def _told(line: str) -> tuple[str, str]:
    """Return a line's level, empty where it names none, and its text."""
    prefix = _PREFIX.match(line[:_PREFIX_LIMIT])
    return (prefix["level"], line[prefix.end() :]) if prefix else ("", line)


def log_lines(log: Path) -> tuple[list[str], tuple[str, ...]]:
    """Return (the lines of the log's beginning, its last 20 lines masked); both empty when there is no log."""
    try:
        with log.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL_BYTES))
            tail = stream.read()
    except OSError:  # a log that cannot be read must not hide that the engine has ended
        return [], ()
    last = [line for line in tail.decode(errors="replace").splitlines() if line.strip()][-TAIL_LINES:]
    return head.decode(errors="replace").splitlines(), tuple(_clean(line) for line in last)


def last_lines(log: Path, count: int, limit_bytes: int, size: int | None = None) -> tuple[tuple[str, ...], bool]:
    """Return the log's last ``count`` lines, masked, of ``limit_bytes`` at most, and whether earlier ones are left out.

    ``size``: what it held at a moment, in bytes; nothing later is read. Raises OSError where it cannot be read.
    """
    with log.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END) if size is None else size
        stream.seek(max(0, size - limit_bytes))
        found = stream.read(min(size, limit_bytes)).decode(errors="replace").splitlines()
    if size > limit_bytes:
        found = found[1:]  # the first one is cut: a secret that begins before it would not be known as one
    last = found[max(0, len(found) - count) :]
    return tuple(plain_line(line) for line in last), size > limit_bytes or len(found) > count


def plain_line(line: str) -> str:
    """Return a log's line as it may be shown: masked, without control characters, not endless."""
    return _plain(line)[:_LONG_LINE]


def _clean(line: str) -> str:
    return _plain(line.strip())[:_LINE_LIMIT]


def _plain(line: str) -> str:
    return mask(_CONTROLS.sub("", line))
