"""Tells the controller about demand: at once when somebody waits and nothing is ready, else soon, and with every beat."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from standby.bus.connection import Bus
from standby.bus.subjects import beat_subject, demand_subject
from standby.domain.demand import GatewayBeat
from standby.domain.errors import BusUnavailable, StandbyError
from standby.gateway.desk import Desk

_log = logging.getLogger(__name__)

SOON_S = 0.1
BEAT_S = 1.0


@dataclass
class DemandReporter:
    """Owns the gateway's sequence number. Loss of a message is harmless: the next beat says everything again."""

    bus: Bus
    gateway: str
    boot_id: str
    _sequence: int = 0
    _dirty: dict[int, Desk] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _urgent: asyncio.Event = field(default_factory=asyncio.Event)
    unsent: int = 0

    def changed(self, desk: Desk, urgent: bool) -> None:
        """A desk's counts have changed; ``urgent`` when its first waiter has come."""
        # Twice for each request: what is to be sent already needs nothing more, as its loop was woken for it.
        if id(desk) not in self._dirty:
            self._dirty[id(desk)] = desk
            self._wake.set()
        if urgent:
            self._urgent.set()

    async def run(self) -> None:
        """Send changes until cancelled."""
        while True:
            await self._wake.wait()
            if not self._urgent.is_set():
                await self._pause()
            self._wake.clear()
            self._urgent.clear()
            dirty, self._dirty = self._dirty, {}
            for desk in dirty.values():
                await self._send(desk)

    async def run_beats(self, desks: Callable[[], Iterable[Desk]]) -> None:
        """Send a beat every second until cancelled."""
        while True:
            await self.beat(desks())
            await asyncio.sleep(BEAT_S)

    async def beat(self, desks: Iterable[Desk]) -> None:
        """Send everything once: the lease on this gateway's counts."""
        self._sequence += 1
        message = GatewayBeat(
            gateway=self.gateway,
            boot_id=self.boot_id,
            sequence=self._sequence,
            demands=tuple(told for desk in desks for told in desk.demands(self.gateway, self.boot_id, self._sequence)),
        )
        await self._publish(beat_subject(self.gateway), message.encode())

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(SOON_S):
                await self._urgent.wait()
        except TimeoutError:
            return

    async def _send(self, desk: Desk) -> None:
        demands = desk.demands(self.gateway, self.boot_id, self._sequence + 1)
        # Whatever else is sent while these go out has a later number, and says all of it again.
        self._sequence += len(demands)
        for demand in demands:
            await self._publish(demand_subject(demand.tenant, demand.endpoint), demand.encode())

    async def _publish(self, subject: str, payload: bytes) -> None:
        try:
            await self.bus.publish(subject, payload)
        except StandbyError as error:
            # The loops go on, whatever the bus says of one message: without them no endpoint would ever be woken again.
            self.unsent += 1
            if not isinstance(error, BusUnavailable):
                _log.warning("a report was not sent", extra={"subject": subject, "bytes": len(payload), "error": error.message})
