"""``standby compare``: the same load on two targets, side by side."""

from __future__ import annotations

import asyncio
import json as jsons
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Final

import typer
import uvloop
from pydantic import JsonValue
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from standby.bench.compare.course import Course, CourseOptions, Lane, StoppedError, workload_of
from standby.bench.compare.page import compare_page, in_words_of_death
from standby.bench.compare.sides import Asked, SideOptions, asked, opened
from standby.bench.compare.table import table
from standby.bench.compare.values import SCHEMA, Act, Comparison, Figure, Known, Row
from standby.bench.page import write
from standby.bench.report_machine import machine_facts
from standby.bench.session import Session, bounded_time, session_of
from standby.bench.targets.choice import TargetOptions
from standby.bench.targets.requests import Form
from standby.bench.values import Slo
from standby.console.settings import ConsoleSettings
from standby.domain.errors import InvalidInput
from standby.domain.instance import Rung

LOST: Final = 7
INTERRUPTED: Final = 130
_ACTS: Final = {"cold": Act.COLD, "burst": Act.BURST, "warm": Act.WARM, "scale-in": Act.SCALE_IN}
_RUNGS: Final = tuple(rung.label for rung in Rung if rung is not Rung.READY)
_PIPE_WIDTH: Final = 160
_LOAD: Final = "The load"
_TARGETS: Final = "The targets"
_REPORT: Final = "The report"


def compare(
    ctx: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help="An endpoint's name, an OpenAI URL, sagemaker:NAME or container:FILE.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The same for the other side.")],
    requests: Annotated[int, typer.Option("--requests", "-n", min=1, help="Warm ones, to each.", rich_help_panel=_LOAD)] = 60,
    rate: Annotated[float, typer.Option("--rate", "-r", help="Of those, per second.", rich_help_panel=_LOAD)] = 2.0,
    blocks: Annotated[int, typer.Option(min=1, help="Turns that each target has.", rich_help_panel=_LOAD)] = 4,
    cold: Annotated[int, typer.Option(min=1, help="Cold starts of each; 20 allow a claim.", rich_help_panel=_LOAD)] = 5,
    burst: Annotated[int, typer.Option(min=1, help="Requests at once from zero.", rich_help_panel=_LOAD)] = 8,
    bursts: Annotated[int, typer.Option(min=1, help="Such bursts on each.", rich_help_panel=_LOAD)] = 2,
    scale_ins: Annotated[int, typer.Option(min=1, help="Times to ask while it scales in.", rich_help_panel=_LOAD)] = 3,
    only: Annotated[str | None, typer.Option(help="Some of cold,burst,warm,scale-in.", rich_help_panel=_LOAD)] = None,
    prompt_tokens: Annotated[str, typer.Option(help="About so long: 128, 16-512.", rich_help_panel=_LOAD)] = "32",
    max_tokens: Annotated[str, typer.Option(help="Most tokens of an answer.", rich_help_panel=_LOAD)] = "16",
    seed: Annotated[int, typer.Option(help="The same load again for the same seed.", rich_help_panel=_LOAD)] = 0,
    rung: Annotated[
        str, typer.Option(help=f"Where standby's cold starts begin: {', '.join(_RUNGS)}.", rich_help_panel=_TARGETS)
    ] = "cold",
    evict: Annotated[
        bool,
        typer.Option(
            "--evict", help="Before each, throw the model out of the nodes' caches (administrators).", rich_help_panel=_TARGETS
        ),
    ] = False,
    limit: Annotated[str, typer.Option(help="Longest wait for that.", rich_help_panel=_TARGETS)] = "2m",
    idle: Annotated[
        str | None, typer.Option(help="A target of which nobody knows counts as cold after so long.", rich_help_panel=_TARGETS)
    ] = None,
    keep: Annotated[str, typer.Option(help="How long the baseline keeps an idle container.", rich_help_panel=_TARGETS)] = "5s",
    slots: Annotated[int, typer.Option(min=1, help="Requests at once in the baseline.", rich_help_panel=_TARGETS)] = 4,
    api: Annotated[Form, typer.Option(help="The form of the bodies.", rich_help_panel=_TARGETS)] = Form.CHAT,
    model: Annotated[str | None, typer.Option(help="Default: the only one there.", rich_help_panel=_TARGETS)] = None,
    target_key: Annotated[
        str | None, typer.Option(envvar="STANDBY_BENCH_KEY", help="Bearer key for a URL.", rich_help_panel=_TARGETS)
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest wait for a whole answer.", rich_help_panel=_TARGETS)] = "2m",
    region: Annotated[str | None, typer.Option(help="Of sagemaker:NAME.", rich_help_panel=_TARGETS)] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="Where SageMaker's runtime is, if not at AWS.", rich_help_panel=_TARGETS)
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Of AWS's configuration.", rich_help_panel=_TARGETS)] = None,
    slo_ttft: Annotated[str, typer.Option(help="Bound of the first token.", rich_help_panel=_REPORT)] = "1s",
    slo_e2e: Annotated[str | None, typer.Option(help="Bound of the whole answer.", rich_help_panel=_REPORT)] = None,
    serverless_gb: Annotated[
        int | None,
        typer.Option(min=1, max=6, help="SageMaker's memory size for its price; default: what fits.", rich_help_panel=_REPORT),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.", rich_help_panel=_REPORT)] = False,
    html_file: Annotated[Path | None, typer.Option("--html", help="Write a page here.", rich_help_panel=_REPORT)] = None,
) -> None:
    """Put the same load on two targets by turns, and show both side by side.

    Four acts: cold starts, a burst from zero, warm blocks in the order ABBA, load while the target scales in. Each cell says
    whether it was measured, reckoned from what was measured, published, or not measured and why.

    container:FILE starts the baseline that comes with this: copy a packed model, unpack it, start a plain llama.cpp, keep it
    for a fixed time. An endpoint of standby gets cold by its own policy: give it short keep times for this.

    Exit codes: 0 both lived, 7 a target was lost on the way (the report is made all the same), 130 stopped by Ctrl-C
    (likewise), 2 an option makes no sense.

    Examples:

    standby compare smol container:SmolLM2-135M-Instruct.Q4_1.gguf --html report.html

    standby compare smol http://127.0.0.1:8000/v1 --only warm,burst --idle 30s

    standby compare smol sagemaker:my-endpoint --region eu-west-1 --idle 20m --cold 3
    """
    session = session_of(ctx)
    course = CourseOptions(
        requests=max(requests, blocks),
        blocks=blocks,
        rate=rate,
        cold_starts=cold,
        burst=burst,
        bursts=bursts,
        scale_ins=scale_ins,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        seed=seed,
        acts=acts_of(only),
    )
    if rung not in _RUNGS:
        raise InvalidInput(f"--rung {rung!r} is none of {', '.join(_RUNGS)}", remedy="give one of them")
    options = SideOptions(
        targets=TargetOptions(
            form=api,
            model=model,
            key=target_key,
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            timeout_s=bounded_time("--timeout", timeout),
        ),
        rung=rung,
        limit_s=bounded_time("--limit", limit),
        evict=evict,
        idle_s=None if idle is None else bounded_time("--idle", idle),
        keep=keep,
        slots=slots,
    )
    bounded_time("--keep", keep)
    if html_file is not None and (html_file.is_dir() or not html_file.absolute().parent.is_dir()):
        raise InvalidInput(f"{html_file} cannot be written", remedy="give a path in a folder that exists")
    slo = Slo(
        ttft_s=bounded_time("--slo-ttft", slo_ttft), e2e_s=None if slo_e2e is None else bounded_time("--slo-e2e", slo_e2e)
    )
    prices = ConsoleSettings.load()
    workload_of(course)  # what makes no sense is said before anything starts
    sides = (asked(a, options, session), asked(b, options, session))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        compared = runner.run(_measured(sides, course, options, slo, session, _teller()))
    compared = compared.model_copy(update={"serverless_gb": serverless_gb})
    rows = table(compared, prices)
    if json or session.json:
        typer.echo(_document(compared, rows))
    else:
        show(compared, rows, Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH))
    if html_file is not None:
        write(compare_page(compared, rows), html_file)
    raise typer.Exit(exit_code(compared))


def _teller() -> Callable[[str], None]:
    """Return what prints a step, apart from the results."""
    console = Console(stderr=True, highlight=False)
    return lambda line: console.print(f"[dim]{escape(line)}[/]", soft_wrap=True)


async def _measured(
    sides: tuple[Asked, Asked],
    options: CourseOptions,
    side_options: SideOptions,
    slo: Slo,
    session: Session,
    say: Callable[[str], None],
) -> Comparison:
    """Run the comparison; Ctrl-C ends it, and what was measured until then is returned."""
    began_at, machine = time.time(), machine_facts()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    try:
        async with AsyncExitStack() as stack:
            lanes = [Lane(await stack.enter_async_context(opened(side, side_options, session, say))) for side in sides]
            # Not before: until both are there, which may take minutes, nothing is measured and Ctrl-C simply ends it.
            loop.add_signal_handler(signal.SIGINT, stop.set)
            course = Course(lanes[0], lanes[1], options, stop, say)
            try:
                await course.run()
            except StoppedError:
                say("stopped")
            seconds = time.monotonic() - course.began
            found = [await lane.side(side.notes) for lane, side in zip(lanes, sides, strict=True)]
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return Comparison(
        began_at=began_at,
        seconds=seconds,
        workload=workload_of(options),
        parameters=_parameters(options, side_options),
        slo=slo,
        a=found[0],
        b=found[1],
        interrupted=stop.is_set(),
        machine=machine,
    )


def _parameters(options: CourseOptions, sides: SideOptions) -> dict[str, JsonValue]:
    return {
        "warm requests to each": options.requests,
        "rate per second": options.rate,
        "warm blocks of each": options.blocks,
        "cold starts of each": options.cold_starts,
        "requests in a burst": options.burst,
        "bursts on each": options.bursts,
        "times of scaling in": options.scale_ins,
        "prompt tokens": options.prompt_tokens,
        "most tokens of an answer": options.max_tokens,
        "standby's cold starts begin at": sides.rung + (", evicted from the nodes' caches" if sides.evict else ""),
        "baseline keeps for": sides.keep,
        "baseline's slots": sides.slots,
    }


def exit_code(compared: Comparison) -> int:
    """Return the exit code that a comparison deserves."""
    if compared.interrupted:
        return INTERRUPTED
    return LOST if any(side.death is not None for side in compared.sides) else 0


def show(compared: Comparison, rows: Sequence[Row], console: Console) -> None:
    """Print the table, and before it what nobody may miss."""
    for letter, side in zip("AB", compared.sides, strict=True):
        console.print(f"[bold]{letter}[/] {escape(side.name)}: {escape(side.kind)}", soft_wrap=True)
    printed = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in ("", "A", "B", "WHAT MAY BE SAID"):
        printed.add_column(name, overflow="fold")
    for row in rows:
        printed.add_row(Text(row.name), _shown(row.a), _shown(row.b), Text(row.verdict))
    console.print(printed)
    for letter, side in zip("AB", compared.sides, strict=True):
        for note in side.notes:
            console.print(f"[yellow]note[/] {letter}: {escape(note)}", soft_wrap=True)
        if side.death is not None:
            console.print(f"[bold red]lost[/]: {escape(in_words_of_death(letter, side))}", soft_wrap=True)
    if compared.interrupted:
        console.print(f"[bold red]stopped[/] after {compared.seconds:.0f} s: this is what was measured until then")


def _shown(figure: Figure) -> Text:
    if figure.known is Known.NOT_MEASURED:
        return Text(f"not measured: {figure.note}" if figure.note else "not measured", style="dim")
    text = Text(figure.text)
    return text.append(f"\n{', '.join(part for part in (figure.known.value, figure.note) if part)}", style="dim")


def acts_of(words: str | None) -> frozenset[Act]:
    """Return the acts that ``--only`` names; None: all. Raises InvalidInput."""
    if words is None:
        return frozenset(Act)
    try:
        return frozenset(_ACTS[word.strip()] for word in words.split(","))
    except KeyError as error:
        raise InvalidInput(f"--only: there is no {error}", remedy=f"give some of {','.join(_ACTS)}") from None


def _document(compared: Comparison, rows: Sequence[Row]) -> str:
    """Return everything as JSON, the table first."""
    content = {
        "schema": SCHEMA,
        "table": [row.model_dump(mode="json") for row in rows],
        "exit_code": exit_code(compared),
        **compared.model_dump(mode="json"),
    }
    return jsons.dumps(content, indent=2, ensure_ascii=False)
