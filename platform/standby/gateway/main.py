"""``standby gateway``: wiring of the gateway process."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

import uvicorn
import uvloop
from starlette.types import ASGIApp

from standby.artifacts.inspection import inspect
from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.settings import BusSettings
from standby.bus.tables_set import Tables, open_tables
from standby.console.settings import ConsoleSettings
from standby.domain.access import Role
from standby.domain.errors import ConfigurationError, RevisionConflict
from standby.domain.names import DEFAULT_TENANT
from standby.gateway import keys
from standby.gateway.accounts import Accounts
from standby.gateway.api.context import ApiContext, Copies
from standby.gateway.api.routes import api_routes
from standby.gateway.app import Surroundings, build_app
from standby.gateway.authn import check_trust
from standby.gateway.aws import AwsSide
from standby.gateway.console_side import ConsoleSide
from standby.gateway.dataplane import DataPlane
from standby.gateway.desk import AllRooms
from standby.gateway.directory import Directory
from standby.gateway.drain import Ending, GatewayServer
from standby.gateway.neighbours import Neighbours
from standby.gateway.poison_news import PoisonNews
from standby.gateway.public_port import PublicProtocol
from standby.gateway.relay import DoorClient
from standby.gateway.reporter import DemandReporter
from standby.gateway.request_ends import RequestEnds
from standby.gateway.settings import GatewaySettings
from standby.gateway.traces import Traces
from standby.host import tasks as host_tasks
from standby.host.collector import calm_collector
from standby.host.sealing import SealingKey
from standby.host.sealing_source import load_sealing_key
from standby.telemetry import logs, redact
from standby.telemetry.tracing import Place, Tracing, open_tracing
from standby.telemetry.tracing_settings import TracingSettings

_log = logging.getLogger(__name__)

# For putting everything away after the last answer, whatever hangs there.
CLOSE_S: Final = 0.8
# Of it, for the last spans and log lines: a collector that hangs must not cost the last beat.
_TELL_S: Final = 0.3


def serve() -> None:
    """Run a gateway until SIGTERM or SIGINT; settings come from the environment.

    The first signal lets open requests end within ``STANDBY_SHUTDOWN_GRACE_S``, the second one cuts them off.
    """
    settings, bus_settings, traced = GatewaySettings.load(), BusSettings.load(), TracingSettings.load()
    secrets_given = [secret for one in (settings, bus_settings, traced) for secret in redact.secrets_of(one)]
    logs.configure("gateway", level=settings.log_level, style=settings.log_format, secrets=secrets_given)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(settings, bus_settings))


async def _run(settings: GatewaySettings, bus_settings: BusSettings) -> None:
    listener = _listen(settings.gateway_host, settings.gateway_port)
    calm_collector()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None) as closing, gateway(settings, bus_settings) as (app, ending):
            server = GatewayServer(
                _uvicorn_config(app), ending, grace_s=settings.shutdown_grace_s, notice_s=settings.drain_notice_s
            )
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, server.told_to_stop)
            if settings.port_file:
                Path(settings.port_file).write_text(str(listener.getsockname()[1]))
            host, port = listener.getsockname()[:2]
            _log.info("gateway listens", extra={"address": f"{host}:{port}"})
            await server.serve(sockets=[listener])
            closing.reschedule(loop.time() + CLOSE_S)
    except TimeoutError:
        if not closing.expired():
            raise
        _log.warning("left without having put everything away within %g s", CLOSE_S)


@asynccontextmanager
async def gateway(settings: GatewaySettings, bus_settings: BusSettings) -> AsyncIterator[tuple[ASGIApp, Ending]]:
    """Yield the gateway's application with everything behind it running, and what its server needs at the end."""
    name = f"{settings.gateway_name}-{secrets.token_hex(3)}"
    check_trust(settings.key_trust_s, bus_settings.nats_relist_interval)
    sealing = load_sealing_key(settings.secrets_key, settings.secrets_key_file, settings.secrets_key_command)
    tracing = open_tracing(TracingSettings.load(), Place("standby-gateway", name))
    bus = await Bus.connect(bus_settings, name=f"gateway/{name}")
    try:
        tables = await open_tables(bus)
        await _ensure_admin(tables, settings)
        async with _parts(settings, bus, tables, name, sealing, tracing) as built:
            yield built
    finally:
        await bus.close()


@asynccontextmanager
async def _parts(
    settings: GatewaySettings, bus: Bus, tables: Tables, name: str, sealing: SealingKey | None, tracing: Tracing | None
) -> AsyncIterator[tuple[ASGIApp, Ending]]:
    accounts = Accounts()
    reporter = DemandReporter(bus, name, boot_id=secrets.token_hex(8))
    directory = Directory(
        tables,
        AllRooms(settings.queue_bytes),
        time.monotonic,
        time.time,
        on_demand=reporter.changed,
        on_desk_closed=accounts.close,
        key_trust_s=settings.key_trust_s,
        sealing=sealing,
    )
    async with AsyncExitStack() as ending:
        ends = RequestEnds(tracing, settings.request_log)
        ending.push_async_callback(ends.close, _TELL_S)
        events = await EventLog.open(bus)
        ending.push_async_callback(events.close)
        neighbours = Neighbours(bus, name, Traces(settings.request_traces), time.monotonic)
        console = ConsoleSide(bus, events, _copies(directory), accounts, directory.desks, name, ConsoleSettings.load())
        api = _api_context(settings, bus, tables, events, neighbours, sealing, console)
        aws = AwsSide(api, directory, settings)
        doors = DoorClient()
        ending.push_async_callback(doors.close)
        data = DataPlane(
            directory,
            doors,
            accounts,
            settings.node_token.get_secret_value(),
            api.pepper,
            settings.max_body_bytes,
            time.monotonic,
            time.time,
            bus.disconnected_for,
            runtime=aws.runtime_options(),
            tracing=tracing,
        )
        data.dispatcher.traces, data.dispatcher.on_ended = neighbours.traces, ends
        directory.on_failed = data.dispatcher.guard.engine_failed
        news = PoisonNews(
            bus, data.dispatcher.guard.book, time.monotonic, lambda who: accounts.convicted(who.tenant, who.endpoint)
        )
        for talk in (neighbours, news):
            ending.push_async_callback(talk.stop)
            await talk.start()
        ending.push_async_callback(directory.stop)
        await directory.start()
        ending.push_async_callback(console.stop)
        await console.start()
        # Says that nothing is left: the controller need not wait until this gateway's counts expire.
        ending.push_async_callback(lambda: reporter.beat(directory.desks()))
        ending.push_async_callback(aws.stop)
        await aws.start()
        assert data.asynchronous is not None, "AwsSide has said how"
        ending.push_async_callback(data.asynchronous.stop)
        await data.asynchronous.start()
        tasks = [asyncio.create_task(reporter.run()), asyncio.create_task(reporter.run_beats(directory.desks))]
        ending.push_async_callback(host_tasks.end, tasks)
        app = build_app(
            Surroundings(bus, data, aws, settings.max_staleness_s, api.stopping, console.lost_nodes), api_routes(api)
        )
        yield app, Ending(api.stopping, lambda: sum(desk.queued for desk in directory.desks()), data.asynchronous.stop)


def _copies(directory: Directory) -> Copies:
    return Copies(
        keys=directory.key_mirror,
        models=directory.models,
        endpoint_configs=directory.configs,
        endpoints=directory.endpoints,
        instances=directory.instances,
        nodes=directory.nodes,
        prices=directory.prices,
        tenants=directory.tenants,
        access_keys=directory.access_keys,
    )


def _api_context(
    settings: GatewaySettings,
    bus: Bus,
    tables: Tables,
    events: EventLog,
    neighbours: Neighbours,
    sealing: SealingKey | None,
    console: ConsoleSide,
) -> ApiContext:
    return ApiContext(
        bus=bus,
        tables=tables,
        events=events,
        copies=console.copies,
        pepper=settings.key_pepper.get_secret_value().encode(),
        source=f"gateway/{neighbours.name}",
        traces=neighbours.traces,
        neighbours=neighbours,
        feed=console.feed,
        inspect=partial(inspect, allow_pickles=settings.allow_pickles, allow_remote_code=settings.allow_remote_code),
        sealing=sealing,
        key_trust_s=settings.key_trust_s,
        region=settings.region,
        open_sources=settings.open_sources,
    )


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=PublicProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Accepted sockets inherit it on Linux: without it a small first chunk waits for the caller's delayed ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"the gateway cannot listen on {host}:{port}: {os.strerror(error.errno or 0)}",
            remedy="choose a free port, or 0 for any: --port of `standby up`, STANDBY_GATEWAY_PORT for a gateway by itself",
        ) from error
    listener.listen(2048)
    return listener


async def _ensure_admin(tables: Tables, settings: GatewaySettings) -> None:
    """Make the deployment's first administrator key valid, once."""
    if settings.admin_key is None:
        return
    record = keys.record(
        settings.admin_key.get_secret_value(),
        tenant=DEFAULT_TENANT,
        name="bootstrap",
        role=Role.ADMIN,
        pepper=settings.key_pepper.get_secret_value().encode(),
        now=time.time(),
    )
    try:
        await tables.keys.create(record.id, record)
    except RevisionConflict:
        return
