"""What gateways tell each other of requests that kill engines: each such request ends one engine, not one per gateway."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from standby.bus.connection import Bus
from standby.bus.subjects import POISON
from standby.bus.subscription import Subscription
from standby.domain.errors import StandbyError
from standby.gateway.poison import REFUSED_FOR_S, Conviction, Kept, PoisonBook
from standby.host import tasks as host_tasks

_log = logging.getLogger(__name__)


@dataclass
class PoisonNews:
    """Tells the convictions of ``book`` and takes up the others'; best effort. ``clock`` is the book's.

    ``convicted`` hears of each conviction made here.
    """

    bus: Bus
    book: PoisonBook
    clock: Callable[[], float]
    convicted: Callable[[Kept], None] = lambda _who: None
    _subscription: Subscription | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self) -> None:
        """Listen and tell. Raises BusUnavailable."""
        self._subscription = await self.bus.subscribe(POISON, self._told)
        self.book.on_conviction = self._tell_soon

    async def stop(self) -> None:
        """Neither listen nor tell any longer."""
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None
        await host_tasks.end(tuple(self._tasks))

    def _tell_soon(self, conviction: Conviction) -> None:
        _log.warning(
            "a request is refused from now on: %s",
            conviction.reason,
            extra={"tenant": conviction.who.tenant, "endpoint": conviction.who.endpoint, "fingerprint": conviction.fingerprint},
        )
        self.convicted(conviction.who)
        task = asyncio.get_running_loop().create_task(self._tell(conviction))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, conviction: Conviction) -> None:
        message = {**conviction.who._asdict(), "fingerprint": conviction.fingerprint, "reason": conviction.reason}
        message["for_s"] = conviction.until - self.clock()
        # While the bus is away each gateway finds out by itself.
        with contextlib.suppress(StandbyError):
            await self.bus.publish(POISON, json.dumps(message).encode())

    def _told(self, _subject: str, payload: bytes) -> None:
        told = json.loads(payload)
        who = Kept(str(told["tenant"]), str(told["endpoint"]), int(told["length"]))
        now = self.clock()
        until = now + min(float(told["for_s"]), REFUSED_FOR_S)
        mark = str(told["fingerprint"])
        # The bus brings each gateway its own news, too.
        if until > now and self.book.conviction(mark, now) is None:
            self.book.learn(Conviction(who, mark, until, str(told["reason"])))
