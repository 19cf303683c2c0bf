"""What is done with requests that have ended: spans of those whose trace is kept, and lines in the log. None of it waits."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Final

from standby.gateway.request_spans import is_error, spans_of
from standby.gateway.traces import RequestTrace
from standby.telemetry.background import Background
from standby.telemetry.tracing import Tracing, lost

# In an outage every request is an error: so many of them a second are told in full, the others are counted.
MOST_ERRORS_A_SECOND: Final = 50

_log = logging.getLogger("standby.requests")


class RequestLog(StrEnum):
    """Which requests get a line in the log."""

    NONE = "none"
    ERRORS = "errors"
    ALL = "all"


class RequestEnds:
    """Called with each request that has ended, in its own time: it decides and hands over."""

    def __init__(
        self, tracing: Tracing | None, told: RequestLog, write: Callable[[RequestTrace], object] | None = None
    ) -> None:
        """``write`` writes a line, in a thread."""
        self._tracing = tracing
        self._every, self._errors_only = told is RequestLog.ALL, told is RequestLog.ERRORS
        write = write or write_line
        self._lines: Background[RequestTrace] = Background("request-log", partial(_write_all, write), lost=self._unwritten)
        self._second = 0
        self._errors = 0
        self._left_out = 0

    def __call__(self, trace: RequestTrace) -> None:
        """Take one."""
        error = trace.ending != "ok" and is_error(trace)
        among_few = error and self._is_among_few(trace)
        head = trace.arrival.trace
        if head is not None and self._tracing is not None:
            if trace.sampled or among_few:
                self._tracing.add(partial(spans_of, trace, head))
            elif error:
                lost(1, "rate")
        if self._every or (among_few and self._errors_only):
            self._lines.add(trace)
        elif error and self._errors_only:
            self._left_out += 1

    async def close(self, limit_s: float) -> None:
        """Write and send what is there, for ``limit_s`` at most each."""
        self._tell_left_out()
        await self._lines.close(limit_s)
        if self._tracing is not None:
            await self._tracing.close(limit_s)

    def _is_among_few(self, trace: RequestTrace) -> bool:
        """Return whether an error is one of the first ones of its second."""
        second = int(trace.arrival.arrived + trace.lasted_s)
        if second != self._second:
            self._tell_left_out()
            self._second, self._errors = second, 0
        self._errors += 1
        return self._errors <= MOST_ERRORS_A_SECOND

    def _unwritten(self, count: int, _why: str) -> None:
        if not self._left_out:
            _log.warning("more requests end than lines can be written: some are left out")
        self._left_out += count

    def _tell_left_out(self) -> None:
        left_out, self._left_out = self._left_out, 0
        if left_out:
            _log.warning("%d more requests ended, of which there is no line", left_out)


def _write_all(write: Callable[[RequestTrace], object], batch: Sequence[RequestTrace]) -> None:
    for trace in batch:
        write(trace)


def write_line(trace: RequestTrace) -> None:
    """Write the line of one request."""
    _log.log(logging.WARNING if is_error(trace) else logging.INFO, "request ended: %s", trace.ending, extra=fields_of(trace))


def fields_of(trace: RequestTrace) -> dict[str, Any]:
    """Return what the log says of a request; times in milliseconds. No words: an error's may repeat what its caller wrote."""
    last, usage, head = trace.attempts[-1] if trace.attempts else None, trace.usage, trace.arrival.trace
    found = {
        "request_id": trace.id,
        "trace_id": None if head is None else f"{head.trace:032x}",
        "tenant": trace.tenant,
        "endpoint": trace.endpoint,
        "variant": trace.variant,
        "outcome": trace.ending,
        "status": trace.status or None,
        "arrived_at": round(trace.arrival.arrived_at, 6),
        "lasted_ms": _ms(trace.lasted_s),
        "waited_ms": _ms(trace.waited_s),
        "first_byte_ms": None if trace.first_byte_s is None else _ms(trace.first_byte_s),
        "attempts": len(trace.attempts),
        "instance": None if last is None else last.instance,
        "node": None if last is None else last.node,
        "rung": None if last is None else last.rung.label,
        "prompt_tokens": None if usage is None else usage.prompt,
        "completion_tokens": None if usage is None else usage.completion,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
