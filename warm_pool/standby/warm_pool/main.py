"""``standby node``: wiring of the node agent's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Final

import prometheus_client
import uvloop

from standby.artifacts.fetch import FetchOptions
from standby.artifacts.pace import Pacer
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.mirror import Mirror
from standby.bus.settings import BusSettings
from standby.bus.tables_set import Tables, open_tables
from standby.domain.assignment import Assignment
from standby.domain.errors import ConfigurationError
from standby.domain.events import ComponentNotice
from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.node import Node
from standby.host import tasks as host_tasks
from standby.host.collector import calm_collector
from standby.host.sealing import SealingKey
from standby.runtime.engines.llama_cpp_options import LlamaCppOptions
from standby.runtime.engines.registry import EngineRegistry
from standby.runtime.process_ledger import ProcessLedger
from standby.telemetry import logs, metrics
from standby.warm_pool.agent import Agent
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.boots import first_epoch
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions
from standby.warm_pool.cache_temporary import FileLock
from standby.warm_pool.door import Door
from standby.warm_pool.effects import Effects
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.managed import measure
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.orders import CacheOrders
from standby.warm_pool.run_dir import run_dir
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.stored_keys import StoredKeys

_log = logging.getLogger(__name__)

RESIDENCY_S: Final = 10.0
# After the second signal: the grace of a stop, the wait for SIGKILL, and some.
HURRY_LIMIT_S: Final = 25.0

_OPTION_NAMES: Final = MappingProxyType({EngineKind.LLAMA_CPP: tuple(LlamaCppOptions.model_fields)})


def command() -> None:
    """Run a node agent until SIGTERM or SIGINT; settings come from the environment (STANDBY_…).

    The first signal drains and stops every engine; the second one ends them at once.
    """
    settings = NodeSettings.load()
    logs.configure(f"node {settings.node_name}", level=settings.log_level, style=settings.log_format)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, BusSettings.load()))


async def _run(settings: NodeSettings, bus_settings: BusSettings) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop)
    async with node(settings, bus_settings) as parts:
        calm_collector()
        await stop.wait()
        _log.info("draining")
        await parts.wind_down(hurry)


@dataclass
class NodeParts:
    """A running node."""

    agent: Agent
    announcer: Announcer
    mirror: Mirror[Assignment]
    door: Door
    address: str

    async def wind_down(self, hurry: asyncio.Event) -> None:
        """Take no more orders, drain, stop the engines, say so; ``hurry`` cuts the drain short."""
        await self.mirror.stop()
        leaving = asyncio.create_task(self.agent.wind_down())
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({leaving, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            for managed in list(self.agent.instances.values()):
                self.door.abort(managed.id, "the node was told twice to stop")
            await asyncio.wait({leaving}, timeout=HURRY_LIMIT_S)
        if not leaving.done():
            # An engine that hangs in the kernel ends with nobody's help; its record on disk lets the next agent reap it.
            _log.error("left although these do not end: %s", ", ".join(self.agent.instances))
            leaving.cancel()
        hurrying.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.announcer.flushed(), 5.0)


@asynccontextmanager
async def node(settings: NodeSettings, bus_settings: BusSettings) -> AsyncIterator[NodeParts]:
    """Yield a running node: leftovers reaped, cache opened, door listening, assignments followed.

    Raises ConfigurationError when another agent works in the same state folder.
    """
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _only_agent(settings.state_dir):
        async with _node(settings, bus_settings) as parts:
            yield parts


@contextlib.contextmanager
def _only_agent(state_dir: Path) -> Iterator[None]:
    """Hold the state folder: a second agent there would take the first one's engines for leftovers and end them."""
    lock = FileLock.take(state_dir / "agent.lock", shared=False, wait=False)
    if lock is None:
        raise ConfigurationError(
            f"another node agent works in {state_dir}", remedy="stop it, or set another STANDBY_STATE_DIR and STANDBY_NODE_NAME"
        )
    with contextlib.closing(lock):
        yield


@asynccontextmanager
async def _node(settings: NodeSettings, bus_settings: BusSettings) -> AsyncIterator[NodeParts]:
    processes = ProcessLedger(settings.state_dir / "processes")
    reaped = await processes.reap_orphans()
    bus = await Bus.connect(bus_settings, name=f"node/{settings.node_name}")
    try:
        tables = await open_tables(bus)
        events = await EventLog.open(bus)
        for left in reaped:
            metrics.ORPHANS.labels(settings.node_name).inc()
            await events.publish(_notice(settings, f"reaped engine {left.instance} of an earlier agent: {left.killed}"))
        async with _parts(settings, bus, tables, events, processes) as parts:
            yield parts
        await events.close()
    finally:
        await bus.close()


@asynccontextmanager
async def _parts(
    settings: NodeSettings, bus: Bus, tables: Tables, events: EventLog, processes: ProcessLedger
) -> AsyncIterator[NodeParts]:
    cache = ArtifactCache(settings.state_dir / "cache", settings.cache_bytes, _cache_options(settings))
    await cache.open()
    registry = EngineRegistry.discover(processes)
    announcer = Announcer(tables)
    door = Door(token=settings.node_token.get_secret_value(), on_change=lambda instance: agent.door_changed(instance))  # noqa: PLW0108 - the agent is made after the door
    host, port = await _listen(door, settings)
    agent = Agent(
        node=settings.node_name,
        door=f"{host}:{port}",
        first_epoch=first_epoch(settings.state_dir),
        announcer=announcer,
        events=events,
        adapter_for=lambda assignment: registry.adapter(assignment.model.engine),
        monotonic=time.monotonic,
        wall=time.time,
    )
    sockets = run_dir(settings.state_dir)
    memory = MemoryDesk(Ledger(settings.memory_bytes), agent.instances, lambda: agent.costs, agent.post, time.time)
    agent.effects = Effects(
        post=agent.post,
        forgotten=agent.forgotten,
        progressed=agent.progressed,
        cache=cache,
        door=door,
        memory=memory,
        run_dir=sockets,
        log_dir=settings.state_dir / "engine-logs",
        wall=time.time,
        stop_grace_s=settings.stop_grace_s,
        probe_limit_s=settings.probe_limit_s,
        opener_for=StoredKeys(tables.credentials, _sealing(settings)).opener_for,
    )
    await _forget_earlier_instances(tables, settings.node_name)
    mirror = Mirror(tables.assignments, agent.assignment_changed, prefix=f"{settings.node_name}.")
    beats = Heart(settings, agent, announcer, cache, memory, registry)
    orders = await CacheOrders(settings.node_name, cache).serve(bus)
    works = (agent.run(), agent.run_outbox(), announcer.run(), beats.run(bus), _watch_pages(cache))
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_say_if_it_died)
    if settings.metrics_port is not None:
        prometheus_client.start_http_server(settings.metrics_port, "127.0.0.1", metrics.REGISTRY)
    try:
        beats.beat()
        await mirror.start()
        _log.info("node is ready", extra={"door": agent.door, "engines": [kind.value for kind in registry.available()]})
        yield NodeParts(agent, announcer, mirror, door, agent.door)
    finally:
        await mirror.stop()
        await orders.unsubscribe()
        await door.stop()
        await host_tasks.end(tasks)
        await cache.close()
        if not agent.instances:
            shutil.rmtree(sockets, ignore_errors=True)


@dataclass
class Heart:
    """Says every few seconds what the node is, and what its instances hold."""

    settings: NodeSettings
    agent: Agent
    announcer: Announcer
    cache: ArtifactCache
    memory: MemoryDesk
    registry: EngineRegistry
    beats: int = 0

    def __post_init__(self) -> None:
        self.boot_id = secrets.token_hex(8)
        self.started_at = time.time()

    async def run(self, bus: Bus) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            self.beat()
            metrics.BUS_DISCONNECTED.set(bus.disconnected_for())

    def beat(self) -> None:
        """Measure and announce."""
        self.beats += 1
        for managed in list(self.agent.instances.values()):
            measure(managed)
            self.agent.say(managed)
        record = self._record()
        self.announcer.node(record)
        self._measure(record)

    def _record(self) -> Node:
        return Node(
            name=self.settings.node_name,
            boot_id=self.boot_id,
            door=self.agent.door,
            engines=self.registry.available(),
            engine_options={kind: names for kind, names in _OPTION_NAMES.items() if kind in self.registry.available()},
            memory=self.memory.snapshot(),
            cache_bytes=self.cache.used_bytes,
            cache_capacity=self.cache.capacity_bytes,
            artifacts=self.cache.contents(),
            costs=self.agent.costs.table,
            heartbeat=self.beats,
            started_at=self.started_at,
            version=version("standby"),
        )

    def _measure(self, record: Node) -> None:
        name = self.settings.node_name
        states = [managed.life.state for managed in self.agent.instances.values()]
        for state in InstanceState:
            metrics.INSTANCES.labels(name, state.value).set(states.count(state))
        metrics.RESIDENT_BYTES.labels(name).set(record.memory.resident)
        metrics.RESERVED_BYTES.labels(name).set(record.memory.reserved)
        metrics.CACHE_BYTES.labels(name).set(record.cache_bytes)


def _sealing(settings: NodeSettings) -> SealingKey | None:
    """Return the key that opens the tenants' stored credentials, if this node has one. Raises ConfigurationError."""
    return None if settings.secrets_key is None else SealingKey.parse(settings.secrets_key.get_secret_value())


def _cache_options(settings: NodeSettings) -> CacheOptions:
    return CacheOptions(
        fetch=FetchOptions(pacer=Pacer(settings.fetch_bytes_per_s)),
        warm_pacer=Pacer(settings.warm_bytes_per_s),
        warm_reserve_bytes=settings.warm_reserve_bytes,
    )


def _say_if_it_died(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.critical("part %s of the node has ended, restart the node", task.get_coro(), exc_info=error)


async def _watch_pages(cache: ArtifactCache) -> None:
    """Measure every few seconds what of the cache is in memory, until cancelled."""
    while True:
        try:
            await cache.measure()
        except OSError as error:
            _log.warning("the page cache cannot be measured: %s", error)
        await asyncio.sleep(RESIDENCY_S)


async def _listen(door: Door, settings: NodeSettings) -> tuple[str, int]:
    try:
        return await door.start(settings.door_host, settings.door_port)
    except OSError as error:
        raise ConfigurationError(
            f"the door cannot listen on {settings.door_host}:{settings.door_port}: {os.strerror(error.errno or 0)}",
            remedy="set STANDBY_DOOR_PORT to a free port, or to 0 for any",
        ) from error


async def _forget_earlier_instances(tables: Tables, node_name: str) -> None:
    """Remove what an earlier agent said of its instances: their engines were reaped, so none of it is true any more."""
    for where in await tables.instances.list(prefix=f"{node_name}."):
        await tables.instances.delete(where)


def _notice(settings: NodeSettings, message: str) -> ComponentNotice:
    return ComponentNotice(
        id=secrets.token_hex(8), at=time.time(), source=f"node/{settings.node_name}", level="warning", message=message
    )
