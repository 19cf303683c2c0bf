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
from standby.bus.tables import Entry, Known, Snapshot, Stored, Table
from standby.bus.tables_set import Tables, open_tables
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, RevisionConflict
from support.nats_server import Link, NatsServer
from support.waiting import until


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
    async with asyncio.timeout(60):
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
        await until(lambda: "new" in mirror.entries, "new key mirrored")
        assert mirror.entries["new"].revision == revision
        # The mirrored revision is fit for compare-and-set without reading first.
        second = await writer.leases.update("new", lease("two"), mirror.entries["new"].revision)
        await until(lambda: mirror.entries["new"].revision == second, "update mirrored")
        await writer.leases.delete("new", second)
        await until(lambda: "new" not in mirror.entries, "removal mirrored")
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
        await until(lambda: "b" in mirror.entries, "later write mirrored")
    assert changes.seen == [("a", None, "right"), ("b", None, "later")]


async def test_only_the_prefix_is_mirrored(bus: Bus, writer: Tables) -> None:
    await writer.leases.put("n1.a", lease("mine"))
    await writer.leases.put("n10.a", lease("other"))
    async with mirrored(bus, prefix="n1.") as mirror:
        await writer.leases.put("n10.b", lease("other"))
        await writer.leases.put("n1.b", lease("mine"))
        await until(lambda: "n1.b" in mirror.entries, "own key mirrored")
        assert set(mirror.entries) == {"n1.a", "n1.b"}


async def test_a_burst_arrives_in_order_and_complete(bus: Bus, writer: Tables) -> None:
    changes = Changes()
    async with mirrored(bus, changes) as mirror:
        await asyncio.gather(*(writer.leases.put(f"k{n % 20}", lease(f"h{n}")) for n in range(400)))
        stored = await writer.leases.list()
        await until(lambda: len(changes.seen) == 400, "all changes told")
        assert dict(mirror.entries) == stored


@pytest.mark.parametrize(("kill", "down_s"), [(False, 0.0), (True, 0.0), (True, 1.5)], ids=["TERM", "KILL", "KILL-and-away"])
async def test_a_change_right_after_a_restart_is_visible(
    bus: Bus, server: NatsServer, writer: Tables, kill: bool, down_s: float
) -> None:
    """Field case B38: within seconds of the server's return, where a library watch stays deaf for up to 19."""
    async with mirrored(bus) as mirror:
        await server.restart(kill=kill, down_s=down_s)
        await put_when_back(writer.leases, "a", lease("after"))
        await until(lambda: "a" in mirror.entries, "change mirrored", within_s=4.5)


@asynccontextmanager
async def behind_a_link(server: NatsServer) -> AsyncIterator[tuple[Bus, Link]]:
    """A bus whose connection alone can be cut; it lists by itself only after a reconnect."""
    async with server.link() as link, server.bus(nats_url=link.url, nats_relist_interval=3600.0) as bus:
        yield bus, link


async def test_what_changed_while_away_is_found_on_return(server: NatsServer, writer: Tables) -> None:
    """Field case B35: a removal missed while the connection was down must not leave a ghost."""
    for name in ("kept", "removed", "changed"):
        await writer.leases.put(name, lease("before"))
    changes = Changes()
    async with behind_a_link(server) as (bus, link), mirrored(bus, changes) as mirror:
        changes.seen.clear()
        link.cut()
        await until(lambda: not bus.connected, "cut noticed")
        await writer.leases.delete("removed")
        await writer.leases.put("changed", lease("after"))
        await writer.leases.put("new", lease("after"))
        assert holders(mirror) == {"kept": "before", "removed": "before", "changed": "before"}
        link.mend()
        wanted = {"kept": "before", "changed": "after", "new": "after"}
        await until(lambda: holders(mirror) == wanted, "difference found")
        await until(lambda: len(changes.seen) == 3, "changes told")
    assert sorted(changes.seen) == [("changed", "before", "after"), ("new", None, "after"), ("removed", "before", None)]


async def test_messages_lost_without_a_disconnect_are_found_by_the_periodic_listing(server: NatsServer, writer: Tables) -> None:
    await writer.leases.put("gone", lease("before"))
    async with server.bus(nats_relist_interval=0.2) as bus, mirrored(bus) as mirror:
        assert mirror._subscription is not None
        await mirror._subscription.unsubscribe()
        await writer.leases.delete("gone")
        await writer.leases.put("new", lease("after"))
        await until(lambda: holders(mirror) == {"new": "after"}, "difference found by listing")


async def test_a_dropped_message_causes_a_listing_at_once(server: NatsServer, writer: Tables) -> None:
    """The relist interval is an hour: only the report of the drop can bring the copy up to date in time."""
    async with server.bus(nats_relist_interval=3600.0) as bus, mirrored(bus) as mirror:
        assert mirror._subscription is not None
        subscription = mirror._subscription
        await subscription.unsubscribe()
        await writer.leases.put("missed", lease("x"))
        subscription.dropped("changed.leases.missed")
        await until(lambda: "missed" in mirror.entries, "missed key found")


class ForgetfulTable(Table[Lease]):
    """Lists nothing, as a listing that misses keys would at its worst."""

    async def snapshot(self, prefix: str = "", known: Known[Lease] | None = None) -> Snapshot[Lease]:
        return dataclasses.replace(await super().snapshot(prefix), entries={})


async def test_absence_from_a_listing_is_no_evidence(bus: Bus, writer: Tables) -> None:
    """Field case B36: a key that a listing lacks is read itself before anybody hears that it is gone."""
    changes = Changes()
    table = ForgetfulTable(bus, subjects.Bucket.LEASES, Lease)
    mirror = Mirror(table, changes)
    await mirror.start()
    await writer.leases.put("alive", lease("x"))
    await writer.leases.put("dead", lease("x"))
    await until(lambda: len(mirror.entries) == 2, "both mirrored")
    assert mirror._subscription is not None
    await mirror._subscription.unsubscribe()
    await writer.leases.delete("dead")
    await mirror.refresh()
    assert set(mirror.entries) == {"alive"}
    assert changes.seen == [("alive", None, "x"), ("dead", None, "x"), ("dead", "x", None)]
    await mirror.stop()


async def test_a_listing_older_than_the_copy_is_not_believed(bus: Bus, writer: Tables) -> None:
    """A partitioned old leader answers reads for seconds: neither its absences nor its values may go back in time."""
    await writer.leases.put("a", lease("one"))
    async with mirrored(bus) as mirror:
        old = await mirror._table.snapshot()
        await writer.leases.put("b", lease("two"))
        await until(lambda: "b" in mirror.entries, "newer key mirrored")

        async def stale(prefix: str = "", known: object = None) -> Snapshot[Lease]:
            return old

        mirror._table.snapshot = stale  # type: ignore[method-assign]
        with pytest.raises(BusUnavailable, match="leader"):
            await mirror.refresh()
        assert set(mirror.entries) == {"a", "b"}


async def test_an_emptied_store_is_said_loudly_rebuilt_and_no_order_to_forget(
    server: NatsServer, writer: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    """Field case B41: after a wipe the buckets come back, and copies keep what they know, marked as orphans."""
    for name in ("a", "b"):
        await writer.leases.put(name, lease("before"))
    changes = Changes()
    async with server.bus() as bus, mirrored(bus, changes) as mirror:
        changes.seen.clear()
        with caplog.at_level(logging.ERROR):
            await server.restart(kill=True, wipe=True)
            await until(lambda: mirror.orphans == {"a", "b"}, "loss noticed")
        assert holders(mirror) == {"a": "before", "b": "before"}
        assert changes.seen == []
        assert bus.statistics().store_losses >= 1
        said = [record.getMessage() for record in caplog.records]
        assert any("bucket leases was lost and made again" in message for message in said)
        assert any("2 entries live only in this process" in message for message in said)
        # Who owns a record announces it again, and it is an orphan no more, though revisions began anew at 1.
        await put_when_back(writer.leases, "a", lease("after"))
        await until(lambda: mirror.orphans == {"b"}, "announced record adopted")
        assert mirror.entries["a"].revision == 1
        await writer.leases.delete("b")
        await until(lambda: set(mirror.entries) == {"a"}, "explicit removal obeyed")
    assert changes.seen == [("a", "before", "after"), ("b", "before", None)]


async def test_a_bucket_deleted_under_a_running_mirror_is_made_again(server: NatsServer, writer: Tables) -> None:
    async with server.bus(nats_relist_interval=0.2) as bus, mirrored(bus) as mirror:
        await bus.jetstream.delete_stream(subjects.bucket_stream("leases"))
        await put_when_back(writer.leases, "a", lease("after"))
        await until(lambda: "a" in mirror.entries, "new bucket mirrored")


async def test_an_unreadable_value_keeps_the_last_readable_one(bus: Bus, writer: Tables) -> None:
    await writer.leases.put("a", lease("good"))
    async with mirrored(bus) as mirror:
        await bus.jetstream.publish(subjects.key_subject("leases", "a"), b"{")
        await until(lambda: bus.statistics().undecodable_values == 1, "bad value counted")
        await mirror.refresh()
        assert holders(mirror) == {"a": "good"}
        await writer.leases.put("a", lease("better"))
        await until(lambda: holders(mirror) == {"a": "better"}, "mirror goes on")


async def test_a_failing_on_change_does_not_stop_the_copy(bus: Bus, writer: Tables) -> None:
    def failing(key: str, before: Entry[Lease] | None, after: Entry[Lease] | None) -> None:
        raise RuntimeError(key)

    mirror = Mirror((await open_tables(bus)).leases, failing)
    await mirror.start()
    await writer.leases.put("a", lease("x"))
    await writer.leases.put("b", lease("x"))
    await until(lambda: set(mirror.entries) == {"a", "b"}, "both mirrored")
    assert bus.statistics().callback_failures == 2
    await mirror.stop()


async def test_staleness_counts_from_the_last_complete_listing(bus: Bus, writer: Tables) -> None:
    mirror = Mirror((await open_tables(bus)).leases)
    assert mirror.staleness(time.monotonic()) == float("inf")
    begun = time.monotonic()
    await mirror.start()
    assert mirror.staleness(begun + 100) <= 100
    first = mirror.staleness(begun + 100)
    await mirror.refresh()
    assert mirror.staleness(begun + 100) < first
    await mirror.stop()


async def test_flapping_leaves_no_consumer_behind(bus: Bus, server: NatsServer, writer: Tables) -> None:
    """Field case B38: each retry that leaves a consumer behind adds up to hundreds; mirrors use none at all."""
    async with mirrored(bus) as mirror:
        for n in range(10):
            await server.restart(kill=True)
            await put_when_back(writer.leases, "a", lease(f"h{n}"))
            await until(lambda wanted=f"h{n}": holders(mirror).get("a") == wanted, "change mirrored")  # type: ignore[misc]
        info = await bus.jetstream.stream_info(subjects.bucket_stream("leases"))
        assert info.state.consumer_count == 0


async def test_a_listing_of_an_unchanged_bucket_reads_no_value_again(
    bus: Bus, writer: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of reads every half a minute would be for nothing; one write, heard of or not, and all are read again."""
    for number in range(5):
        await writer.leases.put(f"k{number}", lease("a"))
    await writer.leases.delete("k4")
    async with mirrored(bus) as mirror:
        reads: list[str] = []
        read = Table.read

        async def counted(table: Table[Lease], key: str) -> Stored | None:
            reads.append(key)
            return await read(table, key)

        monkeypatch.setattr(Table, "read", counted)
        begun = time.monotonic()
        await mirror.refresh()
        assert reads == []
        assert mirror.confirmed_at >= begun
        await mirror._subscription.unsubscribe()  # type: ignore[union-attr] # it stands: the mirror has begun
        await writer.leases.put("k1", lease("b"))
        await mirror.refresh()
        assert holders(mirror) == {"k0": "a", "k1": "b", "k2": "a", "k3": "a"}
        assert sorted(reads) == ["k0", "k1", "k2", "k3", "k4"]
