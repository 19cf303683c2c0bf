"""What an engine's log says of a failure: the first error line and the tail, with secrets masked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

TAIL_LINES: Final = 20
_HEAD_BYTES: Final = 256 * 1024
_TAIL_BYTES: Final = 64 * 1024
_LINE_LIMIT: Final = 500
_MASK: Final = "****"

_SECRETS: Final = (
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{6,}"),
    re.compile(
        r"(?i)([\w-]*(?:api[_-]?key|access[_-]?key|secret|token(?!s)|passw(?:or)?d)[\w-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',;&]{4,}"
    ),
    re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)"),
    re.compile(r"()\b(?:sk|sb|pk)-[\w-]{12,}"),
    re.compile(r"()\bhf_[A-Za-z0-9]{12,}"),
    re.compile(r"()\b(?:AKIA|ASIA)[A-Z0-9]{12,}"),
)
_ERROR: Final = re.compile(
    r"(?i)\b(error|errors|fail(?:ed|ure)?|fatal|abort(?:ed)?|exception|cannot|can't|could not|unable|invalid|"
    r"no such file|out of memory|not found|terminate called|ggml_assert|denied)\b|\w+(?:Error|Exception)\b"
)
_TRACEBACK: Final = "Traceback (most recent call last):"


def mask(text: str) -> str:
    """Return ``text`` with keys, tokens and passwords replaced by ``****``."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda match: f"{match.group(1)}{_MASK}", text)
    return text


def first_error_line(lines: list[str]) -> str:
    """Return the first line that names an error, masked; of a Python traceback its last line. Empty if none does.

    A summary at the end ("see root cause above") explains nothing: the first one is nearest to the cause.
    """
    for position, line in enumerate(lines):
        if line.startswith(_TRACEBACK):
            return _clean(next((later for later in lines[position + 1 :] if later and not later[0].isspace()), line))
        if _ERROR.search(line):
            return _clean(line)
    return ""


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


def _clean(line: str) -> str:
    return mask(line.strip())[:_LINE_LIMIT]
