"""What became of each of the last requests, kept as facts and told in words. A bounded ring; the oldest goes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from standby.domain.priority import Priority
from standby.gateway.grants import Grant, Route
from standby.gateway.metering import Usage
from standby.sagemaker.runtime.contract import Arrival

DEFAULT_TRACES = 2000


class AttemptTrace(NamedTuple):
    """One attempt: where and why there (``grant``), how it ended, and for how long it lasted. ``id``: what the engine saw."""

    id: str
    grant: Grant
    outcome: str
    lasted_s: float

    @property
    def instance(self) -> str:
        """Where it went."""
        return self.grant.instance


class RequestTrace(NamedTuple):
    """One request. Times in seconds; ``first_byte_s`` from arrival, None: there was none; ``usage`` None: no engine was asked.

    A tuple of what was there anyway, as one is made for each request; the words are made when somebody asks.
    """

    arrival: Arrival
    route: Route
    priority: Priority
    waited_s: float
    queue_reason: str
    attempts: tuple[AttemptTrace, ...]
    ending: str
    words: str
    lasted_s: float
    first_byte_s: float | None
    usage: Usage | None

    @property
    def id(self) -> str:
        """The request's id, which is that of its first attempt."""
        return self.arrival.request_id


@dataclass
class Traces:
    """The ring; 0 keeps nothing."""

    limit: int = DEFAULT_TRACES
    _ring: deque[RequestTrace] = field(init=False)

    def __post_init__(self) -> None:
        self._ring = deque(maxlen=self.limit)
        self.add = self._ring.append

    def last(self, tenant: str, endpoint: str | None, most: int) -> list[RequestTrace]:
        """Return a tenant's last requests, the newest first; of one endpoint, or of all."""
        found = (trace for trace in self._of(tenant) if endpoint in (None, trace.route.endpoint.name))
        return list(islice(found, most))

    def find(self, tenant: str, name: str) -> RequestTrace | None:
        """Return a tenant's newest request with this id, ours or its caller's, or of which an attempt had it."""
        given = name.encode(errors="replace")
        for trace in self._of(tenant):
            if name == trace.id or given == trace.arrival.echoed or any(attempt.id == name for attempt in trace.attempts):
                return trace
        return None

    def _of(self, tenant: str) -> Iterator[RequestTrace]:
        return (trace for trace in reversed(self._ring) if trace.route.endpoint.tenant == tenant)


def view(trace: RequestTrace) -> dict[str, Any]:
    """Return a trace as the control API tells it; times in milliseconds, ``arrived_at`` in seconds since the epoch."""
    usage = trace.usage or Usage(0, 0, estimated=False)
    return {
        "id": trace.id,
        "request_id": trace.arrival.echoed.decode("latin-1"),
        "endpoint": trace.route.endpoint.name,
        "variant": trace.route.variant.name,
        "tier": trace.route.traffic.tier.value,
        "priority": trace.priority.value,
        "arrived_at": trace.arrival.arrived_at,
        "waited_ms": _ms(trace.waited_s),
        "queue_reason": trace.queue_reason,
        "attempts": [_attempt(attempt) for attempt in trace.attempts],
        "ending": trace.ending,
        "words": trace.words,
        "lasted_ms": _ms(trace.lasted_s),
        "first_byte_ms": None if trace.first_byte_s is None else _ms(trace.first_byte_s),
        "usage": {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "estimated": usage.estimated},
    }


def _attempt(attempt: AttemptTrace) -> dict[str, Any]:
    grant = attempt.grant
    host, port = grant.address
    return {
        "id": attempt.id,
        "instance": grant.instance,
        "door": f"{host}:{port}",
        "epoch": grant.epoch,
        "backend": grant.backend,
        "engine": None if grant.engine is None else grant.engine.value,
        "reason": grant.reason,
        "probe": grant.probe,
        "outcome": attempt.outcome,
        "lasted_ms": _ms(attempt.lasted_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
