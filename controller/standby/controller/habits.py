"""Keeps what was learned of endpoints' gaps in a table, so that the next leader goes on with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from standby.bus.tables import Table
from standby.controller.arrivals import GapModel
from standby.controller.demand import DemandBook
from standby.controller.leader import Leadership
from standby.domain.errors import InvalidInput, RevisionConflict
from standby.domain.habits import Habits

log = logging.getLogger(__name__)

SAVE_EVERY_S: Final = 30.0
# In one round; the rest has its turn in the next.
MOST_AT_ONCE: Final = 500
MOST_PARTS: Final = 64


class HabitKeeper:
    """Reads at a take-over and writes while its controller leads; owned by the controller's loop.

    Methods raise BusUnavailable and LeaseLost; what was not written then is written next time.
    """

    def __init__(
        self, table: Table[Habits], book: DemandBook, leadership: Leadership, wall: Callable[[], float] = time.time
    ) -> None:
        self._table = table
        self._book = book
        self._leadership = leadership
        self._wall = wall
        self._revisions: dict[str, int] = {}
        self._pending: dict[str, None] = {}

    async def load(self) -> int:
        """Take over what is stored, where more was seen than here; return of how many endpoints."""
        entries = await self._table.list()
        self._revisions = {name: entry.revision for name, entry in entries.items()}
        for name, entry in entries.items():
            self._book.restore(name, _models(name, entry.value.parts))
        return len(entries)

    async def save(self, endpoints: Collection[str]) -> int:
        """Write what was learned since the last time, forget what is not among ``endpoints``; return how many were written."""
        self._pending |= dict.fromkeys(sorted(self._book.take_learned()))
        written = 0
        for name in list(self._pending)[:MOST_AT_ONCE]:
            self._leadership.check()
            if name in endpoints:
                await self._write(name)
                written += 1
            self._pending.pop(name, None)
        for name in [name for name in self._revisions if name not in endpoints][:MOST_AT_ONCE]:
            self._leadership.check()
            await self._table.delete(name)
            self._revisions.pop(name, None)
        return written

    async def _write(self, name: str) -> None:
        tenant, _, endpoint = name.partition(".")
        parts = dict(list(self._book.habits(name).items())[:MOST_PARTS])
        if not parts:
            return
        value = Habits(tenant=tenant, endpoint=endpoint, parts=parts, updated_at=self._wall())
        known = self._revisions.get(name)
        try:
            if known is None:
                self._revisions[name] = await self._table.create(name, value)
            else:
                self._revisions[name] = await self._table.update(name, value, known)
        except RevisionConflict:
            await self._read_again(name)

    async def _read_again(self, name: str) -> None:
        """Another leader has written: take over where it has seen more; ours is written with the next thing learned."""
        entry = await self._table.get(name)
        self._revisions.pop(name, None)
        if entry is not None:
            self._revisions[name] = entry.revision
            self._book.restore(name, _models(name, entry.value.parts))


def _models(name: str, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, GapModel]:
    found: dict[str, GapModel] = {}
    for label, said in list(parts.items())[:MOST_PARTS]:
        try:
            found[label] = GapModel.from_json(said)
        except InvalidInput as error:
            log.warning("habits of %s are ignored: %s", name, error)
    return found
