"""``standby up``: everything on this machine until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
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

    Ctrl-C lets open requests end (STANDBY_SHUTDOWN_GRACE_S), Ctrl-C again cuts them off.

    Other commands find the deployment by the connection file in the state folder. Models, endpoints, keys and the
    artifact cache stay there for the next start. Credentials of the model store (AWS_…) and settings of the components
    (STANDBY_…) are taken from the environment.

    Example: AWS_ENDPOINT_URL_S3=http://127.0.0.1:9000 standby up --port 8080
    """
    logs.configure("up")
    root = state_dir or session.options(ctx).folder
    options = StackOptions(StateDir(root.expanduser().absolute()), host, port, gateways, nats_url)
    asyncio.run(_run(options, Console(stderr=True)))


async def _run(options: StackOptions, console: Console) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def told_to_stop() -> None:
        if stop.is_set() and not options.hurry.is_set():
            console.print("stopping at once …")
            options.hurry.set()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told_to_stop)
    console.print(f"starting in {options.state.root} …", highlight=False, soft_wrap=True)
    # A task of its own, so that a signal also ends a start that is not complete yet.
    serving = asyncio.create_task(_serve(options, console))
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait({serving, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        console.print("stopping … (again: at once, open requests are cut off)")
        serving.cancel()
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving
    console.print(f"stopped; state stays in {options.state.root}", highlight=False, soft_wrap=True)


async def _serve(options: StackOptions, console: Console) -> None:
    """Run the deployment until cancelled."""
    began = time.monotonic()

    def say(line: str) -> None:
        console.print(f"  {line}", highlight=False, soft_wrap=True)

    async with running(options, say) as stack:
        _greet(stack, console, time.monotonic() - began)
        await asyncio.Event().wait()


def _greet(stack: Stack, console: Console, seconds: float) -> None:
    for line in (
        f"ready after {seconds:.1f} s: {', '.join(stack.urls)}",
        f"connection file: {stack.options.state.connection}",
        f"logs: {stack.options.state.logs}",
        "try: standby models register NAME s3://bucket/prefix/ · standby status · Ctrl-C stops",
    ):
        console.print(line, highlight=False, soft_wrap=True)
