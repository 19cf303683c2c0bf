"""``standby controller``: run one controller until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from functools import partial
from typing import Annotated, Final

import typer
import uvloop

from standby.bus.connection import Bus
from standby.bus.events import EventLog
from standby.bus.settings import BusSettings
from standby.bus.tables_set import open_tables
from standby.controller import figures
from standby.controller.loop import Controller
from standby.controller.settings import ControllerSettings
from standby.domain.errors import StandbyError
from standby.host import tasks as host_tasks
from standby.telemetry import logs, metrics, redact
from standby.telemetry.exposition import exposed

log = logging.getLogger(__name__)

# The lease is given back within this time, or its ttl must pass.
RELEASE_LIMIT_S: Final = 2.0


def command(
    name: Annotated[str | None, typer.Option(help="Name in the lease and in events; default: host and process id.")] = None,
    lease_ttl: Annotated[
        float | None, typer.Option(help="Seconds of silence after which another controller takes over.")
    ] = None,
) -> None:
    """Run a controller: it decides how many instances, where, and on which rung. One leads, the others wait."""
    logs.configure("controller")
    try:
        settings = ControllerSettings.load(controller_name=name, controller_lease_ttl=lease_ttl)
        bus_settings = BusSettings.load()
        secrets_given = redact.secrets_of(bus_settings)
        logs.configure("controller", level=settings.log_level, style=settings.log_format, secrets=secrets_given)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(settings, bus_settings))
    except StandbyError as error:
        log.error("controller stopped: %s", error)
        sys.exit(error.exit_code)


async def serve(settings: ControllerSettings, bus_settings: BusSettings) -> None:
    """Run until SIGTERM or SIGINT; the lease is given back, so that a successor takes over at once.

    Raises BusUnavailable when the bus cannot be reached at the start.
    """
    bus = await Bus.connect(bus_settings, name=f"controller-{settings.controller_name}")
    try:
        events = await EventLog.open(bus)
        try:
            controller = Controller(
                bus,
                await open_tables(bus),
                events,
                name=settings.controller_name,
                lease_ttl=settings.controller_lease_ttl,
                economy=settings.economy,
            )
            log.info("controller %s runs, bus %s", settings.controller_name, bus.where)
            async with exposed(
                metrics.CONTROLLER,
                settings.controller_metrics_port,
                partial(figures.refresh, bus, controller.state, controller.leadership),
                variable="STANDBY_CONTROLLER_METRICS_PORT",
                port_file=settings.metrics_port_file,
            ):
                await _until_told(controller)
        finally:
            await events.close()
    finally:
        await bus.close()
    log.info("controller %s has stopped", settings.controller_name)


async def _until_told(controller: Controller) -> None:
    running = asyncio.ensure_future(controller.run())
    told = asyncio.ensure_future(asyncio.Event().wait())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.cancel)
    try:
        await asyncio.wait({running, told}, return_when=asyncio.FIRST_COMPLETED)
        await host_tasks.end([running], again_s=RELEASE_LIMIT_S)
        if not running.cancelled():
            running.result()
    finally:
        told.cancel()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


if __name__ == "__main__":
    typer.run(command)
