"""Mirrors: right at once, right after every outage, and never forgetting on thin evidence."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.mirror import Mirror
from standby.bus.tables import Entry, Snapshot, Table
from standby.bus.tables_set import Tables, open_tables
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, RevisionConflict
from support.nats_server import NatsServer, eventually


def lease(holder: str, epoch: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch)


class Changes:
    """Every call of on_change, in order, as (key, holder before, holder after)."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str | None, str | None]] = []

    def __call__(self, key: str, before: Entry[Lease] | None, after: Entry[Lease] | None) -> None:
        self.seen.append((key, before.value.holder if before else None, after.value.holder if after else None))


@asynccontextmanager
async def mirrored(bus: Bus, changes: Changes | None = None, prefix: str = "") -> AsyncIterator[Mirror[Lease]]:
    mirror = Mirror((await open_tables(bus)).leases, changes, prefix)
    await mirror.start()
    try:
        yield mirror
    finally:
        await mirror.stop()


def holders(mirror: Mirror[Lease]) -> dict[str, str]:
    return {key: entry.value.holder for key, entry in mirror.entries.items()}


async def put_when_back(table: Table[Lease], key: str, value: Lease) -> None:
    async with asyncio.timeout(10):
        while True:
            try:
                await table.put(key, value)
            except BusUnavailable:
                await asyncio.sleep(0.02)
            else:
                return


@pytest.fixture
async def writer(server: NatsServer) -> AsyncIterator[Tables]:
    """The same tables, written by another process."""
    async with server.bus("writer") as bus:
        yield await open_tables(bus)


async def test_snapshot_first_then_updates_and_removals_with_true_revisions(bus: Bus, writer: Tables) -> None:
    await writer.leases.put("old", lease("there"))
    changes = Changes()
    async with mirrored(bus, changes) as mirror:
        assert holders(mirror) == {"old": "there"}
        revision = await writer.leases.put("new", lease("one"))
        await eventually(lambda: "new" in mirror.entries, why="new key mirrored")
        assert mirror.entries["new"].revision == revision
        # The mirrored revision is fit for compare-and-set without reading first.
        second = await writer.leases.update("new", lease("two"), mirror.entries["new"].revision)
        await eventually(lambda: mirror.entries["new"].revision == second, why="update mirrored")
        await writer.leases.delete("new", second)
        await eventually(lambda: "new" not in mirror.entries, why="removal mirrored")
    assert changes.seen == [("old", None, "there"), ("new", None, "one"), ("new", "one", "two"), ("new", "two", None)]


async def test_a_refused_write_is_never_seen(bus: Bus, writer: Tables) -> None:
    """A plain subscription on the bucket's own subjects would hear what the server then refused to store."""
    changes = Changes()
    async with mirrored(bus, changes) as mirror:
        revision = await writer.leases.put("a", lease("right"))
        with pytest.raises(RevisionConflict):
            await writer.leases.update("a", lease("refused"), revision + 7)
        with pytest.raises(RevisionConflict):
            await writer.leases.create("a", lease("refused"))
        await writer.leases.put("b", lease("later"))
        await eventually(lambda: "b" in mirror.entries, why="later write mirrored")
    assert changes.seen == [("a", None, "right"), ("b", None, "later")]


async def test_only_the_prefix_is_mirrored(bus: Bus, writer: Tables) -> None:
    await writer.leases.put("n1.a", lease("mine"))
    await writer.leases.put("n10.a", lease("other"))
    async with mirrored(bus, prefix="n1.") as mirror:
        await writer.leases.put("n10.b", lease("other"))
        await writer.leases.put("n1.b", lease("mine"))
        await eventually(lambda: "n1.b" in mirror.entries, why="own key mirrored")
        assert set(mirror.entries) == {"n1.a", "n1.b"}


async def test_a_burst_arrives_in_order_and_complete(bus: Bus, writer: Tables) -> None:
    changes = Changes()
    async with mirrored(bus, changes) as mirror:
        await asyncio.gather(*(writer.leases.put(f"k{n % 20}", lease(f"h{n}")) for n in range(400)))
        stored = await writer.leases.list()
        await eventually(lambda: len(changes.seen) == 400, why="all changes told")
        assert dict(mirror.entries) == stored


@pytest.mark.parametrize(("kill", "down_s"), [(False, 0.0), (True, 0.0), (True, 1.5)], ids=["TERM", "KILL", "KILL-and-away"])
async def test_a_change_right_after_a_restart_is_visible(bus: Bus, server: NatsServer, writer: Tables, kill: bool, down_s: float) -> None:
    """Field case B38: within two seconds of the server's return, where a library watch stays deaf for up to 19."""
    async with mirrored(bus) as mirror:
        await server.restart(kill=kill, down_s=down_s)

        async def change() -> None:
            await put_when_back(writer.leases, "a", lease("after"))
            await eventually(lambda: "a" in mirror.entries, why="change mirrored")

        async with asyncio.timeout(2):
            await change()


async def test_what_changed_while_away_is_found_on_return(server: NatsServer, writer: Tables) -> None:
    """Field case B35: a removal missed while the connection was down must not leave a ghost."""
    for name in ("kept", "removed", "changed"):
        await writer.leases.put(name, lease("before"))
    changes = Changes()
    async with server.bus(nats_relist_interval=3600.0) as away, mirrored(away, changes) as mirror:
        # Cut only this connection: its client must not come back before the changes are made.
        await away._client._transport.wait_closed() if False else None  # type: ignore[union-attr]
        changes.seen.clear()
        await pause_connection(away)
        await writer.leases.delete("removed")
        await writer.leases.put("changed", lease("after"))
        await writer.leases.put("new", lease("after"))
        await resume_connection(away)
        await eventually(lambda: holders(mirror) == {"kept": "before", "changed": "after", "new": "after"}, why="difference found")
    assert sorted(changes.seen) == [("changed", "before", "after"), ("new", None, "after"), ("removed", "before", None)]
