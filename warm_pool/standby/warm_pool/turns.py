"""One start, sleep, wake or end at a time on each GPU.

Engines that size themselves by a GPU's free memory take a neighbour's coming and going for their own (vLLM #55827 and
#56830), and memory that is just being given back counts twice. Processors are left out: engines there size themselves by
what they are told, and one model's cold start must not hold up another one's wake (field case B07).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Turns:
    """Part of the agent's loop. A start takes its turn in one task and gives it back in another, by the instance's name."""

    _locks: dict[str, asyncio.Lock] = field(default_factory=dict)
    _starting: dict[str, AsyncExitStack] = field(default_factory=dict)

    @asynccontextmanager
    async def turn(self, devices: Sequence[str]) -> AsyncIterator[None]:
        """Hold all of ``devices`` for the block; nothing is waited for where there are none."""
        async with AsyncExitStack() as held:
            for device in sorted(devices):  # everybody in the same order: no two can wait for each other
                await held.enter_async_context(self._locks.setdefault(device, asyncio.Lock()))
            yield

    async def begin(self, instance: str, devices: Sequence[str]) -> None:
        """Hold ``devices`` for the start of ``instance``, until ``over``."""
        assert instance not in self._starting, f"{instance} starts twice"
        stack = AsyncExitStack()
        await stack.enter_async_context(self.turn(devices))
        self._starting[instance] = stack

    async def over(self, instance: str) -> None:
        """The start has ended, well or not."""
        stack = self._starting.pop(instance, None)
        if stack is not None:
            await stack.aclose()
