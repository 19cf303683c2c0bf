"""What a plan says: actions on the tables, notes for people, and when to think again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from standby.controller.dispersion import LookAhead
from standby.controller.prewarm import Wish
from standby.controller.view import NEVER
from standby.domain.endpoint import EndpointStatus, Failure
from standby.domain.instance import Rung
from standby.domain.model import Model

Inputs: TypeAlias = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Make a new instance; its id, intent and leader epoch are filled in when it is written."""

    tenant: str
    endpoint: str
    generation: int
    variant: str
    served_name: str
    model: Model
    node: str
    rung: Rung
    slots: int
    memory_mb: int | None
    drain_limit: float
    activation_limit: float
    demand_at: float | None
    reason: str
    version: str = ""
    backend: str = ""
    admits: int | None = None
    inputs: Inputs = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retarget:
    """Move an existing assignment to another rung, or let its door let in another number, if it is still at ``revision``.

    ``generation`` is the endpoint's that asks for a climb; None leaves it as it is. ``wish``: it is a climb that nobody waits
    for. ``verb`` is what its event calls it; empty: by its rungs.
    """

    key: str
    revision: int
    tenant: str
    endpoint: str
    before: Rung
    rung: Rung
    slots: int
    admits: int | None = None
    generation: int | None = None
    demand_at: float | None = None
    reason: str
    inputs: Inputs = field(default_factory=dict)
    wish: Wish | None = None
    verb: str = ""

    def keeps_ahead(self, before: Rung | None) -> Rung | None:
        """Return the rung from which it has climbed ahead of demand once this is done, ``before`` it was so."""
        if self.wish is not None:
            return self.wish.rung
        asked = bool(self.verb) or (self.rung > self.before and self.rung is Rung.READY)
        return None if asked or before is None or self.rung <= before else before


@dataclass(frozen=True, slots=True, kw_only=True)
class Unassign:
    """Remove an assignment: the instance becomes cold. ``absence`` marks those that rest on missing data alone."""

    key: str
    revision: int
    tenant: str
    endpoint: str
    reason: str
    absence: bool = False
    inputs: Inputs = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkEndpoint:
    """Change an endpoint's status, if its record is still at ``revision``."""

    key: str
    revision: int
    tenant: str
    endpoint: str
    status: EndpointStatus
    failure: Failure | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleUpdate:
    """End an endpoint's update, if its record is still at ``revision``: its pending config takes over, or is given up.

    ``failure`` None: it takes over.
    """

    key: str
    revision: int
    tenant: str
    endpoint: str
    failure: Failure | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DropEndpoint:
    """Remove the record of a deleted endpoint of which nothing is left."""

    key: str
    revision: int
    tenant: str
    endpoint: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmAbsent:
    """Read the endpoint's record itself; only when it is really gone remove these assignments (key, revision)."""

    key: str
    tenant: str
    endpoint: str
    assignments: tuple[tuple[str, int], ...]
    reason: str


Action: TypeAlias = Assign | Retarget | Unassign | MarkEndpoint | SettleUpdate | DropEndpoint | ConfirmAbsent


def awaited(action: Action) -> bool:
    """Whether it starts or wakes what somebody waits for; for what sinks, or climbs ahead of demand, nobody does."""
    if isinstance(action, Retarget):
        return action.wish is None and action.rung > action.before
    return isinstance(action, Assign)


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision that changes nothing and that people should still know: a hold, a halt."""

    action: str
    reason: str
    tenant: str = ""
    endpoint: str = ""
    loud: bool = False
    inputs: Inputs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions in the order in which they should be written; ``wake_at`` is when to plan again without any news.

    ``wakes`` has the same by endpoint; the key ``""`` is for what concerns no single endpoint. ``horizons``: by endpoint and
    part, what is to be learned of demand where scaling is ahead of it.
    """

    actions: tuple[Action, ...] = ()
    decisions: tuple[Decision, ...] = ()
    wakes: Mapping[str, float] = field(default_factory=dict)
    horizons: Mapping[str, Mapping[str, LookAhead]] = field(default_factory=dict)

    @property
    def wake_at(self) -> float:
        """The earliest of all wakes; infinity when nothing changes by itself."""
        return min(self.wakes.values(), default=NEVER)
