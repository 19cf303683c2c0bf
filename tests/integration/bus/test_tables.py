"""Tables: compare-and-set, removal, and a listing that misses nothing."""

from __future__ import annotations

import asyncio
import logging

import pytest

from standby.bus import subjects
from standby.bus.connection import Bus
from standby.bus.tables import Table
from standby.bus.tables_set import Tables, open_tables
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, InvalidInput, RevisionConflict, Unavailable
from support.nats_server import NatsServer


def lease(holder: str, epoch: int = 1) -> Lease:
    return Lease(holder=holder, epoch=epoch)


@pytest.fixture
async def tables(bus: Bus) -> Tables:
    return await open_tables(bus)


async def test_put_get_delete(tables: Tables) -> None:
    assert await tables.leases.get("a") is None
    revision = await tables.leases.put("a", lease("one"))
    found = await tables.leases.get("a")
    assert found is not None
    assert (found.key, found.value, found.revision) == ("a", lease("one"), revision)
    await tables.leases.delete("a")
    assert await tables.leases.get("a") is None
    await tables.leases.delete("a")


async def test_create_only_where_nothing_is_even_after_a_removal(tables: Tables) -> None:
    first = await tables.leases.create("a", lease("one"))
    with pytest.raises(RevisionConflict, match=f"leases/a exists already at revision {first}"):
        await tables.leases.create("a", lease("two"))
    await tables.leases.delete("a", first)
    assert await tables.leases.create("a", lease("three")) > first


async def test_of_ten_updates_at_one_revision_one_wins(tables: Tables) -> None:
    revision = await tables.leases.put("a", lease("start"))
    outcomes = await asyncio.gather(
        *(tables.leases.update("a", lease(f"h{n}"), revision) for n in range(10)), return_exceptions=True
    )
    winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, int)]
    losers = [outcome for outcome in outcomes if isinstance(outcome, RevisionConflict)]
    assert (len(winners), len(losers)) == (1, 9)
    assert f"leases/a is not at revision {revision}" in str(losers[0])
    found = await tables.leases.get("a")
    assert found is not None
    assert found.value.holder == f"h{winners[0]}"


async def test_delete_at_an_old_revision_is_refused(tables: Tables) -> None:
    old = await tables.leases.put("a", lease("one"))
    await tables.leases.put("a", lease("two"))
    with pytest.raises(RevisionConflict):
        await tables.leases.delete("a", old)
    assert await tables.leases.get("a") is not None


@pytest.mark.parametrize("key", ["", ".", "a..b", ".a", "a.", "a b", "a*", "a.>"])
async def test_illegal_keys_are_refused(tables: Tables, key: str) -> None:
    with pytest.raises(InvalidInput, match="not legal"):
        await tables.leases.put(key, lease("one"))


async def test_empty_is_no_error_and_prefixes_are_not_fooled_by_neighbours(tables: Tables) -> None:
    assert await tables.leases.list() == {}
    for key in ("n1.a", "n1.b", "n10.a", "n2.a"):
        await tables.leases.put(key, lease(key))
    assert set(await tables.leases.list("n1.")) == {"n1.a", "n1.b"}
    assert set(await tables.leases.list("n1")) == {"n1.a", "n1.b", "n10.a"}
    await tables.leases.delete("n1.b")
    assert set(await tables.leases.list()) == {"n1.a", "n10.a", "n2.a"}


async def test_listing_never_misses_a_key_that_is_being_rewritten(server: NatsServer, tables: Tables) -> None:
    """Field case B36: 200 keys are refreshed all the time, and 30 listings or more by another process each name all of them."""
    keys = {f"node.i{n}" for n in range(200)}
    await asyncio.gather(*(tables.leases.put(key, lease("x")) for key in keys))
    stop, refreshed = asyncio.Event(), 0

    async def refresh(share: list[str]) -> None:
        nonlocal refreshed
        while not stop.is_set():
            for key in share:
                await tables.leases.put(key, lease("x", epoch=refreshed + 1))
                refreshed += 1

    ordered = sorted(keys)
    async with server.bus() as other, asyncio.TaskGroup() as group:
        for n in range(20):
            group.create_task(refresh(ordered[n::20]))
        reader = Table(other, subjects.Bucket.LEASES, Lease)
        missing: list[set[str]] = []
        while len(missing) < 30 or refreshed <= 400:  # with fewer refreshes it would prove nothing
            missing.append(keys - set(await reader.list()))
        stop.set()
    assert not any(missing)


async def test_unreadable_values_are_skipped_counted_and_named_once(
    bus: Bus, tables: Tables, caplog: pytest.LogCaptureFixture
) -> None:
    await tables.leases.put("good", lease("one"))
    await bus.jetstream.publish(subjects.key_subject("leases", "bad"), b'{"holder": 7}')
    with caplog.at_level(logging.ERROR):
        assert set(await tables.leases.list()) == {"good"}
        assert set(await tables.leases.list()) == {"good"}
    assert [record.getMessage() for record in caplog.records if "leases/bad" in record.getMessage()] != []
    assert sum("leases/bad" in record.getMessage() for record in caplog.records) == 1
    assert bus.statistics().undecodable_values == 2
    with pytest.raises(Unavailable, match="leases/bad"):
        await tables.leases.get("bad")


async def test_a_key_that_we_could_not_have_written_harms_no_listing(bus: Bus, tables: Tables) -> None:
    await tables.leases.put("good", lease("one"))
    await bus.jetstream.publish("$KV.leases.odd:key", b"{}")
    assert set(await tables.leases.list()) == {"good"}
    assert bus.statistics().undecodable_values == 1


async def test_two_processes_open_the_same_tables(server: NatsServer, tables: Tables) -> None:
    async with server.bus() as other:
        theirs = await open_tables(other)
        await theirs.leases.put("a", lease("theirs"))
    found = await tables.leases.get("a")
    assert found is not None
    assert found.value.holder == "theirs"


async def test_without_the_server_every_call_says_so(server: NatsServer, tables: Tables) -> None:
    await server.stop()
    for call in (tables.leases.get("a"), tables.leases.put("a", lease("x")), tables.leases.list(), tables.leases.delete("a")):
        with pytest.raises(BusUnavailable):
            await call


async def test_values_survive_a_crash_of_the_server(server: NatsServer, tables: Tables) -> None:
    revision = await tables.leases.put("a", lease("kept"))
    await server.restart(kill=True)
    async with server.bus() as fresh:
        found = await Table(fresh, subjects.Bucket.LEASES, Lease).get("a")
    assert found is not None
    assert (found.value.holder, found.revision) == ("kept", revision)


async def test_a_record_read_back_is_the_record_written(bus: Bus) -> None:
    """Its set of given names is shared by all of its table; copies of it with changes are no worse for that."""
    table = (await open_tables(bus)).leases
    written = Lease(holder="a", epoch=3)
    await table.put("k", written)
    entry = await table.get("k")
    assert entry is not None
    assert entry.value == written
    changed = entry.value.model_copy(update={"holder": "b"})
    assert Lease.model_validate_json(changed.encode()) == changed
    assert entry.value.model_fields_set == set(Lease.model_fields)
