"""A span as it is told once it is over. Plain values: nothing of them is alive while a request is."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from standby.telemetry.trace_context import Context

Attribute = str | int | float | bool
NANO: Final = 1_000_000_000


class SpanKind(Enum):
    """What it is of: by OpenTelemetry's names."""

    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"
    CONSUMER = "consumer"


class SpanEvent(NamedTuple):
    """A moment within a span, in nanoseconds since the epoch."""

    name: str
    at_ns: int


class Span(NamedTuple):
    """Times in nanoseconds since the epoch; ``parent`` 0: it has none. ``error``: the class of what went wrong, empty: nothing.

    Attributes hold what the registry knows and what was measured, never what a caller wrote.
    """

    name: str
    kind: SpanKind
    trace: int
    id: int
    parent: int
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, Attribute]
    error: str = ""
    events: Sequence[SpanEvent] = ()
    links: Sequence[Context] = ()


def ns(seconds: float) -> int:
    """Return whole nanoseconds."""
    return round(seconds * NANO)


def new_span_id() -> int:
    """Return 64 random bits that are not all zero; ids are no secrets, and the generator was seeded by the system."""
    return random.getrandbits(64) or 1


def new_trace_id() -> int:
    """Return 128 random bits that are not all zero."""
    return random.getrandbits(128) or 1


def known(attributes: Mapping[str, Attribute | None]) -> dict[str, Attribute]:
    """Return attributes without those that are not known: None, or an empty text."""
    return {name: value for name, value in attributes.items() if value is not None and value != ""}
