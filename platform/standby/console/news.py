"""What happened, as rows for the console: activations, decisions and all else in words, the newest of each tenant kept.

No row holds a prompt: events have none. What engines and operators wrote stands in them as it is; whoever shows it escapes it.
"""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from standby.console.values import News, Row, Scope
from standby.domain.events import (
    ActivationEnded,
    AnyEvent,
    AsyncInvocationEnded,
    AuditEvent,
    ComponentNotice,
    DecisionMade,
    EndpointChanged,
    FetchProgress,
    StateChanged,
)

ACTIVATIONS: Final = 50
DECISIONS: Final = 100
EVENTS: Final = 100
# Of all tenants together: names come and go, and nobody may fill the gateway's memory with what happened to them.
MOST_TENANTS: Final = 200
LONGEST_TEXT: Final = 500

# What has no list of its own.
OtherEvent = StateChanged | FetchProgress | EndpointChanged | ComponentNotice | AuditEvent | AsyncInvocationEnded

# What is of no tenant: the platform itself, and who changed who may do what. For administrators.
_PLATFORM: Final = ""


def activation_row(event: ActivationEnded) -> Row:
    """Return how a climb went, with its phases in milliseconds."""
    phases = {phase.value: ms for phase, ms in event.activation.phases_ms.items()}
    return {
        "id": event.id,
        "at": event.at,
        "endpoint": event.endpoint,
        "tenant": event.tenant,
        "instance": event.instance,
        "node": event.source.removeprefix("node/"),
        "from_rung": event.activation.from_rung.label,
        "ok": event.ok,
        "error": event.error[:LONGEST_TEXT],
        "phases_ms": phases,
        "total_ms": round(sum(phases.values()), 3),
    }


def decision_row(event: DecisionMade) -> Row:
    """Return what a controller decided, and why."""
    return {
        "id": event.id,
        "at": event.at,
        "tenant": event.tenant,
        "endpoint": event.endpoint,
        "instance": event.instance,
        "action": event.action,
        "reason": event.reason[:LONGEST_TEXT],
    }


def event_row(event: OtherEvent) -> Row:
    """Return an event in words."""
    return {
        "id": event.id,
        "at": event.at,
        "kind": event.kind,
        "tenant": event.tenant,
        "endpoint": event.endpoint,
        "instance": event.instance,
        "text": text_of(event)[:LONGEST_TEXT],
    }


def text_of(event: OtherEvent) -> str:
    """Return one line that says what happened."""
    match event:
        case StateChanged():
            text = f"{event.before} → {event.after}{_because(event.reason)}"
        case FetchProgress():
            text = f"{event.done_bytes} of {event.total_bytes} bytes of {event.digest[:12]} are here"
        case EndpointChanged():
            text = f"now {event.status}{_because(event.reason)}"
        case ComponentNotice():
            text = f"{event.source}, {event.level}: {event.message}"
        case AuditEvent():
            target = f" {event.target}" if event.target else ""
            text = f"{event.who or 'an unknown key'}: {event.action}{target} {event.outcome}{_because(event.reason)}"
        case AsyncInvocationEnded():
            text = f"asynchronous invocation {event.inference_id} {event.status.lower()}{_because(event.reason)}"
    return text


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


@dataclass(slots=True)
class _Ring:
    activations: deque[Row] = field(default_factory=lambda: deque(maxlen=ACTIVATIONS))
    decisions: deque[Row] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    events: deque[Row] = field(default_factory=lambda: deque(maxlen=EVENTS))


@dataclass
class Rings:
    """The newest rows of each tenant, newest first; of the tenants those that were heard of last."""

    _rings: OrderedDict[str, _Ring] = field(default_factory=OrderedDict)
    _seen: dict[Scope, News] = field(default_factory=dict)

    def put(self, event: AnyEvent) -> None:
        """Take an event in."""
        if isinstance(event, FetchProgress) and event.done_bytes < event.total_bytes:
            # Told many times a second, and shown as the instance's progress.
            return
        tenant = _PLATFORM if isinstance(event, AuditEvent) else event.tenant
        ring = self._rings.get(tenant)
        if ring is None:
            ring = self._rings[tenant] = _Ring()
        self._rings.move_to_end(tenant)
        if len(self._rings) > MOST_TENANTS:
            self._rings.popitem(last=False)
        if isinstance(event, ActivationEnded):
            ring.activations.appendleft(activation_row(event))
        elif isinstance(event, DecisionMade):
            ring.decisions.appendleft(decision_row(event))
        else:
            ring.events.appendleft(event_row(event))
        self._seen.clear()

    def of(self, scope: Scope) -> News:
        """Return what a scope may see; the same object as before as long as nothing has happened."""
        news = self._seen.get(scope)
        if news is None:
            news = self._seen[scope] = self._gathered(scope)
        return news

    def _gathered(self, scope: Scope) -> News:
        if scope.tenant:
            names = [scope.tenant, _PLATFORM] if scope.admin else [scope.tenant]
            rings = [self._rings[name] for name in names if name in self._rings]
        else:
            rings = list(self._rings.values())
        return News(
            _newest((ring.activations for ring in rings), ACTIVATIONS),
            _newest((ring.decisions for ring in rings), DECISIONS),
            _newest((ring.events for ring in rings), EVENTS),
        )


def _newest(rings: Iterable[Iterable[Row]], most: int) -> tuple[Row, ...]:
    merged = heapq.merge(*rings, key=lambda row: -row["at"])
    return tuple(itertools.islice(merged, most))
