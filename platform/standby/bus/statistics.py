"""What the bus counts: for metrics, the doctor and the log."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True)
class BusStatistics:
    """Counts since the process connected; each only grows."""

    connected: bool = False
    reconnects: int = 0
    disconnects: int = 0
    revivals: int = 0
    errors: int = 0
    slow_consumer_drops: int = 0
    callback_failures: int = 0
    undecodable_values: int = 0
    store_losses: int = 0
    events_dropped: int = 0
    last_error: str = ""


@dataclass
class Counters:
    """The same counts while they are being made; owned by the Bus, used only inside standby.bus."""

    reconnects: int = 0
    disconnects: int = 0
    revivals: int = 0
    errors: int = 0
    slow_consumer_drops: int = 0
    callback_failures: int = 0
    undecodable_values: int = 0
    store_losses: int = 0
    events_dropped: int = 0
    last_error: str = ""

    def frozen(self, *, connected: bool) -> BusStatistics:
        """Return the counts as they are now."""
        return BusStatistics(connected=connected, **dataclasses.asdict(self))
