"""Scaling ahead of demand: which parts of an endpoint do it, how much room they keep, and what is decided then. Pure.

Where a part does not, ``scaling.desired`` decides and nothing here costs it anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from standby.controller import forecast, scaling
from standby.controller.asked import EndpointDemand
from standby.controller.dispersion import LookAhead
from standby.controller.economy import Economy
from standby.controller.scaling import Capacity, ScaleDecision
from standby.controller.served import Served
from standby.controller.view import ClusterView, Placed
from standby.controller.weighing import held_gb, prices_of
from standby.domain.endpoint import PricePreset, ScalePolicy

# Below, room for chance would be negative; above, bursts cost a quarter more device time (docs/scaling.md).
LEAST_LEVEL: Final = 0.5
MOST_LEVEL: Final = 0.95


class Margin(NamedTuple):
    """``forecast.desired``'s: what is remembered of dispersion, None: only the history speaks; and the share of moments."""

    dispersion: float | None
    level: float


def wanted(policy: ScalePolicy, economy: Economy) -> bool:
    """Whether an endpoint scales ahead of demand: as its policy says, without a word where a caller's wait is dear."""
    if policy.max_instances <= 1:
        return False
    if policy.scale_ahead is None:
        return (policy.price_preset or economy.preset) is PricePreset.SNAPPY
    return policy.scale_ahead


def margin(cluster: ClusterView, one: Served, up: Sequence[Placed]) -> Margin | None:
    """Return how much room ``one`` keeps while ``up`` are its instances; None: none, it does not scale ahead of demand."""
    if not up or not wanted(one.variant.policy, cluster.economy):
        return None
    return Margin(one.demand.dispersion, _level(cluster, one, up[0]))


def look(policy: ScalePolicy, climb_s: float) -> LookAhead | None:
    """Return what is to be remembered of demand; None: one climb takes too long to foresee anything."""
    if climb_s > forecast.LONGEST_CLIMB_S:
        return None
    return LookAhead(climb_s, forecast.window_s(policy, climb_s))


def desired(
    demand: EndpointDemand, share: float, policy: ScalePolicy, capacity: Capacity, now: float, ahead: Margin | None
) -> ScaleDecision:
    """Return how many instances should be ready: ahead of demand with a margin, by present demand without one."""
    if ahead is None:
        return scaling.desired(demand, share, policy, capacity, now)
    return forecast.desired(demand, share, policy, capacity, now, dispersion=ahead.dispersion, level=ahead.level)


def _level(cluster: ClusterView, one: Served, placed: Placed) -> float:
    """Return the newsvendor's share: what a second of waiting costs, of that and a second of memory for one request more."""
    node = cluster.nodes.get(placed.assignment.node)
    if node is None:
        return forecast.LEVEL
    prices = prices_of(one.variant.policy, cluster.economy.prices)
    held = prices.device * held_gb(node, one.model, one.variant.memory_mb) / one.variant.policy.load
    both = prices.wait + held
    return min(MOST_LEVEL, max(LEAST_LEVEL, prices.wait / both if both > 0 else LEAST_LEVEL))
