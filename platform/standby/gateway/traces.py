"""What became of each of the last requests, kept as facts and told in words. A bounded ring; the oldest goes first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import Tier
from standby.gateway.grants import Grant
from standby.gateway.metering import Usage
from standby.gateway.results import ResultKind
from standby.sagemaker.runtime.contract import Arrival

DEFAULT_TRACES = 2000


class AttemptTrace(NamedTuple):
    """One attempt: where and why there, how it ended, and for how long it lasted. ``id``: what the engine saw.

    ``result``: whose doing its end was; ``began_s`` from the request's arrival; ``rung``: what it found, ``activation``: the
    climb that had brought that up, empty where it was; ``span``: its span's id as the door was told it, 0: it was told none.

    Plain values only, here and in RequestTrace: a past request keeps no desk, and so no deleted endpoint, in memory.
    """

    id: str
    instance: str
    address: tuple[str, int]
    epoch: int
    backend: str
    engine: EngineKind | None
    reason: str
    probe: bool
    outcome: str
    lasted_s: float
    result: ResultKind = ResultKind.OK
    began_s: float = 0.0
    rung: Rung = Rung.READY
    node: str = ""
    activation: str = ""
    span: int = 0


class RequestTrace(NamedTuple):
    """One request. Times in seconds; ``first_byte_s`` from arrival, None: there was none; ``usage`` None: no engine was asked.
    ``quarantined_s``: how much of ``waited_s`` it waited for others that are suspected as gravely to end. ``path``: the
    engine's; ``status``: 0 where the caller got none; ``first_token_s``: the first whole event of a stream, from arrival;
    ``sampled``: its trace is kept, whatever its end.

    A tuple of what was there anyway, as one is made for each request; the words are made when somebody asks.
    """

    arrival: Arrival
    tenant: str
    endpoint: str
    variant: str
    tier: Tier
    priority: Priority
    waited_s: float
    queue_reason: str
    attempts: tuple[AttemptTrace, ...]
    ending: str
    words: str
    lasted_s: float
    first_byte_s: float | None
    usage: Usage | None
    quarantined_s: float = 0.0
    path: str = ""
    served_name: str = ""
    status: int = 0
    streamed: bool = False
    first_token_s: float | None = None
    sampled: bool = False

    @property
    def id(self) -> str:
        """The request's id, which is that of its first attempt."""
        return self.arrival.request_id


def attempt_of(
    name: str,
    grant: Grant,
    outcome: str,
    lasted_s: float,
    result: ResultKind = ResultKind.OK,
    began_s: float = 0.0,
    span: int = 0,
) -> AttemptTrace:
    """Return what is kept of an attempt; ``name``: the request's id as the engine saw it."""
    return AttemptTrace(
        name,
        grant.instance,
        grant.address,
        grant.epoch,
        grant.backend,
        grant.engine,
        grant.reason,
        grant.probe,
        outcome,
        lasted_s,
        result,
        began_s,
        grant.rung,
        grant.node,
        "" if grant.activation is None else grant.activation.id,
        span,
    )


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
        found = (trace for trace in self._of(tenant) if endpoint in (None, trace.endpoint))
        return list(islice(found, most))

    def find(self, tenant: str, name: str) -> RequestTrace | None:
        """Return a tenant's newest request with this id, ours or its caller's, or of which an attempt had it."""
        given = name.encode(errors="replace")
        for trace in self._of(tenant):
            if name == trace.id or given == trace.arrival.echoed or any(attempt.id == name for attempt in trace.attempts):
                return trace
        return None

    def _of(self, tenant: str) -> Iterator[RequestTrace]:
        return (trace for trace in reversed(self._ring) if trace.tenant == tenant)


def view(trace: RequestTrace) -> dict[str, Any]:
    """Return a trace as the control API tells it; times in milliseconds, ``arrived_at`` in seconds since the epoch."""
    usage = trace.usage or Usage(0, 0, estimated=False)
    return {
        "id": trace.id,
        "request_id": trace.arrival.echoed.decode("latin-1"),
        "trace_id": "" if trace.arrival.trace is None else f"{trace.arrival.trace.trace:032x}",
        "endpoint": trace.endpoint,
        "variant": trace.variant,
        "tier": trace.tier.value,
        "priority": trace.priority.value,
        "arrived_at": trace.arrival.arrived_at,
        "waited_ms": _ms(trace.waited_s),
        "queue_reason": trace.queue_reason,
        "quarantined_ms": _ms(trace.quarantined_s),
        "attempts": [_attempt(attempt) for attempt in trace.attempts],
        "ending": trace.ending,
        "words": trace.words,
        "lasted_ms": _ms(trace.lasted_s),
        "first_byte_ms": None if trace.first_byte_s is None else _ms(trace.first_byte_s),
        "usage": {"prompt_tokens": usage.prompt, "completion_tokens": usage.completion, "estimated": usage.estimated},
    }


def _attempt(attempt: AttemptTrace) -> dict[str, Any]:
    host, port = attempt.address
    return {
        "id": attempt.id,
        "instance": attempt.instance,
        "door": f"{host}:{port}",
        "epoch": attempt.epoch,
        "backend": attempt.backend,
        "engine": None if attempt.engine is None else attempt.engine.value,
        "reason": attempt.reason,
        "probe": attempt.probe,
        "outcome": attempt.outcome,
        "lasted_ms": _ms(attempt.lasted_s),
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
