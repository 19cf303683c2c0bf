"""The door's span of a request: from its head to the last byte of its answer, between the gateway's attempt and the engine's.

Only requests whose ``traceparent`` says that they are kept have one, and it takes their place in what the engine is told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from standby.telemetry.spans import Span, SpanEvent, SpanKind, known, new_span_id, ns
from standby.telemetry.trace_context import TRACEPARENT, Context, Headers, parse, replaced, state_of
from standby.telemetry.trace_context import TRACESTATE as STATE
from standby.telemetry.tracing import Tracing
from standby.warm_pool.door_slots import Gate

FIRST_BYTE: Final = "first byte"


class DoorTrace:
    """Nothing of one request: what most have. Its subclass notes what happens."""

    __slots__ = ()

    def first_byte(self) -> None:
        """The answer begins."""

    def failed(self, fault: str) -> None:
        """The engine failed it, or its gateway left."""

    def over(self, status: int) -> None:
        """It has ended; ``status``: the engine's, 0: none."""


UNTRACED: Final = DoorTrace()


class Noted(DoorTrace):
    """One request whose trace is kept."""

    __slots__ = ("_began", "_began_ns", "_fault", "_first", "_gate", "_own", "_parent", "_traces")

    def __init__(self, traces: DoorTraces, parent: Context, gate: Gate) -> None:
        self._traces = traces
        self._parent = parent
        self._own = new_span_id()
        self._gate = (gate.instance, gate.epoch)
        self._began, self._began_ns = traces.clock(), ns(traces.wall())
        self._first: float | None = None
        self._fault = ""

    def told(self, lines: Headers) -> Headers:
        """Return the headers that the engine gets."""
        return replaced(lines, self._parent._replace(span=self._own), state_of(v for name, v in lines if name == STATE))

    def first_byte(self) -> None:
        self._first = self._traces.clock() - self._began

    def failed(self, fault: str) -> None:
        self._fault = fault

    def over(self, status: int) -> None:
        lasted_s = self._traces.clock() - self._began
        self._traces.tracing.add(partial(self._spans, lasted_s, status, self._fault))

    def _spans(self, lasted_s: float, status: int, fault: str) -> tuple[Span]:
        instance, epoch = self._gate
        first = self._first
        return (
            Span(
                name="door",
                kind=SpanKind.SERVER,
                trace=self._parent.trace,
                id=self._own,
                parent=self._parent.span,
                began_ns=self._began_ns,
                ended_ns=self._began_ns + ns(lasted_s),
                attributes=known(
                    {
                        "standby.node": self._traces.node,
                        "standby.instance": instance,
                        "standby.epoch": epoch,
                        "standby.outcome": fault or "passed",
                        "http.response.status_code": status or None,
                    }
                ),
                error=fault or (f"engine_{status // 100}xx" if status >= 500 else ""),
                events=() if first is None else (SpanEvent(FIRST_BYTE, self._began_ns + ns(first)),),
            ),
        )


@dataclass(frozen=True)
class DoorTraces:
    """What a door needs to trace. ``clock`` is monotonic, ``wall`` the time of day, both in seconds."""

    tracing: Tracing
    node: str
    clock: Callable[[], float]
    wall: Callable[[], float]

    def begin(self, lines: Headers, gate: Gate) -> Noted | None:
        """Return what notes a request that is let in; None where its gateway does not keep its trace.

        A gateway that traces writes both headers last; most requests have none, and their lines need not be looked through.
        """
        for name, value in lines[-2:]:
            if name == TRACEPARENT:
                parent = parse(value)
                return Noted(self, parent, gate) if parent is not None and parent.sampled else None
        return None
