"""A target as a comparison sees it: who is asked, how it gets cold, when it scales in, what it holds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from standby.bench.compare.values import Holding, Reached
from standby.bench.load import Target
from standby.bench.values import Sample

Phases: TypeAlias = tuple[tuple[str, float], ...]


class Subject(Protocol):
    """One side of a comparison while it runs."""

    @property
    def target(self) -> Target:
        """Who is asked."""

    @property
    def kind(self) -> str:
        """What it is, in words."""

    async def to_zero(self) -> Reached:
        """Make it cold, or wait until it is; says how."""

    async def falling(self) -> Reached:
        """Return as soon as it has begun to scale in; not ok: nobody can say when that is."""

    async def phases(self, sample: Sample) -> Phases:
        """Return the milliseconds of each phase of the cold start that an answer had to wait for."""

    async def ended(self) -> str:
        """Return why it cannot answer any more, where somebody knows; empty: nobody does."""

    async def holding(self) -> Holding:
        """Return what it has held since the comparison began."""


@dataclass
class Plain:
    """Anything that only answers requests: cold by idling, as far as anybody can say. ``idle_s`` None: not even that."""

    target: Target
    kind: str
    idle_s: float | None = None

    async def to_zero(self) -> Reached:
        """Leave it alone."""
        if self.idle_s is None:
            return Reached(ok=False, words="nothing says when it is cold; --idle gives a time after which it counts as cold")
        await asyncio.sleep(self.idle_s)
        return Reached(ok=True, words=f"left alone for {self.idle_s:g} s; whether it was cold then, nobody says")

    async def falling(self) -> Reached:
        """Nobody knows."""
        return Reached(ok=False, words="nothing says when it scales in")

    async def phases(self, sample: Sample) -> Phases:
        """Return those that the answer names."""
        return sample.phases_ms

    async def ended(self) -> str:
        """Nobody knows."""
        return ""

    async def holding(self) -> Holding:
        """Nobody knows."""
        return Holding(words="what it holds cannot be seen from outside")


async def looked_until(look: Callable[[], Awaitable[bool]], limit_s: float, every_s: float) -> bool:
    """Look until it is true; False where ``limit_s`` has passed first."""
    began = time.monotonic()
    while not await look():
        if time.monotonic() - began > limit_s:
            return False
        await asyncio.sleep(every_s)
    return True
