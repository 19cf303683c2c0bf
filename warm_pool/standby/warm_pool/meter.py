"""Looks at what engines hold, every few seconds and in a thread; tells the ledger and the store of sizes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from standby.domain.instance import InstanceState
from standby.domain.prices import Footprint
from standby.warm_pool import tree_memory
from standby.warm_pool.ledger import Claim
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_key import price_key
from standby.warm_pool.tree_memory import Tree, TreeMemory

_log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
# The first request comes with the rung: it is not made to wait for the kernel's count of the same pages.
SETTLE_S: Final = 1.0
_AWAKE: Final = frozenset({InstanceState.READY, InstanceState.DRAINING})

DeviceBytes = Callable[[Sequence[int]], Mapping[str, int] | None]


@dataclass
class Meter:
    """Part of the agent's loop, but for the look itself. ``told`` hears of each instance whose figure is new.

    ``device_bytes(pids)`` returns what these processes hold of each device; None: there is no device, or it cannot say.
    It is called in a thread.
    """

    desk: MemoryDesk
    told: Callable[[Managed], None]
    device_bytes: DeviceBytes = lambda _pids: None
    _fresh: set[str] = field(default_factory=set)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _differing: frozenset[tuple[str, str]] = frozenset()

    def changed(self, managed: Managed) -> None:
        """An instance is ready or asleep since now: it is looked at soon."""
        self._fresh.add(managed.id)
        self._wake.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                async with asyncio.timeout(EVERY_S):
                    await self._wake.wait()
                await asyncio.sleep(SETTLE_S)
            except TimeoutError:
                pass
            self._wake.clear()
            await self.look()
            self.compare()

    async def look(self) -> None:
        """Measure all that are awake, and those that have just fallen asleep."""
        due, self._fresh = self._due(), set()
        if not due:
            return
        # In the meantime it may move on: then the figure is of neither state.
        asked = {managed.id: (managed.handle, managed.life.state) for managed in due}
        found = await asyncio.to_thread(self._look, {managed.id: _tree(managed) for managed in due})
        for managed in due:
            handle, state = asked[managed.id]
            if managed.id in found and managed.handle is handle and managed.life.state is state:
                self._note(managed, *found[managed.id])

    def compare(self) -> None:
        """Warn, once for each, where the ledger and what was measured differ."""
        found = {(one.holder, one.resource): one.reason for one in self.desk.reality()}
        for where in found.keys() - self._differing:
            _log.warning("the ledger is not what is there: %s", found[where])
        self._differing = frozenset(found)

    def _due(self) -> list[Managed]:
        return [
            managed
            for managed in self.desk.instances.values()
            if managed.handle is not None
            and (managed.life.state in _AWAKE or (managed.life.state is InstanceState.ASLEEP and managed.id in self._fresh))
        ]

    def _look(self, trees: Mapping[str, Tree]) -> dict[str, tuple[TreeMemory, Mapping[str, int] | None]]:
        found = tree_memory.look(trees)
        return {name: (memory, self.device_bytes(memory.pids)) for name, memory in found.items()}

    def _note(self, managed: Managed, memory: TreeMemory, devices: Mapping[str, int] | None) -> None:
        there = None if devices is None else sum(devices.values())
        claim = Claim(memory.held, dict(devices or {}))
        if managed.life.state is InstanceState.ASLEEP:
            look = Footprint(asleep=memory.held, device_asleep=there)
            self.desk.asleep(managed, claim)
        else:
            # The peak of a start is the peak of the process: what it holds later is held awake.
            look = Footprint(awake=memory.held, peak=memory.peak, device_awake=there)
            self.desk.awake(managed, claim)
        self.desk.sizes.seen(price_key(managed.assignment).text, managed.id, look)
        managed.resident_bytes = memory.held
        self.told(managed)


def _tree(managed: Managed) -> Tree:
    assert managed.handle is not None
    process = managed.handle.process
    return Tree(process.mark, process.pid)
