"""Traces of this process: spans are made after the fact, in a thread, and sent from there. Nothing waits for them.

``Tracing.add`` gets what is left of something that is over, with what makes spans of it; both only run in the thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, NamedTuple, Protocol

from standby.telemetry import metrics
from standby.telemetry.background import LIMIT, Background
from standby.telemetry.otlp import Exporter
from standby.telemetry.sampling import Sampler
from standby.telemetry.spans import Span, new_trace_id
from standby.telemetry.trace_context import RANDOM, TRACEPARENT, Context, Head, Headers, read
from standby.telemetry.tracing_settings import TracingSettings, headers_of

MOST_AT_ONCE: Final = 256
# Seldom enough that requests to the collector cost next to nothing beside those that are traced.
EVERY_S: Final = 1.0
_SAY_EVERY_S: Final = 60.0
# Half a millisecond. Each time that both threads change places costs a twentieth of that.
_MADE_AT_ONCE: Final = 32
# Each gateway's, of all callers: one who wants all of his kept, or picks ids that the ratio keeps, must not fill the queue and
# the collector, where the errors and cold starts of others go too.
MOST_TOLD_A_SECOND: Final = 100

_log = logging.getLogger(__name__)

Make = Callable[[], Sequence[Span]]


class Sends(Protocol):
    """What takes spans to where they are kept."""

    def export(self, spans: Sequence[Span]) -> int:
        """Send them, for some seconds at most; return how many arrived."""


class Tracing:
    """What a process has where it traces. All methods belong to the event loop's thread."""

    def __init__(
        self,
        sends: Sends,
        sampler: Sampler,
        *,
        limit: int = LIMIT,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: in seconds, monotonic."""
        self.sampler = sampler
        self._sends = sends
        self._clock = clock
        self._second = self._told = 0
        self._failed_at = -_SAY_EVERY_S
        self._background: Background[Make] = Background("spans", self._export, lost=lost, limit=limit, after_s=every_s)

    def head(self, headers: Headers, path: str) -> Head:
        """Return the trace of a request that has just come: its caller's, or a new one where the headers name none."""
        given, state = read(headers)
        if given is None:
            return self.begin(path, broken=any(name == TRACEPARENT for name, _ in headers))
        return Head(given.trace, given.span, given.flags, self._keeps_told(given), state, path)

    def begin(self, path: str, *, broken: bool = False) -> Head:
        """Return a new trace; ``broken``: the caller tried to name one, against the rules."""
        trace = new_trace_id()
        return Head(trace, 0, RANDOM, self.sampler.keeps(trace), b"", path, broken)

    def add(self, make: Make) -> None:
        """Take what makes the spans of something that is over."""
        self._background.add(make)

    async def close(self, limit_s: float) -> None:
        """Send what is there, for ``limit_s`` at most."""
        await self._background.close(limit_s)

    def _keeps_told(self, given: Context) -> bool:
        """Return whether a caller's trace is kept: as the sampler says, but no more than so many a second."""
        if not self.sampler.keeps(given.trace, given):
            return False
        second = int(self._clock())
        if second != self._second:
            self._second, self._told = second, 0
        self._told += 1
        if self._told <= MOST_TOLD_A_SECOND or self.sampler.ratio >= 1:
            return True
        lost(1, "rate")
        return False

    def _export(self, batch: Sequence[Make]) -> None:
        spans: list[Span] = []
        for number, make in enumerate(batch, start=1):
            spans.extend(make())
            if len(spans) >= MOST_AT_ONCE:
                self._send(spans)
                spans = []
            if not number % _MADE_AT_ONCE:
                # Else the event loop's thread would wait for this one's whole time slice.
                time.sleep(0)
        if spans:
            self._send(spans)

    def _send(self, spans: Sequence[Span]) -> None:
        taken = self._sends.export(spans)
        metrics.SPANS_EXPORTED.inc(taken)
        if taken == len(spans):
            return
        lost(len(spans) - taken, "export")
        now = self._clock()
        if now - self._failed_at >= _SAY_EVERY_S:
            self._failed_at = now
            _log.warning("the collector takes no spans; they are dropped and counted", extra={"spans": len(spans) - taken})


class Place(NamedTuple):
    """Which process it is, in a span's resource."""

    service: str
    instance: str


def open_tracing(settings: TracingSettings, place: Place) -> Tracing | None:
    """Return what traces, or None where no endpoint is set. Raises ConfigurationError where the packages are missing."""
    url = settings.otlp_url
    if url is None:
        return None
    given = settings.otlp_headers
    headers: Mapping[str, str] = {} if given is None else headers_of(given.get_secret_value())
    resource = {
        "service.name": place.service,
        "service.instance.id": place.instance,
        "service.version": version("standby"),
    }
    return Tracing(Exporter(url, headers, resource), Sampler(settings.trace_ratio, settings.trace_callers))


def lost(count: int, reason: str) -> None:
    """Count spans that were lost."""
    metrics.SPANS_DROPPED.labels(reason).inc(count)
