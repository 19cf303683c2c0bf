"""Looks at what the endpoint holds while the demo plays, a few times a second, as any client of the control API could."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from standby.bench.compare.held import look_at
from standby.cli.demo.report import Held
from standby.host.tasks import end

_EVERY_S: Final = 0.25


@dataclass
class MemoryWatch:
    """``began``: the moment from which the looks' times count, by the monotonic clock."""

    api: httpx.AsyncClient
    endpoint: str
    began: float
    looks: list[Held] = field(default_factory=list)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look while the block runs."""
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            await end([task])

    async def _watch(self) -> None:
        while True:
            await self._look()
            await asyncio.sleep(_EVERY_S)

    async def _look(self) -> None:
        try:
            answer = await self.api.get(f"/api/v1/endpoints/{self.endpoint}")
        except httpx.HTTPError:
            return  # a look that fails says nothing of what is held
        if answer.status_code in {200, 404}:
            instances = answer.json()["instances"] if answer.status_code == 200 else []
            self.looks.append(held(instances, time.monotonic() - self.began))


def held(instances: list[dict[str, Any]], at_s: float) -> Held:
    """Return one look: the state of the first instance, which is the warmest, and what all hold together."""
    return Held(**look_at(instances, round(at_s, 2))._asdict())
