"""``standby bench``: put load on an endpoint, and measure what it answers."""

from __future__ import annotations

import asyncio
import gc
import json as jsons
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from standby.bench.files import document, write_csv, write_json
from standby.bench.load import MAX_IN_FLIGHT, OnProgress, Progress, run_load
from standby.bench.lookups import completed, with_notes
from standby.bench.report import write_bench_page
from standby.bench.session import Session, bounded_time, session_of
from standby.bench.statistics import summarize
from standby.bench.table import print_summary
from standby.bench.targets.choice import Chosen, TargetOptions, choose
from standby.bench.targets.requests import Form
from standby.bench.values import Plan, Run, Slo, Summary
from standby.bench.workload import Arrivals, LoadOptions, plan_of
from standby.domain.errors import InvalidInput

FAILED_UNDER: Final = 1
NOTHING_ANSWERED: Final = 7
INTERRUPTED: Final = 130

_PIPE_WIDTH: Final = 160
_OTHER_FILES: Final = 128
_STDOUT: Final = Path("-")
_LOAD: Final = "The load"
_TARGET: Final = "The target"
_REPORT: Final = "The report"


def bench(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(help="An endpoint's name, the URL of an OpenAI API (http://host:port/v1), or sagemaker:ENDPOINT."),
    ],
    rate: Annotated[float, typer.Option("--rate", "-r", help="Requests per second.", rich_help_panel=_LOAD)] = 1.0,
    arrivals: Annotated[
        Arrivals, typer.Option(help="How the requests of a rate come.", rich_help_panel=_LOAD)
    ] = Arrivals.POISSON,
    cv: Annotated[
        float | None,
        typer.Option(help="With --arrivals gamma: how bursty; 1 is Poisson, 4 comes in crowds.", rich_help_panel=_LOAD),
    ] = None,
    duration: Annotated[str | None, typer.Option("--duration", "-d", help="E.g. 30s, 5m.", rich_help_panel=_LOAD)] = None,
    count: Annotated[
        int | None, typer.Option("--count", "--limit", "-n", help="So many requests, at most.", rich_help_panel=_LOAD)
    ] = None,
    burst: Annotated[int | None, typer.Option(help="So many requests at once, e.g. from zero.", rich_help_panel=_LOAD)] = None,
    ladder: Annotated[str | None, typer.Option(help="Rates, one after the other: 1,2,4,8.", rich_help_panel=_LOAD)] = None,
    step: Annotated[str, typer.Option(help="With --ladder: how long each rate lasts.", rich_help_panel=_LOAD)] = "30s",
    trace: Annotated[
        Path | None,
        typer.Option(help="Replay this file: Azure Functions 2019 or 2021, or Azure LLM 2023.", rich_help_panel=_LOAD),
    ] = None,
    function: Annotated[str | None, typer.Option(help="With --trace: this function only.", rich_help_panel=_LOAD)] = None,
    speed: Annotated[float, typer.Option(help="With --trace: so many times as fast.", rich_help_panel=_LOAD)] = 1.0,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Ask this each time.", rich_help_panel=_LOAD)] = None,
    prompt_tokens: Annotated[
        str | None,
        typer.Option(
            help="About so long: 128, 16-512, normal:200,50, lognormal:200,1. Default: as the trace says, else 32.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    max_tokens: Annotated[
        str | None,
        typer.Option(help="Most tokens of an answer, in the same forms.", rich_help_panel=_LOAD),
    ] = None,
    seed: Annotated[int, typer.Option(help="The same load again for the same seed.", rich_help_panel=_LOAD)] = 0,
    max_in_flight: Annotated[
        int, typer.Option(min=1, help="Most requests open at once; what would be more is counted.", rich_help_panel=_LOAD)
    ] = MAX_IN_FLIGHT,
    api: Annotated[Form, typer.Option(help="The form of the bodies.", rich_help_panel=_TARGET)] = Form.CHAT,
    model: Annotated[str | None, typer.Option(help="Default: the only one there.", rich_help_panel=_TARGET)] = None,
    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Ask for a stream.", rich_help_panel=_TARGET)] = True,
    usage: Annotated[
        bool, typer.Option("--usage/--no-usage", help="Ask for counted tokens in streams.", rich_help_panel=_TARGET)
    ] = True,
    extra: Annotated[
        str | None, typer.Option(help="More of the body, as JSON: '{\"ignore_eos\": true}'.", rich_help_panel=_TARGET)
    ] = None,
    target_key: Annotated[
        str | None,
        typer.Option(envvar="STANDBY_BENCH_KEY", help="Bearer key for a URL.", rich_help_panel=_TARGET, show_envvar=True),
    ] = None,
    timeout: Annotated[str, typer.Option(help="Longest wait for a whole answer.", rich_help_panel=_TARGET)] = "5m",
    region: Annotated[str | None, typer.Option(help="Of sagemaker:ENDPOINT.", rich_help_panel=_TARGET)] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="Where SageMaker's runtime is, if not at AWS.", rich_help_panel=_TARGET)
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Of AWS's configuration.", rich_help_panel=_TARGET)] = None,
    variant: Annotated[str | None, typer.Option(help="TargetVariant of a SageMaker endpoint.", rich_help_panel=_TARGET)] = None,
    component: Annotated[str | None, typer.Option(help="InferenceComponentName.", rich_help_panel=_TARGET)] = None,
    shadow: Annotated[
        bool,
        typer.Option(
            "--shadow/--counted",
            help="Leave standby's metering of the endpoint untouched; needs an administrator's key.",
            rich_help_panel=_TARGET,
        ),
    ] = True,
    sampled: Annotated[
        bool, typer.Option("--trace-requests", help="Have the requests' spans kept (OpenTelemetry).", rich_help_panel=_TARGET)
    ] = False,
    slo_ttft: Annotated[str | None, typer.Option(help="Bound of the first token, e.g. 500ms.", rich_help_panel=_REPORT)] = None,
    slo_tpot: Annotated[str | None, typer.Option(help="Bound of the time per token.", rich_help_panel=_REPORT)] = None,
    slo_e2e: Annotated[str | None, typer.Option(help="Bound of the whole answer.", rich_help_panel=_REPORT)] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Exit with 1 where a smaller share was answered within the bounds, or the numbers are invalid.",
            rich_help_panel=_REPORT,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write summary and run here; - is standard output.", rich_help_panel=_REPORT)
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="With --json: every request, too.", rich_help_panel=_REPORT)
    ] = False,
    csv_file: Annotated[
        Path | None, typer.Option("--csv", help="Write one row per request here.", rich_help_panel=_REPORT)
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with plots here.", rich_help_panel=_REPORT)
    ] = None,
) -> None:
    """Put load on an endpoint, and measure what it answers.

    An open loop: requests go out when they are due, and latencies count from that moment, so that neither a slow target nor a
    slow generator hides anything. A target that is down, dies or answers rubbish is reported, with every failure in its class.

    Exit codes: 0 something was answered, 7 nothing was, 1 less than --fail-under, 130 stopped by Ctrl-C (once: send no more;
    twice: wait no more), 2 an option makes no sense.

    Examples:

    standby bench smol --burst 8

    standby bench smol --rate 5 --duration 1m --slo-ttft 500ms --html report.html

    standby bench http://127.0.0.1:8000/v1 --ladder 1,2,4,8 --step 20s --max-tokens 64 --json run.json

    standby bench sagemaker:my-endpoint --region eu-west-1 --trace azure_llm_2023_conv.csv --speed 10 --limit 200
    """
    session = session_of(ctx)
    plan = plan_of(
        LoadOptions(
            rate=rate,
            arrivals=arrivals,
            cv=cv,
            ladder=_rates(ladder),
            step_s=bounded_time("--step", step),
            burst=burst,
            trace=trace,
            function=function,
            speed=speed,
            duration_s=None if duration is None else bounded_time("--duration", duration),
            count=count,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            seed=seed,
        )
    )
    slo = Slo(ttft_s=_bound("--slo-ttft", slo_ttft), tpot_s=_bound("--slo-tpot", slo_tpot), e2e_s=_bound("--slo-e2e", slo_e2e))
    _check_files(json_file, csv_file, html_file)
    chosen = choose(
        target,
        TargetOptions(
            form=api,
            model=model,
            stream=stream,
            usage=usage,
            extra=_extra(extra),
            key=target_key,
            region=region,
            endpoint_url=endpoint_url,
            profile=profile,
            variant=variant,
            component=component,
            timeout_s=bounded_time("--timeout", timeout),
            shadow=shadow,
            sampled=sampled,
        ),
        session,
    )
    run = measure(chosen, plan, session, max_in_flight=max_in_flight)
    summary = summarize(run, slo)
    if session.json or json_file == _STDOUT:
        typer.echo(document(run, summary, samples=samples))
    else:
        print_summary(summary, _console())
    _write(run, summary, None if json_file == _STDOUT else json_file, csv_file, html_file, samples=samples)
    raise typer.Exit(exit_code(summary, fail_under, interrupted=run.interrupted))


def measure(chosen: Chosen, plan: Plan, session: Session, *, max_in_flight: int = MAX_IN_FLIGHT) -> Run:
    """Run the plan in an event loop of its own, with a progress bar on a terminal and with Ctrl-C ending the sending."""
    max_in_flight, notes = room_for(max_in_flight)
    # What was loaded to get here lives as long as the process: no collection need look at it while requests are due.
    gc.collect()
    gc.freeze()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner, _progress() as on_progress:
        run = runner.run(_measured(chosen, plan, session, max_in_flight, on_progress))
    return with_notes(run, *notes) if run.not_sent else run


def room_for(max_in_flight: int) -> tuple[int, tuple[str, ...]]:
    """Make room for so many connections; returns how many there can be, and a note where that is less.

    Without it the target would be blamed for the generator's own limit of open files.
    """
    wanted = max_in_flight + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < wanted:
            room = max(1, soft - _OTHER_FILES)
            return room, (f"this machine lets a process have {hard} open files: --max-in-flight is {room} (see `ulimit -Hn`)",)
    return max_in_flight, ()


async def _measured(chosen: Chosen, plan: Plan, session: Session, max_in_flight: int, on_progress: OnProgress | None) -> Run:
    stop, cut = asyncio.Event(), asyncio.Event()
    try:
        with _on_interrupt(lambda: cut.set() if stop.is_set() else stop.set()):
            run = await run_load(plan, chosen.target, max_in_flight=max_in_flight, on_progress=on_progress, stop=stop, cut=cut)
    finally:
        await chosen.target.close()
    run = with_notes(run, *chosen.notes)
    return await looked_up(run, session) if chosen.ours else run


async def looked_up(run: Run, session: Session) -> Run:
    """Return the run with what the gateway knows of it; Ctrl-C leaves that out: the run itself is measured already."""
    looking = asyncio.create_task(completed(run, session))
    with _on_interrupt(looking.cancel):
        await asyncio.wait({looking})
    if looking.cancelled():
        return with_notes(run, "stopped while the gateway was asked where slow requests waited")
    return looking.result()


@contextmanager
def _on_interrupt(act: Callable[[], object]) -> Iterator[None]:
    """Have Ctrl-C call ``act`` instead of ending everything with nothing to show."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals come to the main thread only
        return
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, act)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def exit_code(summary: Summary, fail_under: float | None, *, interrupted: bool) -> int:
    """Return the exit code that a summary deserves."""
    if interrupted:
        return INTERRUPTED
    if not summary.ok:
        return NOTHING_ANSWERED
    if fail_under is not None:
        due = summary.requests + summary.not_sent
        share = summary.ok / due if summary.goodput is None or summary.goodput.ratio is None else summary.goodput.ratio
        if share < fail_under or summary.generator.invalid:
            return FAILED_UNDER
    return 0


@contextmanager
def _progress() -> Iterator[OnProgress | None]:
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[open]} open, [red]{task.fields[failed]} failed"),
        TimeElapsedColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("asking", total=None, open=0, failed=0)

        def tell(now: Progress) -> None:
            done = now.ok + now.failed
            bar.update(task, total=now.planned, completed=done, open=now.in_flight, failed=now.failed, refresh=True)

        yield tell


def _console() -> Console:
    terminal = sys.stdout.isatty()
    return Console(highlight=False, width=None if terminal else _PIPE_WIDTH)


def _write(
    run: Run, summary: Summary, json_file: Path | None, csv_file: Path | None, html_file: Path | None, *, samples: bool
) -> None:
    if json_file is not None:
        write_json(run, summary, json_file, samples=samples)
    if csv_file is not None:
        write_csv(run, csv_file)
    if html_file is not None:
        write_bench_page(run, summary, html_file)


def _check_files(*paths: Path | None) -> None:
    """A run of an hour must not end at a folder that does not exist, or overwrite one of its files with the other."""
    given = [path.absolute() for path in paths if path is not None and path != _STDOUT]
    for path in given:
        if not path.parent.is_dir() or path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise InvalidInput(f"{path} cannot be written", remedy="give a path in a folder that exists and that you may write")
    if len(set(given)) < len(given):
        raise InvalidInput("two of --json, --csv and --html name the same file", remedy="give each its own")
    if _STDOUT in paths[1:]:
        raise InvalidInput("only --json can go to standard output", remedy="give --csv and --html paths of files")


def _rates(text: str | None) -> tuple[float, ...]:
    if text is None:
        return ()
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInput(f"--ladder {text!r} is not understood", remedy="give rates with commas, e.g. 1,2,4,8") from None


def _bound(option: str, text: str | None) -> float | None:
    return None if text is None else bounded_time(option, text)


def _extra(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        content = jsons.loads(text)
    except ValueError as error:
        raise InvalidInput(f"--extra is no JSON: {error}", remedy="""e.g. '{"ignore_eos": true}'""") from error
    if not isinstance(content, dict):
        raise InvalidInput("--extra is no JSON object", remedy="""e.g. '{"ignore_eos": true}'""")
    return content
