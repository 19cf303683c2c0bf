"""Keeps account of the node's zygotes: their memory in the ledger, their hatching among the prices."""

from __future__ import annotations

from dataclasses import dataclass

from standby.domain.model import EngineKind
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_keeper import PriceKeeper


@dataclass
class ZygoteBooks:
    """What ``ZygotePool`` tells the agent's books. Part of the agent's loop."""

    desk: MemoryDesk
    keeper: PriceKeeper

    def admit(self, kind: EngineKind, amount: int) -> str:
        """Promise its memory, or return why not."""
        answer = self.desk.reserve_zygote(kind, amount)
        return "" if answer.granted else answer.reason

    def hatched(self, kind: EngineKind, seconds: float) -> None:
        """Note the price."""
        self.keeper.hatched(kind, seconds)

    def measured(self, kind: EngineKind, amount: int) -> None:
        """Note what it really holds."""
        self.desk.zygote_measured(kind, amount)

    def ended(self, kind: EngineKind) -> None:
        """Take its memory back."""
        self.desk.zygote_ended(kind)
