"""Memory is free when it is really back: after an engine has ended, its devices must say so, or get nothing new."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from standby.warm_pool.managed import Managed

_log = logging.getLogger(__name__)

RELEASE_LIMIT_S: Final = 10.0


@dataclass
class Releases:
    """Confirms that an ended engine's memory has returned. Its processes' end is awaited by whoever stops it.

    ``settled(devices)`` returns when the memory of ended processes is back; ``cordon(device, reason)`` takes a device
    out of use on which that does not happen.
    """

    devices_of: Callable[[Managed], Sequence[str]]
    settled: Callable[[Sequence[str]], Awaitable[None]]
    cordon: Callable[[str, str], None]
    limit_s: float = RELEASE_LIMIT_S

    async def confirm(self, managed: Managed) -> None:
        """Return when the devices of ``managed`` have its memory back, or are cordoned as it did not come in time."""
        for device in self.devices_of(managed):
            try:
                async with asyncio.timeout(self.limit_s):
                    await self.settled((device,))
            except TimeoutError:
                reason = f"memory of {managed.id} was not returned within {self.limit_s:g} s of its end"
                _log.error("device %s: %s", device, reason)
                self.cordon(device, reason)
