"""The controller's metrics: what it decided, how long that took, whether it leads, and how old its copies are."""

from __future__ import annotations

from collections.abc import Iterable

from standby.bus import figures as bus_figures
from standby.bus.connection import Bus
from standby.controller.actions import Decision
from standby.controller.leader import Leadership
from standby.controller.state import ClusterState
from standby.domain.events import AnyEvent, DecisionMade
from standby.telemetry import metrics


def wrote(events: Iterable[AnyEvent]) -> None:
    """Count what was ordered, by its events."""
    for event in events:
        if isinstance(event, DecisionMade):
            metrics.DECISIONS.labels(event.action).inc()


def held_back(decision: Decision) -> None:
    """Count why nothing was ordered; the same reason of an endpoint counts again only when it is told again."""
    metrics.DECISIONS.labels(decision.action).inc()


def planned(seconds: float) -> None:
    """Note how long a plan took."""
    metrics.PLAN_SECONDS.observe(seconds)


def refresh(bus: Bus, state: ClusterState, leadership: Leadership) -> None:
    """Set what is so now; called when somebody scrapes."""
    metrics.LEADER.labels(leadership.holder).set(leadership.leading)
    bus_figures.refresh(bus, state.staleness())
