"""What the controller follows beside endpoints and nodes: measured prices, and whose climbs nobody waits for or lack memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from standby.controller.economy import Ahead, Economy
from standby.controller.view import ObservedInstance, ObservedNode
from standby.controller.weighing import held_gb
from standby.domain.assignment import Assignment
from standby.domain.endpoint import NO_MEMORY
from standby.domain.instance import Rung
from standby.domain.prices import NodePrices


class Market:
    """Owned by the controller's one event loop; ``ahead`` are the assignments that climbed ahead of demand, by key."""

    def __init__(self, base: Economy) -> None:
        self._base = base
        self._measured: dict[str, NodePrices] = {}
        self._lacking: dict[str, str] = {}
        self.ahead: dict[str, Assignment] = {}

    def measured(self, node: str, prices: NodePrices | None) -> None:
        """Note what a node has measured; None: it has taken that back."""
        if prices is None:
            self._measured.pop(node, None)
        else:
            self._measured[node] = prices

    def track(self, name: str, wanted: Assignment | None, seen: ObservedInstance | None) -> bool:
        """Note how an assignment stands; return whether its lack of memory has begun or ended.

        Only what somebody waits for can lack memory: what climbed ahead of demand goes without.
        """
        up = wanted is not None and wanted.rung is Rung.READY
        if wanted is not None and up and wanted.ahead is not None:
            self.ahead[name] = wanted
        else:
            self.ahead.pop(name, None)
        failure = None if seen is None or seen.ready else seen.record.failure
        lacks = up and name not in self.ahead and failure is not None and failure.code == NO_MEMORY
        if lacks == (name in self._lacking):
            return False
        if lacks and wanted is not None:
            self._lacking[name] = wanted.node
        else:
            self._lacking.pop(name, None)
        return True

    def economy(self, nodes: Mapping[str, ObservedNode], instances: Mapping[str, ObservedInstance]) -> Economy:
        """Return what decisions read of it now."""
        taken: dict[str, Ahead] = {}
        for name, wanted in self.ahead.items():
            node, seen = nodes.get(wanted.node), instances.get(name)
            if node is None:
                continue
            before = taken.get(wanted.node, Ahead())
            held = before.held_gb + held_gb(node, wanted.model, wanted.memory_mb)
            taken[wanted.node] = Ahead(held, before.climbing + (seen is None or not seen.ready))
        return replace(self._base, measured=self._measured, wanted=frozenset(self._lacking.values()), ahead=taken)
