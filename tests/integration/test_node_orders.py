"""Orders to a real node over a real bus, as a gateway sends them, and what the node then says of its cache."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standby.artifacts.sources import open_source
from standby.bus.connection import Bus
from standby.bus.mirror import Mirror
from standby.bus.subjects import command_subject
from standby.bus.tables_set import open_tables
from standby.domain.cache_orders import CacheAction, CacheAnswer, CacheOrder
from standby.domain.errors import Conflict, NotFound, Unavailable
from standby.domain.model import Manifest, ModelFormat, SourceOptions
from standby.domain.node import CachedArtifact
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.main import node
from standby.warm_pool.settings import NodeSettings
from support.nats_server import nats_server

CONTENT = b"weights" * 10_000


class Rig:
    """A node's cache, and the bus as a gateway sees it."""

    def __init__(self, bus: Bus, cache: ArtifactCache) -> None:
        self.bus = bus
        self.cache = cache

    async def order(self, action: CacheAction, artifact: str = "", intent: str = "") -> CacheAnswer:
        order = CacheOrder(intent=intent or f"{action.value}-{artifact}", action=action, artifact=artifact, by="ops")
        return CacheAnswer.model_validate_json(await self.bus.request(command_subject("n1"), order.encode(), 60))

    async def said(self) -> CachedArtifact:
        """Return what the node's own record says of its only artifact, once it says that it is pinned, and what is in memory.

        A record that was on its way when the order came does not say it yet.
        """
        found: asyncio.Future[CachedArtifact] = asyncio.get_running_loop().create_future()

        def look() -> None:
            for entry in mirror.entries.values():
                for item in entry.value.artifacts:
                    if item.pinned and item.resident_bytes is not None and not found.done():
                        found.set_result(item)

        mirror = Mirror((await open_tables(self.bus)).nodes, lambda *_change: look())
        await mirror.start()
        look()
        try:
            return await asyncio.wait_for(found, 60)
        finally:
            await mirror.stop()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    settings = NodeSettings.load(node_name="n1", node_token="t", state_dir=tmp_path / "node", heartbeat_s=0.1)
    async with (
        nats_server(tmp_path / "nats") as server,
        server.bus() as bus,
        node(settings, server.settings(nats_relist_interval=3600.0)) as parts,
    ):
        yield Rig(bus, parts.agent.effects.cache)


async def cached(rig: Rig, folder: Path) -> str:
    folder.mkdir()
    (folder / "model.gguf").write_bytes(CONTENT)
    uri = f"file://{folder}"
    objects = tuple(await open_source(uri, SourceOptions()).list())
    manifest = Manifest(source_uri=uri, format=ModelFormat.GGUF, objects=objects)
    await rig.cache.ensure(manifest, lambda _done, _total: None)
    return manifest.digest


async def test_list_pin_evict(rig: Rig, tmp_path: Path) -> None:
    assert (await rig.order(CacheAction.LIST)).artifacts == ()
    digest = await cached(rig, tmp_path / "m")
    (listed,) = (await rig.order(CacheAction.LIST, intent="again")).artifacts
    assert (listed.digest, listed.bytes, listed.resident_bytes) == (digest, len(CONTENT), len(CONTENT))
    assert (await rig.order(CacheAction.PIN, digest[:6])).changed
    said = await rig.said()
    assert (said.pinned, said.pinned_by, said.files, said.resident_bytes) == (True, "ops", 1, len(CONTENT))
    with pytest.raises(Conflict, match="pinned by ops; unpin it first"):
        await rig.order(CacheAction.EVICT, digest)
    await rig.order(CacheAction.UNPIN, digest)
    rig.cache.pin(digest, "chat-0")
    with pytest.raises(Conflict, match="in use by chat-0"):
        await rig.order(CacheAction.EVICT, digest)
    rig.cache.unpin(digest, "chat-0")
    assert (await rig.order(CacheAction.EVICT, digest)).freed_bytes == len(CONTENT)
    with pytest.raises(NotFound):
        await rig.order(CacheAction.EVICT, digest, "another wish")


async def test_a_node_that_is_not_there(rig: Rig) -> None:
    order = CacheOrder(intent="a", action=CacheAction.LIST)
    with pytest.raises(Unavailable, match=r"nobody answers on command.n2"):
        await rig.bus.request(command_subject("n2"), order.encode(), 60)
