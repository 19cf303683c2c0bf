"""Writes what the node says of its instances and of itself; the only writer of this node's keys.

Newest wins: a record that is overtaken before it was written is never written. What could not be written because the
bus is away is written when it is back.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from standby.bus.tables_set import Tables
from standby.domain.errors import BusUnavailable, StandbyError
from standby.domain.instance import Instance
from standby.domain.names import key
from standby.domain.node import Node
from standby.domain.prices import NodePrices

_log = logging.getLogger(__name__)

RETRY_S: Final = 0.25


@dataclass
class Announcer:
    """Takes records synchronously, writes them from one task in the order in which their keys were first changed."""

    tables: Tables
    _pending: dict[str, Instance | None] = field(default_factory=dict)
    _node: Node | None = None
    _prices: NodePrices | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _idle: asyncio.Event = field(default_factory=asyncio.Event)

    def instance(self, record: Instance) -> None:
        """Say what an instance is now."""
        self._pending[key(record.node, record.id)] = record
        self._signal()

    def gone(self, node: str, instance: str) -> None:
        """Say that an instance is no more."""
        self._pending[key(node, instance)] = None
        self._signal()

    def node(self, record: Node) -> None:
        """Say what the node is now."""
        self._node = record
        self._signal()

    def prices(self, record: NodePrices) -> None:
        """Say what the node has measured."""
        self._prices = record
        self._signal()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending or self._node is not None or self._prices is not None:
                await self._write_one()
            self._idle.set()

    async def flushed(self) -> None:
        """Return when everything said so far has been written."""
        await self._idle.wait()

    def _signal(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def _write_one(self) -> None:
        where = next(iter(self._pending), None)
        try:
            if where is not None:
                await self._write_instance(where)
            elif self._node is not None:
                node, self._node = self._node, None
                await self.tables.nodes.put(node.name, node)
            elif self._prices is not None:
                await self._write_prices(self._prices)
        except BusUnavailable as error:
            _log.debug("cannot announce now: %s", error)
            await asyncio.sleep(RETRY_S)
        except StandbyError as error:
            # It will not be taken later either, e.g. because it is too big; all the others must still be heard.
            _log.error("cannot announce %s: %s", where or "the node", error)
            if where is not None:
                del self._pending[where]

    async def _write_prices(self, record: NodePrices) -> None:
        try:
            await self.tables.prices.put(record.node, record)
        except BusUnavailable:
            raise
        except StandbyError:
            self._prices = None
            raise
        if self._prices is record:
            self._prices = None

    async def _write_instance(self, where: str) -> None:
        record = self._pending[where]
        if record is None:
            await self.tables.instances.delete(where)
        else:
            await self.tables.instances.put(where, record)
        # Kept until it is written, unless a newer one has taken its place meanwhile.
        if self._pending.get(where, ...) is record:
            del self._pending[where]
