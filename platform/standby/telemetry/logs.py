"""Structured logs: one line per event, JSON or human; never prompt text, never a key.

Secrets are masked in whatever a line is made of, before it is written: the message, its fields, an exception's text.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

from pydantic import StringConstraints

from standby.telemetry import redact

LogFormat = Literal["human", "json"]
LogLevel = Annotated[str, StringConstraints(pattern="^(?i:debug|info|warning|error)$")]

_STANDARD: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {
    "message",
    "asctime",
    "taskName",
}


def extra_fields(record: logging.LogRecord) -> dict[str, object]:
    """Return what the caller passed as ``extra=``."""
    return {name: value for name, value in record.__dict__.items() if name not in _STANDARD}


class _Formatter(logging.Formatter):
    """Makes a line of plain parts; only of one that may hold a secret are they masked first, each by itself."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        message, fields, trouble = _message(record), extra_fields(record), self._trouble(record)
        line = self.line(record, message, fields, trouble)
        if not redact.may_hold_secrets(line):
            return line
        fields = {name: redact.masked_value(name, value) for name, value in fields.items()}
        return self.line(record, redact.mask(message), fields, redact.mask(trouble))

    def line(self, record: logging.LogRecord, message: str, fields: Mapping[str, object], trouble: str) -> str:
        """Return the line; ``trouble`` is the exception and the stack, empty where there are none."""
        raise NotImplementedError

    def _trouble(self, record: logging.LogRecord) -> str:
        parts = [self.formatException(record.exc_info)] if record.exc_info else []
        if record.stack_info:
            parts.append(self.formatStack(record.stack_info))
        return "\n".join(parts)


class JsonFormatter(_Formatter):
    """One JSON object per line."""

    def line(self, record: logging.LogRecord, message: str, fields: Mapping[str, object], trouble: str) -> str:
        """Return the object."""
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "message": message,
            **fields,
        }
        if trouble:
            line["exception"] = trouble
        return json.dumps(line, default=str)


class HumanFormatter(_Formatter):
    """``12:00:01.123 warning gateway: message key=value``."""

    def line(self, record: logging.LogRecord, message: str, fields: Mapping[str, object], trouble: str) -> str:
        """Return the line, and those of a traceback below it."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        told = "".join(f" {name}={value}" for name, value in fields.items())
        line = f"{clock}.{record.msecs:03.0f} {record.levelname.lower():7} {self._component}: {message}{told}"
        return f"{line}\n{trouble}" if trouble else line


def _message(record: logging.LogRecord) -> str:
    """Return the message; of one whose arguments do not fit, both as they are: a log line never fails."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg} {record.args}"


def configure(component: str, *, level: str = "info", style: LogFormat = "human", secrets: Iterable[str] = ()) -> None:
    """Send every log line of this process to standard error, in one style; ``secrets`` are masked wherever they stand."""
    redact.hide(secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component) if style == "json" else HumanFormatter(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "nats", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
