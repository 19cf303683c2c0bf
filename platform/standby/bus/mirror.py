"""A watched local copy of a table, kept right by revisions.

The copy subscribes first, then lists, then applies whatever has the higher revision. ``Entry.revision`` in a mirror is the
true revision of the stored value, fit for ``Table.update``. The library's own watch is not used: it goes deaf for up to 19 s
after a server's restart, where a plain subscription does not.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final, Generic, TypeAlias

from standby.bus import subjects
from standby.bus.streams import SEQUENCE_HEADER
from standby.bus.subscription import Message, Subscription
from standby.bus.tables import OPERATION_HEADER, REMOVALS, Entry, Known, R, Snapshot, Stored, Table, wildcard
from standby.domain.errors import BusUnavailable
from standby.host import tasks as host_tasks

log = logging.getLogger(__name__)

OnChange: TypeAlias = Callable[[str, Entry[R] | None, Entry[R] | None], None]

FIRST_RETRY_S: Final = 0.1
LAST_RETRY_S: Final = 5.0
JITTER: Final = 0.2
# Listings older than the copy in a row until the store is taken to have been set back (a restored backup).
OUTDATED_LIMIT: Final = 8


class Mirror(Generic[R]):
    """Holds every entry of ``table`` whose key begins with ``prefix``.

    ``on_change(key, before, after)`` is called in the event loop after ``entries`` has the new value, once for each change and
    for each entry of the first listing; ``after`` is None for a removal. It must not block; what it raises is logged, counted.

    A removal is reported for a removal message, or when a listing lacks the key *and* a read of the key itself confirms it.
    When the store was lost (its bucket was made anew), entries that it no longer knows are kept and named in ``orphans``:
    an empty store is no order to forget everything.

    ``confirmed_at``: when the last complete listing began, by ``time.monotonic``.
    """

    def __init__(self, table: Table[R], on_change: OnChange[R] | None = None, prefix: str = "") -> None:
        self._table = table
        self._on_change = on_change
        self._prefix = prefix
        self._entries: dict[str, Entry[R]] = {}
        # A live read-only view. An attribute, since each request of a gateway reads several copies.
        self.entries: Mapping[str, Entry[R]] = MappingProxyType(self._entries)
        self._buried: dict[str, int] = {}
        self._orphans: set[str] = set()
        self._created: datetime | None = None
        self._reported: set[str] = set()
        self._newest = 0
        self._delivered = 0
        self._outdated = 0
        self.confirmed_at = -math.inf
        self._listed: Known[R] | None = None
        self._refreshing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._subscription: Subscription | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return when ``entries`` is complete; updates follow. Raises BusUnavailable."""
        bus = self._table.bus
        self._subscription = await bus.subscribe_messages(
            subjects.changed_subject(self._table.bucket, wildcard(self._prefix)), self._receive, on_drop=self._wake.set
        )
        try:
            await self.refresh()
        except BusUnavailable:
            await self.stop()
            raise
        bus.on_reconnect(self._request_refresh)
        self._task = asyncio.get_running_loop().create_task(self._keep_fresh())

    async def stop(self) -> None:
        """End the updates; ``entries`` stays as it is. Idempotent."""
        self._table.bus.off_reconnect(self._request_refresh)
        if self._task is not None:
            await host_tasks.end([self._task])
            self._task = None
        if self._subscription is not None:
            await self._subscription.unsubscribe()
            self._subscription = None

    @property
    def orphans(self) -> frozenset[str]:
        """Keys that a lost store no longer knows; their last values are still in ``entries``."""
        return frozenset(self._orphans)

    def staleness(self, now: float) -> float:
        """Seconds from the begin of the last complete listing to ``now`` (``time.monotonic``); infinite before the first.

        Grows to the re-list interval in good health, because only a listing proves that no message was missed.
        """
        return max(0.0, now - self.confirmed_at)

    async def refresh(self) -> None:
        """List, compare and apply now. Raises BusUnavailable; the copy is then what it was."""
        async with self._refreshing:
            begun, newest_before = time.monotonic(), self._newest
            snapshot = await self._table.snapshot(self._prefix, self._listed)
            self._admit(snapshot, newest_before)
            for entry in snapshot.entries.values():
                self._apply(entry)
            await self._confirm_removals(snapshot)
            self._buried = {key: at for key, at in self._buried.items() if at > snapshot.last_revision}
            self.confirmed_at = begun
            self._listed = Known(self._entries, snapshot.unreadable, snapshot.last_revision, snapshot.created)
        self._report_orphans()

    # ---- updates ---------------------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        key = message.subject.removeprefix(subjects.changed_subject(self._table.bucket, ""))
        if not key.startswith(self._prefix):
            return
        revision = int(message.headers[SEQUENCE_HEADER])
        if revision <= self._delivered:
            # The server repeats in order: going back means that the bucket was made anew, and only a listing can tell.
            self._wake.set()
        self._delivered = max(self._delivered, revision)
        self._newest = max(self._newest, revision)
        if message.headers.get(OPERATION_HEADER) in REMOVALS:
            self._remove(key, revision)
            return
        entry = self._table.decode(Stored(key, message.data, revision))
        if entry is not None:
            self._apply(entry)

    def _apply(self, entry: Entry[R]) -> None:
        if entry.revision <= self._known(entry.key):
            return
        before = self._entries.get(entry.key)
        self._entries[entry.key] = entry
        self._orphans.discard(entry.key)
        self._buried.pop(entry.key, None)
        self._tell(entry.key, before, entry)

    def _remove(self, key: str, revision: int) -> None:
        if revision <= self._known(key):
            return
        before = self._entries.pop(key, None)
        self._orphans.discard(key)
        # Remembered until the next listing, so that a value read before the removal cannot come back.
        self._buried[key] = revision
        if before is not None:
            self._tell(key, before, None)

    def _known(self, key: str) -> int:
        """The revision in the bucket's present life that the copy already reflects."""
        if key in self._entries and key not in self._orphans:
            return self._entries[key].revision
        return self._buried.get(key, 0)

    def _tell(self, key: str, before: Entry[R] | None, after: Entry[R] | None) -> None:
        if (on_change := self._on_change) is not None:
            self._table.bus.guard(lambda: on_change(key, before, after), f"on_change of {self._table.bucket}/{key}")

    # ---- listings --------------------------------------------------------------------------------------

    def _admit(self, snapshot: Snapshot[R], newest_before: int) -> None:
        """Accept ``snapshot`` as of this life, begin a new life, or raise BusUnavailable because it is older than the copy."""
        if self._created is not None and snapshot.created != self._created:
            self._begin_new_life()
        elif snapshot.last_revision < newest_before:
            # A partitioned old leader still answers reads; what it does not know proves nothing.
            self._outdated += 1
            if self._outdated < OUTDATED_LIMIT:
                raise BusUnavailable(
                    f"listing of {self._table.bucket} is of revision {snapshot.last_revision}, and {newest_before} was seen",
                    remedy="wait for the cluster's leader",
                )
            self._begin_new_life()
        self._outdated = 0
        self._created = snapshot.created
        self._newest = max(self._newest, snapshot.last_revision)

    def _begin_new_life(self) -> None:
        self._orphans = set(self._entries)
        self._buried.clear()
        self._newest = self._delivered = 0

    async def _confirm_removals(self, snapshot: Snapshot[R]) -> None:
        """Read each key that the listing lacks: absence from a listing alone is never evidence."""
        there = snapshot.entries.keys() | snapshot.unreadable | self._orphans
        for key in [key for key in self._entries if key not in there]:
            seen = self._entries[key]
            stored = await self._table.read(key)
            if self._entries.get(key) is not seen:
                continue
            if stored is None:
                self._remove(key, max(snapshot.last_revision, seen.revision + 1))
            elif stored.payload is None:
                self._remove(key, stored.revision)
            elif (entry := self._table.decode(stored)) is not None:
                self._apply(entry)

    def _report_orphans(self) -> None:
        if self._orphans and self._orphans != self._reported:
            log.error(
                "bucket %s lost its store: %d entries live only in this process now, e.g. %s",
                self._table.bucket,
                len(self._orphans),
                ", ".join(sorted(self._orphans)[:3]),
            )
        self._reported = set(self._orphans)

    async def _request_refresh(self) -> None:
        self._wake.set()

    async def _keep_fresh(self) -> None:
        interval = self._table.bus.settings.nats_relist_interval
        delay, failures = interval, 0
        while True:
            try:
                async with asyncio.timeout(delay):
                    await self._wake.wait()
                # Woken: back after an outage, when the first tries may come before the store is ready.
                failures = 0
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._refresh_or_make()
                delay, failures = interval * random.uniform(1 - JITTER, 1 + JITTER), 0  # noqa: S311 (no secret)
            except BusUnavailable as error:
                failures += 1
                delay = min(LAST_RETRY_S, FIRST_RETRY_S * 2**failures)
                log.log(logging.WARNING if failures == 1 else logging.DEBUG, "mirror of %s: %s", self._table.bucket, error)

    async def _refresh_or_make(self) -> None:
        """Refresh; where that fails although the server answers, the bucket itself may be gone: make it and try again."""
        try:
            await self.refresh()
        except BusUnavailable:
            if not await self._table.ensure():
                raise
            await self.refresh()
