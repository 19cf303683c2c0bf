"""Keeps account of the node's zygotes: their memory in the ledger, their hatching among the prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from standby.domain.model import EngineKind
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_keeper import PriceKeeper


class Books(Protocol):
    """Who keeps account of zygotes: their memory and their price."""

    def admit(self, kind: EngineKind, amount: int) -> str:
        """Return why those of ``kind`` must not hold ``amount`` bytes in all now; empty: that is promised."""

    def hatched(self, kind: EngineKind, seconds: float) -> None:
        """Take up that one is ready, so many seconds after its start."""

    def measured(self, kind: EngineKind, amount: int) -> None:
        """Take up the bytes that it really holds."""

    def ended(self, kind: EngineKind) -> None:
        """Take up that there is none any more."""


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
