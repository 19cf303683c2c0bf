"""The parts of a node agent, made and tied together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Final

from standby.artifacts import volume
from standby.artifacts.fetch import FetchOptions
from standby.artifacts.pace import Pacer
from standby.bus import figures as bus_figures
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.mirror import Mirror
from standby.bus.tables_set import Tables
from standby.domain.assignment import Assignment
from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.domain.node import DeviceKind
from standby.host import tasks as host_tasks
from standby.host.sealing import SealingKey
from standby.host.sealing_source import load_sealing_key
from standby.runtime.cpu_facts import cpu_facts
from standby.runtime.devices.cores import CoreBook
from standby.runtime.devices.inventory import Devices
from standby.runtime.devices.nvml import Nvml
from standby.runtime.engines.registry import EngineRegistry
from standby.runtime.engines.vllm import Vllm
from standby.runtime.fingerprint import DeviceFacts
from standby.runtime.isolation import Isolation
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.host import Zygote
from standby.telemetry import metrics
from standby.telemetry.exposition import exposed
from standby.warm_pool.agent import Agent
from standby.warm_pool.announcer import Announcer
from standby.warm_pool.answering import Answering, log_folder
from standby.warm_pool.berths import Berths
from standby.warm_pool.boots import first_epoch
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.cache_options import CacheOptions
from standby.warm_pool.canaries import Canaries
from standby.warm_pool.door import Door
from standby.warm_pool.duty import Duty, say_progress
from standby.warm_pool.effects import Effects
from standby.warm_pool.engine_cache import EngineCache, EngineCacheOptions
from standby.warm_pool.engine_work import EngineWork
from standby.warm_pool.figures import Figures
from standby.warm_pool.health import HealthLimits
from standby.warm_pool.health_watch import HealthWatch, ready_engines
from standby.warm_pool.heart import Heart
from standby.warm_pool.keepsakes import Keepsakes
from standby.warm_pool.ledger import Ledger
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.meter import DeviceBytes, Meter
from standby.warm_pool.price_keeper import PriceKeeper
from standby.warm_pool.run_dir import run_dir
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.stored_keys import StoredKeys
from standby.warm_pool.zygote_books import ZygoteBooks
from standby.warm_pool.zygote_rules import ZygoteLimits
from standby.warm_pool.zygotes import ZygotePool

_log = logging.getLogger(__name__)

RESIDENCY_S: Final = 10.0
BEGIN_ANEW_S: Final = 1.0
# After the second signal: the grace of a stop, the wait for SIGKILL, and some.
HURRY_LIMIT_S: Final = 25.0


@dataclass
class NodeParts:
    """A running node."""

    agent: Agent
    announcer: Announcer
    mirror: Mirror[Assignment]
    door: Door
    address: str
    duty: Duty

    async def wind_down(self, hurry: asyncio.Event) -> None:
        """Say so, take no more orders, drain, stop the engines; ``hurry`` cuts the drain short."""
        self.duty.leave()
        await self.mirror.stop()
        leaving = asyncio.create_task(say_progress(self.agent, asyncio.ensure_future(self.agent.wind_down())))
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
async def parts_of(
    settings: NodeSettings, bus: Bus, tables: Tables, events: EventLog, processes: ProcessLedger
) -> AsyncIterator[NodeParts]:
    """Yield a running node; everything it started is ended at the end, engines by ``NodeParts.wind_down``."""
    cache = ArtifactCache(settings.state_dir / "cache", settings.cache_bytes, _cache_options(settings))
    await cache.open()
    announcer = Announcer(tables)
    keeper = PriceKeeper(settings.node_name, settings.state_dir, time.time, announcer.prices)
    await asyncio.to_thread(keeper.load)
    devices = Devices(Nvml.open(), on_cordon=_say_cordoned, visible=os.environ.get("CUDA_VISIBLE_DEVICES"))
    await devices.start()
    registry = await asyncio.to_thread(EngineRegistry.discover, processes, zygotes=lambda kind: zygotes.ready(kind))  # noqa: PLW0108 - the pool is made after it
    door = Door(token=settings.node_token.get_secret_value(), on_change=lambda instance: agent.door_changed(instance))  # noqa: PLW0108 - the agent is made after the door
    host, port = await _listen(door, settings)
    agent: Agent = Agent(
        node=settings.node_name,
        door=f"{host}:{port}",
        first_epoch=first_epoch(settings.state_dir),
        announcer=announcer,
        events=events,
        keeper=keeper,
        adapter_for=lambda assignment: registry.adapter(assignment.model.engine),
        monotonic=time.monotonic,
        wall=time.time,
    )
    berths = _berths(settings, devices, agent, lambda: memory.ledger)
    memory: MemoryDesk = MemoryDesk(
        Ledger(settings.memory_bytes),
        agent.instances,
        lambda: keeper.book,
        agent.post,
        time.time,
        sizes=keeper.sizes,
        devices_of=berths.devices_of,
        end_zygote=lambda kind: zygotes.push_out(kind),  # noqa: PLW0108 - the pool is made after it
    )
    zygotes: ZygotePool = _zygotes(settings, registry, processes, agent, ZygoteBooks(memory, keeper))
    keys = StoredKeys(tables.credentials, _sealing(settings))
    agent.meter = Meter(memory, told=functools.partial(_measured, agent), device_bytes=_device_bytes(devices))
    sockets = run_dir(settings.state_dir)
    # What engines of an agent that was killed have left; they themselves have been reaped.
    await asyncio.to_thread(volume.empty, sockets)
    engines = EngineWork(
        post=agent.post,
        cache=cache,
        memory=memory,
        berths=berths,
        keepsakes=await _keepsakes(settings, keys, devices, agent),
        zygotes=zygotes,
        health=HealthWatch(
            engines=lambda: ready_engines(agent.instances),
            load=door.load,
            sick=agent.sick,
            told=agent.told,
            limits=HealthLimits(stall_s=settings.engine_stall_s),
        ),
        run_dir=sockets,
        log_dir=log_folder(settings.state_dir),
        wall=time.time,
        stop_grace_s=settings.stop_grace_s,
        probe_limit_s=settings.probe_limit_s,
    )
    agent.effects = Effects(
        post=agent.post,
        forgotten=agent.forgotten,
        progressed=agent.progressed,
        cache=cache,
        door=door,
        memory=memory,
        engines=engines,
        wall=time.time,
        opener_for=keys.opener_for,
    )
    await _forget_earlier_instances(tables, settings.node_name)
    mirror = Mirror(tables.assignments, agent.assignment_changed, prefix=f"{settings.node_name}.")
    duty = Duty(settings.node_name, settings.state_dir / "mode.json", agent, lambda: beats.beat(), lambda: mirror.entries)  # noqa: PLW0108 - the heart is made after it
    figures = Figures(
        settings.node_name, registry.available(), agent, cache, memory, functools.partial(_measure_bus, bus, mirror)
    )
    beats: Heart = Heart(settings, agent, announcer, cache, memory, registry, duty, figures.refresh)
    answering = await Answering.open(bus, agent, cache, duty, settings.state_dir)
    works = (
        agent.run, agent.run_outbox, announcer.run, beats.run, functools.partial(_watch_pages, cache),
        agent.meter.run, keeper.run, engines.health.run, engines.trees.run,
    )  # fmt: skip
    tasks = [asyncio.create_task(always(work)) for work in works]
    try:
        beats.beat()
        await mirror.start()
        _log.info("node is ready", extra={"door": agent.door, "engines": [kind.value for kind in registry.available()]})
        async with exposed(
            metrics.NODE,
            settings.metrics_port,
            figures.refresh,
            variable="STANDBY_METRICS_PORT",
            port_file=settings.metrics_port_file,
        ):
            yield NodeParts(agent, announcer, mirror, door, agent.door, duty)
    finally:
        await mirror.stop()
        await answering.close()
        await duty.stop()
        await door.stop()
        await host_tasks.end([*tasks, *engines.keepsakes.tasks])
        engines.trees.close()
        await zygotes.close()
        await keeper.flush()
        await devices.stop()
        berths.isolation.close()
        await cache.close()
        if not agent.instances:
            shutil.rmtree(sockets, ignore_errors=True)


# ---- single parts ----------------------------------------------------------------------------------------------------


def _berths(settings: NodeSettings, devices: Devices, agent: Agent, ledger: Callable[[], Ledger]) -> Berths:
    scope = hashlib.sha256(os.fsencode(settings.state_dir)).hexdigest()[:8]
    groups = [device.cores for device in devices.list() if device.kind is DeviceKind.CPU]
    return Berths(
        devices=devices,
        cores=CoreBook(groups, settings.engine_cores),
        isolation=Isolation.open(scope, wanted=settings.engine_cgroups),
        sharing=settings.device_sharing,
        instances=agent.instances,
        ledger=ledger,
    )


def _zygotes(
    settings: NodeSettings, registry: EngineRegistry, processes: ProcessLedger, agent: Agent, books: ZygoteBooks
) -> ZygotePool:
    forking = {kind: adapter for kind in registry.available() if isinstance(adapter := registry.adapter(kind), Vllm)}

    def make(kind: EngineKind) -> Zygote:
        log = log_folder(settings.state_dir) / f"zygote-{kind.value}.log"
        return Zygote(forking[kind].zygote_plan, ledger=processes, log=log)

    return ZygotePool(
        forking,
        make,
        installed_version=lambda kind: forking[kind].installed_version(),
        limits=ZygoteLimits(
            max_growth=settings.zygote_max_growth, max_age_s=settings.zygote_max_age_s, keep_s=settings.zygote_keep_s
        ),
        books=books,
        on_change=agent.zygote_changed,
    )


async def _keepsakes(settings: NodeSettings, keys: StoredKeys, devices: Devices, agent: Agent) -> Keepsakes:
    secret = settings.secrets_key or settings.node_token
    options = EngineCacheOptions(
        cap_bytes=settings.engine_cache_bytes, secret=secret.get_secret_value().encode(), version=version("standby")
    )
    caches = EngineCache(settings.state_dir / "engine-cache", options)
    await caches.open()
    return Keepsakes(
        canaries=Canaries(settings.state_dir / "canaries"),
        caches=caches,
        place=settings.engine_cache_uri,
        keys_for=keys.keys_for,
        facts=functools.partial(_facts, devices),
        tell=agent.notice,
    )


def _facts(devices: Devices, ids: Sequence[str], processors: int | None) -> DeviceFacts:
    """Return what computes: the first of the GPUs, as all that one engine has are alike; else the processors."""
    found = devices.find(ids[0]) if ids else None
    if found is None:
        return cpu_facts(processors=processors)
    return DeviceFacts(name=found.name, compute_capability=found.compute_capability, driver=found.driver)


def _device_bytes(devices: Devices) -> DeviceBytes:
    def held(pids: Sequence[int]) -> Mapping[str, int] | None:
        found = devices.process_bytes(pids)
        known = {name: amount for name, amount in found.items() if amount is not None}
        return known or None

    return held


def _measure_bus(bus: Bus, assignments: Mirror[Assignment]) -> None:
    bus_figures.refresh(bus, {"assignments": assignments.staleness(time.monotonic())})


def _measured(agent: Agent, managed: Managed) -> None:
    agent.note_held(managed)
    agent.say(managed)
    agent.keeper.sized()


def _say_cordoned(device: str, reason: str) -> None:
    _log.error("device %s gets nothing new: %s", device, reason)


def _sealing(settings: NodeSettings) -> SealingKey | None:
    """Return the key that opens the tenants' stored credentials, if this node has one. Raises ConfigurationError."""
    return load_sealing_key(settings.secrets_key, settings.secrets_key_file, settings.secrets_key_command)


def _cache_options(settings: NodeSettings) -> CacheOptions:
    return CacheOptions(
        fetch=FetchOptions(pacer=Pacer(settings.fetch_bytes_per_s)),
        warm_pacer=Pacer(settings.warm_bytes_per_s),
        warm_reserve_bytes=settings.warm_reserve_bytes,
    )


async def always(work: Callable[[], Awaitable[None]]) -> None:
    """Run a part of the node until cancelled; one that breaks begins anew, as a node without it only seems to work."""
    while True:
        try:
            await work()
        except Exception:  # noqa: BLE001 - whatever it is, the other parts go on, and need this one
            _log.exception("a part of the node has broken and begins anew: %s", work)
        await asyncio.sleep(BEGIN_ANEW_S)


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
