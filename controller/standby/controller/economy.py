"""What the whole cluster's decisions about idle instances read beside the endpoints: prices, measurements, prewarm's budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from standby.controller.economics import PriceVector
from standby.controller.prewarm import Budget
from standby.domain.endpoint import PricePreset
from standby.domain.prices import NodePrices

# Of the device memory that is free, for climbs ahead of demand.
DEFAULT_BUDGET: Final = Budget(share=0.1)


@dataclass(frozen=True, slots=True)
class Ahead:
    """What climbs ahead of demand have taken of one node: GB of device memory in all, and how many are on their way."""

    held_gb: float = 0.0
    climbing: int = 0


@dataclass(frozen=True, slots=True)
class Economy:
    """``measured`` by node. ``wanted``: nodes where a start that somebody waits for lacks memory. ``ahead`` by node.

    ``ladders`` remembers what was computed from these; it belongs to the loop and is no input.
    """

    preset: PricePreset = PricePreset.BALANCED
    prices: PriceVector = field(default_factory=PriceVector)
    budget: Budget = DEFAULT_BUDGET
    measured: Mapping[str, NodePrices] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset()
    ahead: Mapping[str, Ahead] = field(default_factory=dict)
    ladders: dict[Any, Any] = field(default_factory=dict, compare=False)
