"""Who waits at one desk, in order, and how many bytes their bodies have."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from standby.domain.errors import StandbyError

if TYPE_CHECKING:
    from standby.gateway.desk import Desk
    from standby.gateway.grants import Grant


@dataclass(slots=True)
class AllRooms:
    """Body bytes in the waiting rooms of all endpoints of this gateway."""

    limit: int
    body_bytes: int = 0


@dataclass(slots=True, eq=False)
class Waiter:
    """``wanted`` is the instance of its session, which it waits for as long as that one is ready."""

    arrived: float
    arrived_at: float
    body_bytes: int
    granted: asyncio.Future[Grant]
    desk: Desk
    wanted: str | None


@dataclass(slots=True)
class WaitingRoom:
    """``bound`` counts those who want one certain instance; they keep nobody else back."""

    rooms: AllRooms
    queue: deque[Waiter] = field(default_factory=deque)
    body_bytes: int = 0
    bound: int = 0

    def join(self, waiter: Waiter, *, first: bool) -> None:
        """Let a request wait, at the head or at the end."""
        if first:
            self.queue.appendleft(waiter)
        else:
            self.queue.append(waiter)
        self._count(waiter, 1)

    def leave(self, waiter: Waiter) -> bool:
        """Take a request out, wherever it is; False when it is not here any more."""
        if waiter not in self.queue:
            return False
        self.queue.remove(waiter)
        self._count(waiter, -1)
        return True

    def take(self, at: int = 0) -> Waiter:
        """Take the request at this place out."""
        waiter = self.queue[at]
        del self.queue[at]
        self._count(waiter, -1)
        return waiter

    def refuse_all(self, error: StandbyError) -> None:
        """End everybody's wait."""
        while self.queue:
            waiter = self.take()
            if not waiter.granted.done():
                waiter.granted.set_exception(error)

    def _count(self, waiter: Waiter, change: int) -> None:
        self.bound += change * (waiter.wanted is not None)
        self.body_bytes += change * waiter.body_bytes
        self.rooms.body_bytes += change * waiter.body_bytes
