"""An operator's pins and evictions: they last, they never hurt who uses an artifact, they are done once."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from standby.artifacts.fetch import fetch
from standby.artifacts.sources import open_source
from standby.domain.cache_orders import CacheAction, CacheAnswer, CacheOrder
from standby.domain.errors import Conflict, DiskFull, InvalidInput, NotFound
from standby.domain.model import Manifest, ModelFormat, SourceOptions
from standby.domain.node import CachedArtifact
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_disk import OperatorPin
from standby.warm_pool.cache_options import CacheOptions
from standby.warm_pool.orders import CacheOrders, resolve

SIZE = 1000


def ignore(_done: int, _total: int) -> None:
    pass


async def manifest(folder: Path, name: str) -> Manifest:
    (folder / name).mkdir(parents=True)
    (folder / name / "model.gguf").write_bytes(name.encode() * (SIZE // len(name)))
    uri = f"file://{folder}/{name}"
    objects = tuple(await open_source(uri, SourceOptions()).list())
    return Manifest(source_uri=uri, format=ModelFormat.GGUF, objects=objects)


async def opened(root: Path, capacity: int = 10 * SIZE) -> ArtifactCache:
    ticks = itertools.count(1_000_000_000)
    cache = ArtifactCache(root / "cache", capacity, CacheOptions(fetcher=fetch, now=lambda: float(next(ticks))))
    await cache.open()
    return cache


async def test_operator_pin_survives_a_restart_and_holds_against_eviction(tmp_path: Path) -> None:
    first, second, third = [await manifest(tmp_path, name) for name in "abc"]
    cache = await opened(tmp_path, 2 * SIZE)
    await cache.ensure(first, ignore)
    assert await cache.keep(first.digest, "ops@example")
    assert not await cache.keep(first.digest, "somebody else")
    again = await opened(tmp_path, 2 * SIZE)
    assert [(item.pinned, item.pinned_by, item.used_by) for item in again.contents()] == [(True, "ops@example", ())]
    await again.ensure(second, ignore)
    await again.ensure(third, ignore)
    assert {item.digest for item in again.contents()} == {first.digest, third.digest}
    assert await again.let_go(first.digest)
    assert not await again.let_go(first.digest)
    await again.ensure(second, ignore)
    assert (await opened(tmp_path, 2 * SIZE)).locate(first.digest) is None


async def test_pin_of_another_process_holds(tmp_path: Path) -> None:
    """The pin lies on the disk: a cache that read its index before does not evict the artifact either."""
    wanted = await manifest(tmp_path, "a")
    mine, theirs = await opened(tmp_path, SIZE), await opened(tmp_path, SIZE)
    await mine.ensure(wanted, ignore)
    await theirs.ensure(wanted, ignore)
    await mine.keep(wanted.digest, "ops")
    with pytest.raises(DiskFull):
        await theirs.ensure(await manifest(tmp_path, "b"), ignore)
    with pytest.raises(Conflict, match="is pinned by ops; unpin it first"):
        await theirs.evict(wanted.digest)
    assert mine.locate(wanted.digest) is not None


async def test_pinning_does_not_change_the_order_of_use(tmp_path: Path) -> None:
    first, second = await manifest(tmp_path, "a"), await manifest(tmp_path, "b")
    cache = await opened(tmp_path)
    for wanted in (first, second):
        await cache.ensure(wanted, ignore)
    await cache.keep(first.digest, "ops")
    await cache.let_go(first.digest)
    again = await opened(tmp_path, 2 * SIZE)
    used = {item.digest: item.last_used_at or 0.0 for item in again.contents()}
    assert used[first.digest] < used[second.digest]


async def test_damaged_pin_still_pins(tmp_path: Path) -> None:
    wanted = await manifest(tmp_path, "a")
    cache = await opened(tmp_path)
    folder = (await cache.ensure(wanted, ignore)).parent
    (folder / "pin.json").write_bytes(b"{")
    again = await opened(tmp_path)
    assert again.describe(wanted.digest).pinned_by == "unreadable pin.json"


async def test_eviction_on_order_says_who_uses_the_artifact(tmp_path: Path) -> None:
    wanted = await manifest(tmp_path, "a")
    cache = await opened(tmp_path)
    folder = await cache.ensure(wanted, ignore)
    cache.pin(wanted.digest, "chat-1")
    cache.pin(wanted.digest, "chat-0")
    with pytest.raises(Conflict, match="in use by chat-0, chat-1; stop or delete the endpoints"):
        await cache.evict(wanted.digest)
    assert folder.is_dir()
    cache.unpin(wanted.digest, "chat-1")
    cache.unpin(wanted.digest, "chat-0")
    assert await cache.evict(wanted.digest) == SIZE
    assert (cache.contents(), folder.exists()) == ((), False)
    with pytest.raises(NotFound):
        await cache.evict(wanted.digest)


async def test_eviction_on_order_respects_other_processes(tmp_path: Path) -> None:
    wanted = await manifest(tmp_path, "a")
    mine, theirs = await opened(tmp_path), await opened(tmp_path)
    await mine.ensure(wanted, ignore)
    await theirs.ensure(wanted, ignore)
    theirs.pin(wanted.digest, "x")
    with pytest.raises(Conflict, match="another process"):
        await mine.evict(wanted.digest)
    assert mine.locate(wanted.digest) is not None


async def ask(orders: CacheOrders, action: CacheAction, artifact: str = "", intent: str = "") -> CacheAnswer:
    order = CacheOrder(intent=intent or f"{action} {artifact}", action=action, artifact=artifact, by="ops")
    return CacheAnswer.model_validate_json(await orders.answer("command.n1", order.encode()))


async def test_orders(tmp_path: Path) -> None:
    wanted = await manifest(tmp_path, "a")
    cache = await opened(tmp_path)
    await cache.ensure(wanted, ignore)
    orders = CacheOrders("n1", cache)
    prefix = wanted.digest[:8]
    listed = await ask(orders, CacheAction.LIST)
    assert (listed.node, listed.used_bytes, listed.capacity_bytes) == ("n1", SIZE, 10 * SIZE)
    assert [item.digest for item in listed.artifacts] == [wanted.digest]
    assert listed.artifacts[0].resident_bytes == SIZE
    pinned = await ask(orders, CacheAction.PIN, prefix)
    assert (pinned.changed, pinned.artifacts[0].pinned_by) == (True, "ops")
    assert not (await ask(orders, CacheAction.PIN, prefix, "another wish")).changed
    with pytest.raises(Conflict, match="pinned by ops"):
        await ask(orders, CacheAction.EVICT, prefix)
    assert (await ask(orders, CacheAction.UNPIN, prefix)).artifacts[0].pinned_by == ""
    gone = await ask(orders, CacheAction.EVICT, prefix)
    assert (gone.changed, gone.freed_bytes, gone.used_bytes) == (True, SIZE, 0)
    assert cache.contents() == ()


async def test_an_order_that_comes_again_is_answered_and_not_done_again(tmp_path: Path) -> None:
    """A client that lost the answer asks again; what came into the cache meanwhile stays."""
    wanted = await manifest(tmp_path, "a")
    cache = await opened(tmp_path)
    await cache.ensure(wanted, ignore)
    orders = CacheOrders("n1", cache)
    first, second = await asyncio.gather(*(ask(orders, CacheAction.EVICT, wanted.digest, "w1") for _ in range(2)))
    assert first == second
    await cache.ensure(wanted, ignore)
    assert await ask(orders, CacheAction.EVICT, wanted.digest, "w1") == first
    assert cache.locate(wanted.digest) is not None


async def test_no_order(tmp_path: Path) -> None:
    orders = CacheOrders("n1", await opened(tmp_path))
    for payload in (b"", b"{}", b'{"intent":"a","action":"burn"}', b'{"intent":"a","action":"pin","artifact":"../../x"}'):
        with pytest.raises(InvalidInput, match="no order for a cache"):
            await orders.answer("command.n1", payload)


def test_prefixes() -> None:
    digests = ("abcd1" + "0" * 59, "abcd2" + "0" * 59, "ffff" + "0" * 60)
    artifacts = tuple(CachedArtifact(digest=digest, bytes=1, pinned=False) for digest in digests)
    assert resolve("abcd2", artifacts) == digests[1]
    assert resolve(digests[2], artifacts) == digests[2]
    with pytest.raises(InvalidInput, match="means 2 artifacts"):
        resolve("abcd", artifacts)
    with pytest.raises(InvalidInput, match="too short"):
        resolve("fff", artifacts)
    with pytest.raises(NotFound):
        resolve("eeee", artifacts)


def test_pin_record() -> None:
    assert OperatorPin.model_validate_json(OperatorPin(by="ops", at=1.5).model_dump_json()) == OperatorPin(by="ops", at=1.5)
