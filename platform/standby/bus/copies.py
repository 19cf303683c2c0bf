"""A watched local copy of a table as its readers see it, and the wait until it shows what was just written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from standby.bus.tables import Entry, R, Table
from standby.domain.errors import RevisionConflict

_VISIBLE_WITHIN_S: Final = 1.0
_FIRST_STEP_S: Final = 0.0005
_LAST_STEP_S: Final = 0.005


class Copy(Protocol[R]):
    """A watched local copy of a table, as standby.bus.mirror.Mirror is one."""

    @property
    def entries(self) -> Mapping[str, Entry[R]]:
        """The records by key."""

    def staleness(self, now: float) -> float:
        """Return the seconds since the copy was last confirmed."""


async def visible(copy: Copy[R], record_key: str, revision: int | None, *, was_there: bool = False) -> None:
    """Wait until this process's own copy holds what was just written, so that the caller's next request sees it.

    ``revision`` None waits for the record to be gone. ``was_there`` says that the copy had the record before the write: then
    its absence means that somebody has removed it since. Gives up after 1 s: the write itself has happened.
    """
    step, waited = _FIRST_STEP_S, 0.0
    while waited < _VISIBLE_WITHIN_S:
        entry = copy.entries.get(record_key)
        if entry is None:
            if revision is None or was_there:
                return
        elif revision is not None and entry.revision >= revision:
            return
        await asyncio.sleep(step)
        waited += step
        step = min(step * 2, _LAST_STEP_S)


async def updated(copy: Copy[R], table: Table[R], entry: Entry[R], value: R) -> bool:
    """Write a record and wait until the copy shows it; False where the record is not at the entry's revision any more."""
    was_there = entry.key in copy.entries
    try:
        revision = await table.update(entry.key, value, entry.revision)
    except RevisionConflict:
        return False
    await visible(copy, entry.key, revision, was_there=was_there)
    return True
