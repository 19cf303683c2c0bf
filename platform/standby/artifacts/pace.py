"""A cap on bytes per second: a pure token bucket, and the holder that the downloads of one process share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class TokenBucket:
    """``level`` bytes may pass at once at the time ``at``; a negative level is a debt that time pays off.

    ``rate`` in bytes per second, ``burst`` is the highest level in bytes, times in seconds of any one clock.
    """

    rate: float
    burst: float
    level: float
    at: float

    def take(self, amount: float, now: float) -> tuple[TokenBucket, float]:
        """Return the bucket without ``amount`` bytes, and how many seconds to wait before they may pass."""
        level = min(self.burst, self.level + max(0.0, now - self.at) * self.rate) - amount
        return replace(self, level=level, at=max(self.at, now)), max(0.0, -level / self.rate)


class Pacer:
    """Hands out a rate, first come first served, to the event loop and to threads alike; None: no cap."""

    def __init__(
        self,
        bytes_per_s: int | None = None,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.bytes_per_s = bytes_per_s
        self._now = now
        self._sleep = sleep
        self._lock = threading.Lock()
        # A tenth of a second at most passes unpaced after a pause.
        self._bucket = TokenBucket(bytes_per_s, bytes_per_s / 10, 0.0, now()) if bytes_per_s is not None else None

    def reserve(self, amount: int) -> float:
        """Book ``amount`` bytes and return the seconds to wait for them."""
        with self._lock:
            if self._bucket is None:
                return 0.0
            self._bucket, wait = self._bucket.take(amount, self._now())
            return wait

    async def wait(self, amount: int) -> None:
        """Book ``amount`` bytes and wait until they may pass."""
        wait = self.reserve(amount)
        if wait > 0:
            await self._sleep(wait)

    def portion(self, wanted: int, shares: int) -> int:
        """Return how many bytes to ask for at a time: ``wanted``, or less where the cap would make that take seconds."""
        if self.bytes_per_s is None:
            return wanted
        return max(1, min(wanted, max(64 << 10, self.bytes_per_s // (2 * shares))))
