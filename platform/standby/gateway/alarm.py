"""One timer that is only ever moved forward: the earliest of all the moments at which something was to be looked at."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Alarm:
    """Calls ``ring`` in the running event loop. Moments are by ``monotonic``, in seconds."""

    monotonic: Callable[[], float]
    ring: Callable[[], None]
    at: float = math.inf
    _timer: asyncio.TimerHandle | None = None

    def set(self, moment: float) -> None:
        """Ring at that moment, or at an earlier one that was asked for: whoever still needs it then asks anew."""
        if self._timer is not None:
            if self.at <= moment:
                return
            self._timer.cancel()
        self.at = moment
        self._timer = asyncio.get_running_loop().call_later(max(0.001, moment - self.monotonic()), self._rung)

    def _rung(self) -> None:
        self._timer, self.at = None, math.inf
        self.ring()
