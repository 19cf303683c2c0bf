"""A node fetches with the tenant's stored keys: looked up when they are needed, and said in words when they are not there."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standby.artifacts.credentials import Credentials
from standby.artifacts.inspection import inspect
from standby.artifacts.stored_keys import seal_keys
from standby.bus.mirror import Mirror
from standby.bus.tables_set import Tables, open_tables
from standby.domain.instance import Instance, InstanceState, Rung
from standby.host.sealing import SealingKey
from standby.warm_pool.main import node
from standby.warm_pool.settings import NodeSettings
from support.builders import TENANT, a_model, an_assignment
from support.gguf_builder import gguf
from support.nats_server import nats_server
from support.s3_server import S3Server, s3_server

KEY = bytes(range(32))
SEALING = SealingKey(KEY)
OTHER = SealingKey(bytes(32))


class Rig:
    """A node whose own environment has no keys for the store."""

    def __init__(self, tables: Tables, s3: S3Server) -> None:
        self.tables = tables
        self.s3 = s3
        self.keys = Credentials(s3.access_key, s3.secret_key)
        self._changed = asyncio.Event()
        self.instances = Mirror(tables.instances, lambda _key, _before, _after: self._changed.set())

    async def store(self, sealing: SealingKey, name: str = "mine") -> None:
        record = seal_keys(self.keys, TENANT, "mine", sealing, 1.0)
        await self.tables.credentials.put(f"{TENANT}.{name}", record.model_copy(update={"name": name}))

    async def order(self, credentials: str = "mine") -> None:
        """Want the model on the node's disk, registered with stored keys."""
        options = self.s3.options.model_copy(update={"credentials": credentials})
        manifest = await inspect("s3://private/m/", options, credentials=self.keys)
        wanted = an_assignment(model=a_model(manifest=manifest, engine="llama_cpp"), rung=Rung.STAGED)
        await self.tables.assignments.put("n1.i1", wanted)

    async def until(self, holds: Callable[[Instance], bool]) -> Instance:
        async with asyncio.timeout(60):
            while True:
                entry = self.instances.entries.get("n1.i1")
                if entry is not None and holds(entry.value):
                    return entry.value
                self._changed.clear()
                await self._changed.wait()

    async def failure(self, words: str) -> None:
        """Wait until the instance has failed with these words."""
        failed = await self.until(lambda record: record.failure is not None and words in record.failure.reason)
        assert failed.failure is not None
        assert failed.failure.code == "source_unreachable"
        assert failed.failure.next_retry_at is not None


@asynccontextmanager
async def rig(folder: Path, secrets_key: str | None) -> AsyncIterator[Rig]:
    async with nats_server(folder / "nats") as server, s3_server(folder, "private") as s3, server.bus() as bus:
        await s3.upload("private", "m/model.gguf", gguf())
        settings = NodeSettings.load(
            node_name="n1", node_token="t", state_dir=folder / "node", heartbeat_s=0.2, secrets_key=secrets_key
        )
        async with node(settings, server.settings(nats_relist_interval=3600.0)) as parts:
            made = Rig(await open_tables(bus), s3)
            await made.instances.start()
            yield made
            await made.instances.stop()
            await parts.wind_down(asyncio.Event())


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "STANDBY_"))]:
        monkeypatch.delenv(name)


async def test_it_fetches_with_stored_keys_as_soon_as_they_open(tmp_path: Path) -> None:
    """Missing, sealed with another key, moved from another name, and at last good: each is said, each is tried again."""
    async with rig(tmp_path, base64.urlsafe_b64encode(KEY).decode()) as there:
        await there.order()
        await there.failure("the stored credentials 'mine' do not exist any more")
        await there.store(OTHER)
        await there.failure(f"sealed with key {OTHER.version}, and this process has key {SEALING.version}")
        await there.store(SEALING)
        staged = await there.until(lambda record: record.state is InstanceState.STAGED)

    assert staged.failure is None


async def test_a_record_moved_to_another_name_does_not_open(tmp_path: Path) -> None:
    async with rig(tmp_path, base64.urlsafe_b64encode(KEY).decode()) as there:
        await there.store(SEALING, name="theirs")
        await there.order("theirs")
        await there.failure("changed or moved")


async def test_a_node_without_the_sealing_key_says_so(tmp_path: Path) -> None:
    async with rig(tmp_path, None) as there:
        await there.store(SEALING)
        await there.order()
        await there.failure("this process has no STANDBY_SECRETS_KEY")
