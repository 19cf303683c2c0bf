"""What has been decided for one endpoint so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from standby.controller import sinking, status
from standby.controller.actions import Action, Decision, Inputs, Retarget, Unassign
from standby.controller.dispersion import LookAhead
from standby.controller.prewarm import Wish
from standby.controller.served import Served
from standby.controller.sites import Sites
from standby.controller.view import NEVER, ClusterView, EndpointView, Placed
from standby.domain.instance import Rung


@dataclass(slots=True)
class Draft:
    """Local to one call. ``windows``: by part, the scheduled windows that are open, in words; ``looks`` ahead by its label."""

    endpoint: EndpointView
    cluster: ClusterView
    sites: Sites
    now: float
    actions: list[Action] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    wake_at: float = NEVER
    no_fit: dict[status.Part, str] = field(default_factory=dict)
    no_room: str | None = None
    windows: dict[status.Part, str] = field(default_factory=dict)
    looks: dict[str, LookAhead] = field(default_factory=dict)

    @property
    def tenant(self) -> str:
        """Whose endpoint it is."""
        return self.endpoint.record.tenant

    def wake(self, at: float) -> None:
        """Plan again at ``at`` at the latest."""
        self.wake_at = min(self.wake_at, at)

    def note(self, action: str, reason: str, inputs: Inputs | None = None, *, loud: bool = False) -> None:
        """Tell people of a decision that changes nothing."""
        record = self.endpoint.record
        self.decisions.append(Decision(action, reason, record.tenant, record.name, loud=loud, inputs=inputs or {}))

    def unassign(self, placed: Placed, reason: str, *, absence: bool = False) -> None:
        """Remove an assignment; ``absence``: on missing data alone."""
        self.actions.append(
            Unassign(
                key=placed.key,
                revision=placed.revision,
                tenant=placed.assignment.tenant,
                endpoint=placed.assignment.endpoint,
                reason=reason,
                absence=absence,
            )
        )

    def move(
        self,
        placed: Placed,
        rung: Rung,
        reason: str,
        inputs: Inputs | None = None,
        *,
        climbs_for: Served | None = None,
        wish: Wish | None = None,
        verb: str = "",
    ) -> None:
        """Send an instance to ``rung``; cold: its assignment goes. ``climbs_for``: what it is to serve there."""
        if rung is Rung.COLD:
            self.unassign(placed, reason)
            return
        demand_at = None if climbs_for is None else climbs_for.demand.oldest_arrival_at
        if climbs_for is not None and wish is None and placed.assignment.ahead is not None:
            inputs = {**(inputs or {}), **sinking.used(self.cluster, climbs_for, placed, self.now)}
        self.actions.append(
            Retarget(
                key=placed.key,
                revision=placed.revision,
                tenant=placed.assignment.tenant,
                endpoint=placed.assignment.endpoint,
                before=placed.assignment.rung,
                rung=rung,
                slots=placed.assignment.slots if climbs_for is None else climbs_for.variant.policy.slots,
                admits=placed.assignment.admits,
                generation=None if climbs_for is None else self.endpoint.record.generation,
                demand_at=demand_at,
                reason=reason,
                inputs=inputs or {},
                wish=wish,
                verb=verb,
            )
        )
