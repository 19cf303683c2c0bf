"""The spans of a climb to ready: a trace of its own, since many requests may wait for one. Pure but for the ids of its phases.

Its ids are made of the activation's, so that gateways link to it without asking.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from standby.domain.assignment import Assignment
from standby.domain.instance import Rung
from standby.telemetry.spans import Span, SpanKind, known, new_span_id, ns
from standby.telemetry.trace_context import of_activation
from standby.warm_pool.climb import Step


class Climbed(NamedTuple):
    """A climb that ended; ``called_at``: by the node's clock, seconds since the epoch; ``error``: its class, empty: ready."""

    activation: str
    assignment: Assignment
    from_rung: Rung
    called_at: float
    lasted_s: float
    steps: tuple[Step, ...]
    error: str


def spans_of(climbed: Climbed, draw: Callable[[], int] = new_span_id) -> list[Span]:
    """Return the climb's span and one for each phase."""
    context, assignment, began = of_activation(climbed.activation), climbed.assignment, ns(climbed.called_at)
    whose = known(
        {
            "standby.activation.id": climbed.activation,
            "standby.node": assignment.node,
            "standby.tenant": assignment.tenant,
            "standby.endpoint": assignment.endpoint,
            "standby.variant": assignment.variant,
            "standby.backend": assignment.backend,
            "standby.instance": assignment.instance,
            "standby.engine": assignment.model.engine.value,
            "standby.rung": climbed.from_rung.label,
            "standby.outcome": climbed.error or "ready",
        }
    )
    top = Span(
        name="activation",
        kind=SpanKind.INTERNAL,
        trace=context.trace,
        id=context.span,
        parent=0,
        began_ns=began,
        ended_ns=began + ns(climbed.lasted_s),
        attributes=whose,
        error=climbed.error,
    )
    phases = [
        Span(
            name=step.phase.value,
            kind=SpanKind.INTERNAL,
            trace=context.trace,
            id=draw(),
            parent=context.span,
            began_ns=began + ns(step.began_s),
            ended_ns=began + ns(step.ended_s),
            attributes={"standby.instance": assignment.instance},
        )
        for step in climbed.steps
    ]
    return [top, *phases]
