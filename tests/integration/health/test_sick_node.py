"""A whole node whose engine hangs, stalls, refuses for ever, or is ordered to sleep while it works. Limits are short here.

What each limit means is tested in ``test_sick_engines``; here: the engine is ended with everything of it, the next one serves.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.mirror import Mirror
from standby.bus.tables import Entry
from standby.bus.tables_set import Tables, open_tables
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.model import EngineKind, Model, SourceOptions
from standby.gateway.api.responses import json_response
from standby.gateway.api.views import instance_view, node_view
from standby.host import tasks
from standby.warm_pool import health_watch, wiring
from standby.warm_pool.health import HealthLimits
from standby.warm_pool.main import node
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.wiring import NodeParts
from support.builders import an_assignment
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, Option, short_dir
from support.gguf_builder import gguf
from support.nats_server import nats_server
from support.reality import MIB, Reality, assert_clean
from support.waiting import until

TOKEN = "node-token-for-tests"
SIZE_MB = 128
QUICK = HealthLimits(stall_s=2.0, crunch_s=3.0, probe_s=1.5, unavailable_s=0.5, idle_every_s=0.5, ask_s=1.0)


class Rig:
    """A node with one instance, told what a controller would tell it."""

    def __init__(self, parts: NodeParts, tables: Tables, folder: Path) -> None:
        self.parts, self.tables, self.folder = parts, tables, folder
        self.reality = Reality(folder / "node", folder, self._read)
        self._orders = 0
        # A state may be over before one looks: what was said is kept.
        self.said: list[Instance] = []
        self.mirror = Mirror(tables.instances, lambda _key, _before, after: self._note(after))

    def _note(self, entry: Entry[Instance] | None) -> None:
        if entry is not None:
            self.said.append(entry.value)

    async def order(self, rung: Rung, model: Model) -> None:
        """Write the assignment."""
        self._orders += 1
        self.said.clear()
        wanted = an_assignment(model=model, rung=rung, intent=f"order-{self._orders}", slots=4, memory_mb=SIZE_MB)
        self.reality.promised[wanted.endpoint] = SIZE_MB * MIB
        await self.tables.assignments.put("n1.i1", wanted)

    async def until_state(self, state: InstanceState, *, after: int = 0) -> Instance:
        """Return the instance's record once it was in ``state`` since the last order, in an epoch later than ``after``."""

        def found() -> list[Instance]:
            return [record for record in self.said if record.state is state and record.epoch > after]

        await until(found, f"it is {state.value}", 60)
        return found()[0]

    async def ask(self, record: Instance, **more: Any) -> httpx.Response:
        """Send a request to the door as a gateway does."""
        headers = {"x-standby-token": TOKEN, "x-standby-instance": record.id, "x-standby-epoch": str(record.epoch)}
        async with httpx.AsyncClient(timeout=90, trust_env=False) as client:
            return await client.post(f"http://{record.door}/v1/completions", headers=headers, json={"prompt": "x", **more})

    def tree(self) -> list[psutil.Process]:
        return self.reality.tree("i1")

    async def _read(self, path: str) -> dict[str, Any]:
        """The control API's views of what the node says."""
        instances = [entry.value for entry in (await self.tables.instances.list()).values()]
        nodes = [entry.value for entry in (await self.tables.nodes.list()).values()]
        if path == "/instances":
            found: Any = {"instances": [instance_view(one, 0.0) for one in instances]}
        else:
            found = {"nodes": [node_view(one, instances, {}, 0.0) for one in nodes]}
        plain: dict[str, Any] = json.loads(bytes(json_response(found).body))
        return plain


@pytest.fixture
def limits() -> HealthLimits:
    """How soon an engine is taken for sick."""
    return QUICK


@pytest.fixture
async def rig(limits: HealthLimits, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(wiring, "HealthLimits", lambda **_: limits)
    monkeypatch.setattr(health_watch, "PERIOD_S", 0.1)
    monkeypatch.setenv("STANDBY_FAKE_ENGINE", str(FAKE_ENGINE_PROGRAM))
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(short_dir())
        server = await stack.enter_async_context(nats_server(folder / "nats"))
        settings = NodeSettings.load(
            node_name="n1", node_token=TOKEN, state_dir=folder / "node", heartbeat_s=0.2, stop_grace_s=0.5
        )
        bus = await Bus.connect(server.settings(), name="test")
        stack.push_async_callback(bus.close)
        parts = await stack.enter_async_context(node(settings, server.settings(nats_relist_interval=3600.0)))
        made = Rig(parts, await open_tables(bus), folder)
        await made.mirror.start()
        stack.push_async_callback(made.mirror.stop)
        yield made
        await parts.wind_down(asyncio.Event())
        assert made.reality.all_processes() == []


async def model_with(folder: Path, **knobs: Option) -> Model:
    """A model whose engine has these knobs."""
    path = folder / "model.gguf"
    path.write_bytes(gguf(seed=1))
    manifest = await inspect(path.as_uri(), SourceOptions())
    return Model(
        tenant="000000000000", name="m", manifest=manifest, engine=EngineKind.FAKE, engine_options=knobs, created_at=1.0
    )


def hang(processes: list[psutil.Process]) -> None:
    os.killpg(processes[0].pid, signal.SIGSTOP)


def nothing(_processes: list[psutil.Process]) -> None:
    """It falls ill by itself."""


@pytest.mark.parametrize(
    ("name", "knobs", "harm", "busy", "codes"),
    [
        ("stopped while busy", {"spawn_child": True, "tokens": 10**6, "token_delay_ms": 20}, hang, True, {"engine_stalled"}),
        ("stopped while idle", {"spawn_child": True}, hang, False, {"engine_mute"}),
        (
            "health 200, no token",
            {"stall_after_s": 8.0, "tokens": 10**6, "token_delay_ms": 20},
            nothing,
            True,
            {"engine_stalled"},
        ),
        ("503 for ever", {"unavailable_after_s": 8.0}, nothing, False, {"engine_unavailable", "engine_mute", "engine_stalled"}),
    ],
)
async def test_a_sick_engine_is_replaced(
    rig: Rig, name: str, knobs: dict[str, Option], harm: Callable[[list[psutil.Process]], None], busy: bool, codes: set[str]
) -> None:
    """It is ended with everything of it, also where SIGSTOP holds it, and the next one serves (field cases B31, B32)."""
    model = await model_with(rig.folder, **knobs)
    await rig.order(Rung.READY, model)
    first = await rig.until_state(InstanceState.READY)
    tree = rig.tree()
    asking = asyncio.create_task(rig.ask(first, max_tokens=10**6)) if busy else None
    if busy:
        await until(lambda: rig.parts.door.load("i1").in_flight == 1)
    harm(tree)
    failed = await rig.until_state(InstanceState.FAILED)
    assert failed.failure is not None, name
    assert failed.failure.code in codes, failed.failure
    second = await rig.until_state(InstanceState.READY, after=first.epoch)
    await assert_clean(rig.reality, gone=tree)
    assert (await rig.ask(second, max_tokens=2)).status_code == 200
    if asking is not None:
        assert (await asking).status_code == 502


@pytest.mark.parametrize("limits", [HealthLimits()])
async def test_an_engine_is_not_put_to_sleep_while_it_works(rig: Rig) -> None:
    """Four streams are in flight when sleep is ordered: all end as they would have, nothing new is let in, then it sleeps."""
    model = await model_with(rig.folder, tokens=300, token_delay_ms=25)
    await rig.order(Rung.READY, model)
    ready = await rig.until_state(InstanceState.READY)
    streams = [asyncio.create_task(rig.ask(ready, max_tokens=300, stream=True)) for _ in range(4)]
    try:
        await until(lambda: rig.parts.door.load("i1").in_flight == 4)
        await rig.order(Rung.ASLEEP, model)
        await rig.until_state(InstanceState.DRAINING)
        refused = await rig.ask(ready, max_tokens=1)
        assert (refused.status_code, refused.headers["x-standby-refused"]) == (503, "draining")
        assert not any(process.status() == psutil.STATUS_STOPPED for process in rig.tree())
        answers = await asyncio.gather(*streams)
        assert all(answer.text.rstrip().endswith("data: [DONE]") for answer in answers)
        await rig.until_state(InstanceState.ASLEEP)
        await assert_clean(rig.reality)
    finally:
        await tasks.end(streams)
