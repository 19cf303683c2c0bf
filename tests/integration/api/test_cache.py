"""The nodes' caches from afar: listed, pinned, evicted; with real caches behind real orders over a real bus."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from standby.artifacts.inspection import inspect
from standby.domain.model import Manifest, SourceOptions
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.orders import CacheOrders
from support.cluster import make_node
from support.command import standby
from support.control_api import ONE, Control
from support.gguf_builder import gguf
from support.waiting import until


async def a_model(control: Control, folder: Path, name: str = "m", seed: int = 0) -> Manifest:
    """Register a small model and return what was pinned of it."""
    path = folder / f"{name}.gguf"
    path.write_bytes(gguf(seed=seed))
    answer = await control.call("one", "POST", "/api/v1/models", {"name": name, "source_uri": path.as_uri()})
    assert answer.status_code == 201, answer.text
    return await inspect(path.as_uri(), SourceOptions())


async def a_record(control: Control, name: str, cache: ArtifactCache | None = None) -> None:
    """Say, as a node would, that there is a node."""
    artifacts = () if cache is None else cache.contents()
    await control.tables.nodes.put(name, make_node(name).model_copy(update={"artifacts": artifacts}))
    await until(lambda: name in control.context.copies.nodes.entries)


@asynccontextmanager
async def a_node(control: Control, folder: Path, name: str, *manifests: Manifest) -> AsyncIterator[ArtifactCache]:
    """Run the cache of a node that has fetched ``manifests``, and take orders for it."""
    cache = ArtifactCache(folder / name, 10**9)
    await cache.open()
    for manifest in manifests:
        await cache.ensure(manifest, lambda _done, _total: None)
    orders = await CacheOrders(name, cache).serve(control.context.bus)
    await a_record(control, name, cache)
    try:
        yield cache
    finally:
        await orders.unsubscribe()
        await cache.close()


async def test_the_cache_is_listed_pinned_and_evicted(control: Control, tmp_path: Path) -> None:
    """What a pinned artifact is, who pinned it, and that eviction says what stands in its way."""
    manifest = await a_model(control, tmp_path)
    short = manifest.digest[:12]
    async with a_node(control, tmp_path, "n1", manifest) as cache:
        listed = await standby(control, "cache", "ls", who="admin")
        pinned = await standby(control, "cache", "pin", "--model", "m", who="admin")
        again = await standby(control, "cache", "pin", short, "--node", "n1", who="admin")
        shown = (await control.call("admin", "GET", "/api/v1/cache?node=n1")).json()
        kept = await standby(control, "cache", "evict", short, who="admin")
        unpinned = await standby(control, "cache", "unpin", short, who="admin")
        cache.pin(manifest.digest, "chat-abc")
        used = await standby(control, "cache", "evict", short, who="admin")
        cache.unpin(manifest.digest, "chat-abc")
        evicted = await standby(control, "cache", "evict", short, who="admin")
        empty = await standby(control, "cache", "ls", "--node", "n1", who="admin")

    assert listed.exit_code == 0, listed.output
    row = next(line for line in listed.stdout.splitlines() if line.startswith("n1 "))
    for word in (short, f"{ONE}/m", "100%", manifest.source_uri):
        assert word in row
    assert pinned.stdout == f"n1: {short} is pinned\n"
    assert again.stdout == f"n1: {short} was pinned already\n"
    ((artifact,),) = (node["artifacts"] for node in shown["nodes"])
    assert artifact["pinned_by"].startswith("admin (")
    assert (artifact["models"], artifact["used_by"]) == ([f"{ONE}/m"], [])
    assert (kept.exit_code, "is pinned by admin (" in kept.stderr) == (5, True)
    assert unpinned.stdout == f"n1: {short} is not pinned\n"
    assert (used.exit_code, "is in use by chat-abc" in used.stderr) == (5, True)
    assert evicted.stdout.startswith(f"n1: {short} is evicted, ")
    assert "nothing is cached" in empty.stdout


async def test_an_order_goes_to_every_node_that_has_it(control: Control, tmp_path: Path) -> None:
    """What one node refuses is told beside what the other has done, and in the exit code."""
    manifest = await a_model(control, tmp_path)
    async with (
        a_node(control, tmp_path, "n1", manifest) as one,
        a_node(control, tmp_path, "n2", manifest) as two,
        a_node(control, tmp_path, "n3") as three,
    ):
        one.pin(manifest.digest, "chat-abc")
        ran = await standby(control, "cache", "evict", "--model", "m", who="admin")
        left = [[item.digest for item in cache.contents()] for cache in (one, two, three)]
        one.unpin(manifest.digest, "chat-abc")
        body = {"action": "evict", "model": "m", "intent": "once"}
        first = await control.call("admin", "POST", "/api/v1/cache/orders", body)
        nowhere = await control.call("admin", "POST", "/api/v1/cache/orders", {**body, "intent": "twice"})
        repeated = await control.call("admin", "POST", "/api/v1/cache/orders", {**body, "node": "n1"})

    assert ran.exit_code == 5
    assert ran.stdout.startswith("n2: ")
    assert "node n1: artifact" in ran.stderr
    assert left == [[manifest.digest], [], []]
    assert [node["node"] for node in first.json()["nodes"]] == ["n1"]
    assert first.json()["failures"] == []
    assert nowhere.status_code == 404
    assert nowhere.json()["error"]["message"] == "no cache holds model 'm': 3 nodes were asked"
    assert repeated.json()["nodes"] == first.json()["nodes"]


async def test_silent_and_unknown_nodes_are_named(control: Control, tmp_path: Path) -> None:
    manifest = await a_model(control, tmp_path)
    async with a_node(control, tmp_path, "n1", manifest):
        await a_record(control, "gone")
        listed = await standby(control, "cache", "ls", who="admin")
        one = await standby(control, "cache", "ls", "--node", "gone", who="admin")
        unknown = await standby(control, "cache", "pin", "--model", "m", "--node", "n7", who="admin")

    assert listed.exit_code == 7
    assert manifest.digest[:12] in listed.stdout
    assert "node gone: node 'gone' does not answer (limit 5 s)" in listed.stderr
    assert (one.exit_code, "node 'gone' does not answer" in one.stderr) == (7, True)
    assert (unknown.exit_code, "there is no node 'n7'" in unknown.stderr) == (4, True)
    assert "known are: gone, n1" in unknown.stderr


async def test_wrong_orders_are_refused_before_any_node_hears_of_them(control: Control) -> None:
    cases: list[tuple[dict[str, object], int, str]] = [
        ({"action": "pin"}, 400, "give either 'artifact' or 'model'"),
        ({"action": "pin", "artifact": "abcd", "model": "m"}, 400, "give either 'artifact' or 'model'"),
        ({"action": "pin", "artifact": "abc"}, 400, "artifact: String should match pattern"),
        ({"action": "list", "artifact": "abcd"}, 400, "action: Input should be 'pin', 'unpin' or 'evict'"),
        ({"action": "pin", "artifact": "abcd", "weights": "q4"}, 400, "'weights' are those of a 'model'"),
        ({"action": "pin", "model": "nothing"}, 404, "there is no model 'nothing'"),
        ({"action": "pin", "artifact": "abcd"}, 404, "no cache holds artifact 'abcd': 0 nodes were asked"),
    ]
    for body, status, words in cases:
        answer = await control.call("admin", "POST", "/api/v1/cache/orders", body)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["error"]["message"]
    ran = await standby(control, "cache", "pin", who="admin")
    assert (ran.exit_code, "give either a digest or --model" in ran.stderr) == (2, True)


async def test_nodes_show_each_model_on_disk_and_in_memory(control: Control, tmp_path: Path) -> None:
    manifest = await a_model(control, tmp_path)
    async with a_node(control, tmp_path, "n1", manifest) as cache:
        before = await standby(control, "nodes", who="admin")
        await cache.measure()
        await a_record(control, "n1", cache)
        entries = control.context.copies.nodes.entries
        await until(lambda: entries["n1"].value.artifacts[0].resident_bytes is not None)
        after = await standby(control, "nodes", who="admin")

    assert "not measured yet" in before.stdout
    row = after.stdout.splitlines()[-1]
    assert row.split()[:3] == ["n1", f"{ONE}/m", manifest.digest[:12]]
    assert "(100%)" in row
