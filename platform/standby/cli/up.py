"""``standby up``: everything on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from standby.cli import session
from standby.cli.stack import Stack, StackOptions, running
from standby.cli.state import StateDir
from standby.telemetry import logs


def up(
    ctx: typer.Context,
    state_dir: Annotated[
        Path | None, typer.Option(help="Where state, cache and logs live.", envvar="STANDBY_STATE_DIR")
    ] = None,
    host: Annotated[str, typer.Option(help="Address of the gateway.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first gateway; 0: any free one.", min=0, max=65535)] = 8080,
    gateways: Annotated[int, typer.Option(help="How many gateway processes.", min=1, max=16)] = 1,
    nats_url: Annotated[
        str | None,
        typer.Option(help="Use this NATS instead of an embedded one; user and password by STANDBY_NATS_USER/_PASSWORD."),
    ] = None,
) -> None:
    """Start a gateway, a controller, a node and an embedded nats-server, and keep them running until Ctrl-C.

    Other commands find the deployment by the connection file in the state folder.
    """
    logs.configure("up")
    root = state_dir or session.options(ctx).folder
    options = StackOptions(StateDir(root.expanduser().absolute()), host, port, gateways, nats_url)
    asyncio.run(_run(options, Console(stderr=True)))


async def _run(options: StackOptions, console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    console.print("starting nats-server, node, controller, gateway …")
    await _until_stopped(options, console, stop)
    console.print("stopped; state stays in", str(options.state.root), highlight=False)


async def _until_stopped(options: StackOptions, console: Console, stop: asyncio.Event) -> None:
    waiting = asyncio.create_task(stop.wait())
    try:
        async with running(options) as stack:
            _greet(stack, console)
            await waiting
            console.print("stopping …")
    finally:
        waiting.cancel()


def _greet(stack: Stack, console: Console) -> None:
    console.print(f"ready: {', '.join(stack.urls)}", highlight=False)
    console.print(f"connection file: {stack.options.state.connection}", highlight=False)
    console.print(f"logs: {stack.options.state.logs}", highlight=False)
    console.print("try: standby status · standby models register NAME s3://bucket/prefix/ · Ctrl-C stops", highlight=False)
