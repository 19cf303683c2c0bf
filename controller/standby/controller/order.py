"""Whether an endpoint is in order: what nearly every endpoint is in nearly every plan, told by one cheap look. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from standby.controller import keepalive
from standby.controller.served import Served
from standby.controller.sites import Sites
from standby.controller.view import NEVER, EndpointView, Placed
from standby.domain.endpoint import EndpointStatus
from standby.domain.instance import InstanceState, Rung

# The rung of an instance that does what it is told.
_RESTS: Final[Mapping[InstanceState, Rung]] = {
    InstanceState.READY: Rung.READY,
    InstanceState.ASLEEP: Rung.ASLEEP,
    InstanceState.ZYGOTE: Rung.ZYGOTE,
    InstanceState.STAGED: Rung.STAGED,
}


def in_order(endpoint: EndpointView, one: Served, sites: Sites) -> bool:
    """Whether nothing but the number and the rungs of its instances can need a change; in doubt it is not.

    ``one`` is all that it serves. Then its instances are of the present version, on living nodes, on the rung that they are
    told to have, and their doors let in what the policy says: nothing is outdated, lost, broken or to be marked.
    """
    record = endpoint.record
    if record.pending_config is not None or record.status is not EndpointStatus.IN_SERVICE or record.failure is not None:
        return False
    if one.variant.concurrency_limit is not None or one.backend:
        return False
    name, slots, keeping = one.variant.name, one.variant.policy.slots, sites.keeping
    for placed in endpoint.placed:
        have = placed.assignment
        if have.node not in keeping or have.variant != name or have.backend or have.version != one.version:
            return False
        if not _as_told(placed, slots) or not _same_model(placed, one):
            return False
    return True


def _as_told(placed: Placed, slots: int) -> bool:
    have, seen = placed.assignment, placed.instance
    if seen is None or _RESTS.get(seen.record.state) is not have.rung:
        return False
    return have.rung is not Rung.READY or (have.admits is None and have.slots == slots)


def _same_model(placed: Placed, one: Served) -> bool:
    """Equal manifests of a process are one (``Model``); options are compared by what they are."""
    its, mine = placed.assignment.model, one.model
    if its is mine:
        return True
    return its.manifest is mine.manifest and its.engine is mine.engine and its.engine_options == mine.engine_options


def rests_until(endpoint: EndpointView, one: Served, up: Sequence[Placed], now: float) -> float | None:
    """Return when the first of the instances of an endpoint that is in order has had its time; None: one has, or is weighed.

    ``up`` are those of them that stay wanted ready. Until then ``sinking`` moves none.
    """
    policy, wake_at = one.variant.policy, NEVER
    if not one.demand.valid:
        return wake_at
    for placed in endpoint.placed:
        have, seen = placed.assignment, placed.instance
        if have.ahead is not None or seen is None:
            return None
        if have.rung is Rung.READY or seen.record.assignment_intent != have.intent:
            continue
        limit = keepalive.time_of(have.rung, policy)
        if limit is None or now >= seen.rung_at + limit:
            return None
        wake_at = min(wake_at, seen.rung_at + limit)
    if one.demand.concurrency or len(up) <= policy.min_ready:
        return wake_at
    since = keepalive.idle_since(endpoint, one.demand, up)
    if since is None:
        return wake_at
    limit = policy.keep_ready
    return None if limit is None or now >= since + limit else min(wake_at, since + limit)
