"""``standby node``: wiring of the node agent's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import uvloop

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.settings import BusSettings
from standby.bus.tables_set import open_tables
from standby.domain.errors import ConfigurationError
from standby.domain.events import ComponentNotice
from standby.host.collector import calm_collector
from standby.runtime.process_ledger import ProcessLedger
from standby.telemetry import logs, metrics, redact
from standby.telemetry.tracing import Place, Tracing, open_tracing
from standby.telemetry.tracing_settings import TracingSettings
from standby.warm_pool.activation_spans import spans_of
from standby.warm_pool.cache_temporary import FileLock
from standby.warm_pool.door_spans import DoorTraces
from standby.warm_pool.settings import NodeSettings
from standby.warm_pool.wiring import NodeParts, parts_of

_log = logging.getLogger(__name__)

# For the last spans; a collector that hangs is left behind.
_TELL_S = 1.0


def command() -> None:
    """Run a node agent until SIGTERM or SIGINT; settings come from the environment (STANDBY_…).

    The first signal drains and stops every engine; the second one ends them at once.
    """
    settings, bus_settings, traced = NodeSettings.load(), BusSettings.load(), TracingSettings.load()
    secrets_given = [secret for one in (settings, bus_settings, traced) for secret in redact.secrets_of(one)]
    logs.configure(f"node {settings.node_name}", level=settings.log_level, style=settings.log_format, secrets=secrets_given)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, bus_settings))


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


@asynccontextmanager
async def node(settings: NodeSettings, bus_settings: BusSettings) -> AsyncIterator[NodeParts]:
    """Yield a running node: leftovers reaped, cache opened, door listening, assignments followed.

    Raises ConfigurationError when another agent works in the same state folder.
    """
    settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    tracing = open_tracing(TracingSettings.load(), Place("standby-node", settings.node_name))
    with _only_agent(settings.state_dir):
        async with _node(settings, bus_settings, tracing) as parts:
            yield parts
        if tracing is not None:
            await tracing.close(_TELL_S)


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
async def _node(settings: NodeSettings, bus_settings: BusSettings, tracing: Tracing | None) -> AsyncIterator[NodeParts]:
    processes = ProcessLedger(settings.state_dir / "processes")
    reaped = await processes.reap_orphans()
    bus = await Bus.connect(bus_settings, name=f"node/{settings.node_name}")
    try:
        tables = await open_tables(bus)
        events = await EventLog.open(bus)
        for left in reaped:
            metrics.ORPHANS.labels(settings.node_name).inc()
            await events.publish(_notice(settings, f"reaped engine {left.instance} of an earlier agent: {left.killed}"))
        async with parts_of(settings, bus, tables, events, processes) as parts:
            if tracing is not None:
                _trace(tracing, parts)
            yield parts
        await events.close()
    finally:
        await bus.close()


def _trace(tracing: Tracing, parts: NodeParts) -> None:
    agent = parts.agent
    parts.door.traces = DoorTraces(tracing, agent.node, agent.monotonic, agent.wall)
    agent.on_climbed = lambda climbed: tracing.add(partial(spans_of, climbed))


def _notice(settings: NodeSettings, message: str) -> ComponentNotice:
    return ComponentNotice(
        id=secrets.token_hex(8), at=time.time(), source=f"node/{settings.node_name}", level="warning", message=message
    )
