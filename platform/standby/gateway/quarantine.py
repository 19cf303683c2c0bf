"""One grave suspect at a time for each endpoint: another engine's death then says who it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from standby.domain.errors import WaitExceeded

Of = tuple[str, str]


@dataclass
class _Lane:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    inside: int = 0


@dataclass
class Quarantine:
    """Lanes of the endpoints (tenant, name) that have grave suspects now; an endpoint without any has none."""

    _lanes: dict[Of, _Lane] = field(default_factory=dict)

    @asynccontextmanager
    async def alone(self, of: Of, limit_s: float) -> AsyncIterator[None]:
        """Hold the endpoint's lane; first come, first served. Raises WaitExceeded after ``limit_s`` of waiting."""
        lane = self._lanes.setdefault(of, _Lane())
        lane.inside += 1
        try:
            try:
                async with asyncio.timeout(limit_s):
                    await lane.lock.acquire()
            except TimeoutError:
                raise WaitExceeded(
                    f"endpoint {of[1]!r}: a request like it was in flight when an engine died twice, and others of that kind "
                    f"are tried first, one at a time; its turn did not come within {limit_s:g} s",
                    remedy="retry later",
                    retry_after_s=max(1.0, min(10.0, limit_s)),
                ) from None
            try:
                yield
            finally:
                lane.lock.release()
        finally:
            lane.inside -= 1
            if not lane.inside:
                del self._lanes[of]

    @property
    def lanes(self) -> int:
        """Endpoints that have grave suspects waiting or running."""
        return len(self._lanes)
