"""The soak's blows: by seed, engines, gateways and nodes are killed or told to stop, one gateway and one node at a time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import httpx
import psutil

from standby.cli.supervisor import Child
from support.deployment import Deployment, gateway_name

# Until the caller's side of a connection hears of it.
AFTERMATH_S: Final = 5.0
RETURN_LIMIT_S: Final = 60.0
# Until a gateway that is told to stop has closed its listener, and whoever came in that moment knows it.
CLOSING_S: Final = 3.0


@dataclass
class Blows:
    """What was done to whom, and when (monotonic seconds)."""

    counts: Counter[str] = field(default_factory=Counter)
    kills: list[tuple[int, float]] = field(default_factory=list)
    stops: list[tuple[int, float]] = field(default_factory=list)

    def killed(self, gateway: int, began: float, ended: float) -> bool:
        """Whether the gateway was killed while a request ran."""
        return any(one == gateway and began - AFTERMATH_S <= at <= ended for one, at in self.kills)

    def closed(self, gateway: int, began: float, ended: float) -> bool:
        """Whether the gateway closed its listener in the moment in which a connection came, and ended at once."""
        return ended - began < CLOSING_S and any(one == gateway and began - CLOSING_S <= at <= ended for one, at in self.stops)


@dataclass
class Chaos:
    """Strikes every ``pause`` seconds, at random between the two; ``nodes`` by name."""

    there: Deployment
    nodes: dict[str, Child]
    choose: random.Random
    pause: tuple[float, float] = (0.6, 2.0)
    blows: Blows = field(default_factory=Blows)
    _returning: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    async def run(self, until: asyncio.Event) -> None:
        """Strike until ``until`` is set, then wait until everybody is back."""
        strikes = [self._engine, self._engine, self._gateway, self._node]
        while not until.is_set():
            await self.choose.choice(strikes)()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.choose.uniform(*self.pause)):
                    await until.wait()
        await asyncio.gather(*self._returning.values())

    async def _engine(self) -> None:
        engines = self.there.engines()
        if not engines:
            return
        victim = self.choose.choice(sorted(engines, key=lambda process: process.pid))
        number = self.choose.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        with contextlib.suppress(psutil.Error):
            victim.send_signal(number)
            self.blows.counts[f"engine {number.name}"] += 1

    async def _gateway(self) -> None:
        if self._busy("gateway"):
            return
        gateway = self.choose.randrange(2)
        number = self.choose.choice([signal.SIGKILL, signal.SIGTERM])
        (self.blows.kills if number is signal.SIGKILL else self.blows.stops).append((gateway, time.monotonic()))
        self._strike("gateway", self.there.stack.children[gateway_name(gateway)], number, gateway)

    async def _node(self) -> None:
        if self._busy("node"):
            return
        name = self.choose.choice(sorted(self.nodes))
        self._strike("node", self.nodes[name], self.choose.choice([signal.SIGKILL, signal.SIGTERM]), None)

    def _busy(self, kind: str) -> bool:
        return kind in self._returning and not self._returning[kind].done()

    def _strike(self, kind: str, child: Child, number: signal.Signals, gateway: int | None) -> None:
        self.blows.counts[f"{kind} {number.name}"] += 1
        restarts = child.restarts
        child._failures = 0  # many deaths in a row are the purpose here: no growing pause
        if number is signal.SIGTERM:
            child.restart()
        else:
            child.signal(number)
        self._returning[kind] = asyncio.create_task(self._back(child, restarts, gateway))

    async def _back(self, child: Child, restarts: int, gateway: int | None) -> None:
        async def back() -> bool:
            if child.restarts == restarts:
                return False
            if gateway is None:
                return True
            with contextlib.suppress(httpx.TransportError):
                return (await self.there.call("GET", "/readyz", gateway=gateway)).status_code == 200
            return False

        await self.there.until(back, f"{child.name} is back", RETURN_LIMIT_S)
