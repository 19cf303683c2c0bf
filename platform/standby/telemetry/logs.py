"""Structured logs: one line per event, JSON or human; never prompt text, never a key."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Annotated, Final, Literal

from pydantic import StringConstraints

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


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": round(record.created, 6),
            "level": record.levelname.lower(),
            "component": self._component,
            "logger": record.name,
            "message": record.getMessage(),
            **extra_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class HumanFormatter(logging.Formatter):
    """``12:00:01.123 warning gateway: message key=value``."""

    def __init__(self, component: str) -> None:
        super().__init__()
        self._component = component

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {name}={value}" for name, value in extra_fields(record).items())
        line = f"{clock}.{record.msecs:03.0f} {record.levelname.lower():7} {self._component}: {record.getMessage()}{fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def configure(component: str, *, level: str = "info", style: LogFormat = "human") -> None:
    """Send every log line of this process to standard error, in one style."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(component) if style == "json" else HumanFormatter(component))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("httpx", "httpcore", "nats", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
