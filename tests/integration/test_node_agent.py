"""The node agent with a real bus and the real engine: up and down the ladder by assignments alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import psutil
import pytest

from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.mirror import Mirror
from standby.bus.settings import BusSettings
from standby.bus.tables_set import Tables, open_tables
from standby.domain.assignment import Assignment
from standby.domain.errors import ConfigurationError
from standby.domain.instance import Instance, InstanceState, Phase, Rung
from standby.domain.model import EngineKind, Model, SourceOptions
from standby.warm_pool.main import node
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.wiring import NodeParts
from support.builders import an_assignment
from support.nats_server import NatsServer, nats_server
from support.real_model import real_model_path

pytestmark = pytest.mark.real_engine

TOKEN = "node-token-for-tests"


class Rig:
    """A node, and the tables as a controller and a gateway see them."""

    def __init__(self, parts: NodeParts, tables: Tables, model: Model) -> None:
        self.parts = parts
        self.tables = tables
        self.model = model
        self.seen: list[Instance] = []
        self._changed = asyncio.Event()
        self.instances = Mirror(tables.instances, lambda _key, _before, after: self._note(after.value if after else None))
        self._orders = 0

    def _note(self, record: Instance | None) -> None:
        if record is not None:
            self.seen.append(record)
        self._changed.set()

    async def order(self, rung: Rung, **changes: object) -> None:
        """Write what a controller would write."""
        self._orders += 1
        wanted = an_assignment(model=self.model, rung=rung, intent=f"order-{self._orders}", **changes)
        await self.tables.assignments.put("n1.i1", wanted)

    async def until(self, holds: Callable[[Instance], bool], limit: float = 60.0) -> Instance:
        """Return the instance's record as soon as ``holds`` is true of it."""
        async with asyncio.timeout(limit):
            while True:
                entry = self.instances.entries.get("n1.i1")
                if entry is not None and holds(entry.value):
                    return entry.value
                self._changed.clear()
                await self._changed.wait()

    async def ask(self, record: Instance, question: str = "Name the capital of France.") -> httpx.Response:
        """Send a request to the door as a gateway does."""
        headers = {"x-standby-token": TOKEN, "x-standby-instance": record.id, "x-standby-epoch": str(record.epoch)}
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0}
        async with httpx.AsyncClient(timeout=60) as client:
            return await client.post(f"http://{record.door}/v1/chat/completions", headers=headers, json=body)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with nats_server(tmp_path / "nats") as server, make_rig(server, tmp_path) as made:
        yield made


def make_rig(server: NatsServer, folder: Path):  # type: ignore[no-untyped-def]
    """Return an async context manager of a node on ``server``."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def made() -> AsyncIterator[Rig]:
        settings = NodeSettings.load(node_name="n1", node_token=TOKEN, state_dir=folder / "node", heartbeat_s=0.2)
        manifest = await inspect(f"file://{real_model_path()}", SourceOptions())
        model = Model(tenant="000000000000", name="smol", manifest=manifest, engine=EngineKind.LLAMA_CPP, created_at=1.0)
        bus = await Bus.connect(server.settings(), name="test")
        async with node(settings, server.settings(nats_relist_interval=3600.0)) as parts:
            rig = Rig(parts, await open_tables(bus), model)
            await rig.instances.start()
            yield rig
            await rig.instances.stop()
            await parts.wind_down(asyncio.Event())
        await bus.close()

    return made()


def state(wanted: InstanceState) -> Callable[[Instance], bool]:
    return lambda record: record.state is wanted


async def test_up_and_down_the_ladder(rig: Rig) -> None:
    """Cold → ready → asleep → ready → staged → gone, with the same greedy answer and memory given back on each rung."""
    await rig.order(Rung.READY)
    ready = await rig.until(state(InstanceState.READY))
    assert ready.activation is not None
    assert ready.activation.from_rung is Rung.COLD
    assert set(ready.activation.phases_ms) == {Phase.FETCHED, Phase.FORKED, Phase.LOADED, Phase.PROBED}
    answer = await rig.ask(ready)
    assert answer.json()["choices"][0]["message"]["content"] == "The capital of France is Paris."
    awake = await rig.until(lambda record: record.resident_bytes > 0)

    await rig.order(Rung.ASLEEP)
    asleep = await rig.until(state(InstanceState.ASLEEP))
    assert asleep.resident_bytes < awake.resident_bytes - 0.8 * rig.model.manifest.total_bytes
    refused = await rig.ask(asleep)
    assert (refused.status_code, refused.headers["x-standby-refused"]) == (503, "draining")

    await rig.order(Rung.READY)
    again = await rig.until(state(InstanceState.READY))
    assert again.activation is not None
    assert (again.activation.from_rung, again.epoch) == (Rung.ASLEEP, ready.epoch + 1)
    assert (await rig.ask(again)).json()["choices"][0]["message"]["content"] == "The capital of France is Paris."

    await rig.order(Rung.STAGED)
    staged = await rig.until(state(InstanceState.STAGED))
    assert (staged.resident_bytes, rig.parts.agent.effects.memory.ledger.reserved) == (0, 0)

    await rig.tables.assignments.delete("n1.i1")
    async with asyncio.timeout(60):
        while "n1.i1" in rig.instances.entries:
            await asyncio.sleep(0.01)
    assert rig.parts.agent.instances == {}


async def test_the_record_says_which_engines_run_here_and_why_the_others_do_not(rig: Rig) -> None:
    async with asyncio.timeout(60):
        while (entry := (await rig.tables.nodes.list()).get("n1")) is None:
            await asyncio.sleep(0.01)
    record = entry.value
    assert EngineKind.LLAMA_CPP in record.engines
    assert set(record.engine_versions) == set(record.engines)
    assert {*record.engines, *record.absent_engines} >= {EngineKind.LLAMA_CPP, EngineKind.VLLM, EngineKind.TENSORRT_LLM}
    assert not set(record.engines) & set(record.absent_engines)
    assert all(absence.reason and absence.remedy for absence in record.absent_engines.values())


async def test_a_repeated_and_an_outdated_order_change_nothing(rig: Rig) -> None:
    await rig.order(Rung.STAGED, leader_epoch=5)
    await rig.until(state(InstanceState.STAGED))
    await rig.order(Rung.READY, leader_epoch=4)
    marker = an_assignment(instance="i2", model=rig.model, rung=Rung.STAGED, intent="marker", leader_epoch=5)
    await rig.tables.assignments.put("n1.i2", marker)
    async with asyncio.timeout(60):
        while (entry := rig.instances.entries.get("n1.i2")) is None or entry.value.state is not InstanceState.STAGED:
            await asyncio.sleep(0.01)
    assert rig.instances.entries["n1.i1"].value.state is InstanceState.STAGED


async def test_wind_down_leaves_no_engine(rig: Rig) -> None:
    await rig.order(Rung.READY)
    await rig.until(state(InstanceState.READY))
    handle = rig.parts.agent.instances["i1"].handle
    assert handle is not None
    await rig.parts.wind_down(asyncio.Event())
    assert not psutil.pid_exists(handle.pid)
    assert "n1.i1" not in await rig.tables.instances.list()


async def test_truncated_artifact_is_a_failure_with_words(rig: Rig, tmp_path: Path) -> None:
    """What cannot be fetched is said, is tried again later, and never becomes ready."""
    copy = tmp_path / "model.gguf"
    copy.write_bytes(real_model_path().read_bytes())
    manifest = await inspect(f"file://{copy}", SourceOptions())
    copy.write_bytes(copy.read_bytes()[:1000])
    rig.model = rig.model.model_copy(update={"manifest": manifest})
    await rig.order(Rung.READY)
    failed = await rig.until(state(InstanceState.FAILED))
    assert failed.failure is not None
    assert "register again" in failed.failure.reason
    assert failed.failure.next_retry_at is not None
    assert failed.failure.attempts >= 1


def test_assignment_survives_storage() -> None:
    wanted = an_assignment()
    assert Assignment.model_validate_json(wanted.encode()) == wanted


async def test_a_second_agent_in_the_same_folder_is_refused_and_the_first_keeps_its_engine(rig: Rig, tmp_path: Path) -> None:
    """It would take the running engines for leftovers of an earlier agent and end them."""
    await rig.order(Rung.READY)
    ready = await rig.until(state(InstanceState.READY))
    settings = NodeSettings.load(node_name="n2", node_token=TOKEN, state_dir=tmp_path / "node")
    with pytest.raises(ConfigurationError, match="another node agent works in"):
        async with node(settings, BusSettings()):
            pass
    assert (await rig.ask(ready)).status_code == 200
