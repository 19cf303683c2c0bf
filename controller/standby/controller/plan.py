"""From a view to a plan: which assignments to make, move and remove, and which endpoints to mark.

Pure and idempotent: planning again over the state that a plan leaves behind yields no action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import groupby
from typing import Final

from standby.controller import ahead
from standby.controller.actions import Action, ConfirmAbsent, Decision, Plan, Retarget, Unassign, awaited
from standby.controller.dispersion import LookAhead
from standby.controller.endpoint_plan import plan_one
from standby.controller.sites import Sites
from standby.controller.view import NEVER, NODE_LOST_AFTER_S, ClusterView, Placed

CLUSTER: Final = ""
# A plan that takes away more than this part of a fleet of at least that size because data are missing is not believed.
HALT_ABOVE: Final = 0.6
HALT_FROM: Final = 5
HALT_RETRY_S: Final = 10.0
# How soon absence is looked at again when the record turned out to exist after all.
CONFIRM_AGAIN_S: Final = 5.0


def plan(view: ClusterView, now: float) -> Plan:
    """Return the plan for everything in ``view``; ``now`` is on the controller's monotonic clock."""
    if not view.connected:
        return Plan()
    if view.registry_empty and view.assignment_count:
        return _registry_empty(view, now)
    sites = Sites(view.nodes, view.promised, now, view.residents)
    actions: list[Action] = []
    decisions: list[Decision] = []
    wakes: dict[str, float] = {CLUSTER: _cluster_wake(view, now)}
    horizons: dict[str, Mapping[str, LookAhead]] = {}
    for endpoint in view.endpoints.values():
        one = plan_one(endpoint, view, sites, now)
        actions += one.actions
        decisions += one.decisions
        wakes[endpoint.key] = one.wake_at
        horizons.update(one.horizons)
    if view.orphans:
        actions += _confirm_absent(view.orphans)
        wakes[CLUSTER] = min(wakes[CLUSTER], now + CONFIRM_AGAIN_S)
    actions, refused = ahead.granted(view, actions)
    decisions += refused
    actions.sort(key=_urgency)
    return _believable(view, Plan(tuple(actions), tuple(decisions), wakes, horizons), now)


def _registry_empty(view: ClusterView, now: float) -> Plan:
    """No endpoint at all, yet instances run: the registry was lost, and nobody asked to stop everything."""
    reason = (
        f"registry empty: no endpoint is known while {view.assignment_count} assignments exist; "
        "nothing is stopped, restore the endpoints bucket or delete the assignments"
    )
    decision = Decision("halt", reason, loud=True, inputs={"assignments": view.assignment_count, "endpoints": 0})
    return Plan(decisions=(decision,), wakes={CLUSTER: now + HALT_RETRY_S})


def _confirm_absent(orphans: Iterable[Placed]) -> list[Action]:
    def owner(placed: Placed) -> tuple[str, str]:
        return placed.assignment.tenant, placed.assignment.endpoint

    actions: list[Action] = []
    for (tenant, endpoint), group in groupby(sorted(orphans, key=owner), key=owner):
        members = tuple((placed.key, placed.revision) for placed in group)
        reason = f"endpoint {endpoint} is not in the listing; {len(members)} assignments are its"
        actions.append(
            ConfirmAbsent(key=f"{tenant}.{endpoint}", tenant=tenant, endpoint=endpoint, assignments=members, reason=reason)
        )
    return actions


def _believable(view: ClusterView, made: Plan, now: float) -> Plan:
    """Return ``made`` without what rests on missing data, if that would be too much at once (field case B36)."""
    doubtful = sum(_rests_on_absence(action) for action in made.actions)
    if view.assignment_count < HALT_FROM or doubtful <= HALT_ABOVE * view.assignment_count:
        return made
    halt = Decision(
        "halt",
        f"would stop {doubtful} of {view.assignment_count} instances because data are missing; nothing of that is done",
        loud=True,
        inputs={"would_stop": doubtful, "of": view.assignment_count, "limit": HALT_ABOVE},
    )
    return replace(
        made,
        actions=tuple(action for action in made.actions if not _rests_on_absence(action)),
        decisions=(*made.decisions, halt),
        wakes={**made.wakes, CLUSTER: now + HALT_RETRY_S},
    )


def _urgency(action: Action) -> int:
    """What somebody waits for first, what climbs ahead of demand last."""
    if awaited(action):
        return 0
    return 2 if isinstance(action, Retarget) and action.wish is not None else 1


def _rests_on_absence(action: Action) -> int:
    """Return how many instances ``action`` would stop on missing data alone."""
    if isinstance(action, ConfirmAbsent):
        return len(action.assignments)
    return int(isinstance(action, Unassign) and action.absence)


def _cluster_wake(view: ClusterView, now: float) -> float:
    """Return when the next node will be lost if its heart stops now."""
    due = (node.seen_at + NODE_LOST_AFTER_S for node in view.nodes.values() if node.alive(now))
    return min(due, default=NEVER)
