"""``standby bench`` as people and programs run it."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import pty
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from standby.bench.command import FAILED_UNDER, INTERRUPTED, NOTHING_ANSWERED
from standby.bench.files import COLUMNS, Document
from standby.bench.statistics import summarize
from standby.bench.table import print_summary
from standby.bench.values import Slo
from standby.cli.main import app
from support.bench_server import LoadedServer, loaded_server
from support.bench_values import a_run, a_sample
from support.waiting import until

LIMIT_S = 60.0
# Whoever waited for answers after the second Ctrl-C would do so for ten minutes.
PATIENT = """
from standby.bench.load import run_load
run_load.__kwdefaults__["grace_s"] = 600.0
from standby.cli.main import main
main()
"""


@pytest.fixture
async def server() -> AsyncIterator[LoadedServer]:
    async with loaded_server() as there:
        yield there


async def bench(*words: str) -> Any:
    """Run the command in a thread, as the server runs in this one."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["bench", *words])


@asynccontextmanager
async def started(*words: str, patient: bool = False, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the command as a process of its own; ``patient``: what it waits for when it is stopped may take long."""
    program = [sys.executable, "-c", PATIENT] if patient else [str(Path(sys.executable).with_name("standby"))]
    options = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **options}
    process = await asyncio.create_subprocess_exec(*program, "bench", *words, **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def is_pending(number: signal.Signals, pid: int) -> bool:
    """Whether a process has been sent a signal that it has not got yet."""
    (pending,) = re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(pending, 16) >> (number - 1) & 1)


async def test_a_run_is_told_in_tables_and_written_to_files(server: LoadedServer, tmp_path: Path) -> None:
    files = {kind: tmp_path / f"run.{kind}" for kind in ("json", "csv", "html")}
    outputs = [word for kind, path in files.items() for word in (f"--{kind}", str(path))]
    done = await bench(
        server.url, "--rate", "100", "--count", "20", "--max-tokens", "5", "--slo-e2e", "60s", "--samples", *outputs
    )
    assert done.exit_code == 0, done.output
    assert "20 requests in" in done.output
    assert "20 answered, none failed" in done.output
    assert "goodput 100.0%" in done.output
    assert re.search(r"^from cold +\n  first token +20 ", done.output, re.MULTILINE)
    document = Document.model_validate_json(files["json"].read_text())
    assert (document.summary.ok, document.summary.completion_tokens, len(document.run.samples)) == (20, 100, 20)
    assert document.summary.workload.parameters["rate"] == 100
    with files["csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert (tuple(rows[0]), len(rows)) == (COLUMNS, 20)
    assert files["html"].read_text().lower().startswith("<!doctype html>")
    assert {body["model"] for body in server.bodies()} == {"tiny"}


async def test_json_goes_to_standard_output_alone(server: LoadedServer) -> None:
    done = await bench(server.url, "--burst", "3", "--json", "-")
    document = Document.model_validate_json(done.stdout)
    assert (document.summary.ok, document.run.samples) == (3, ())


async def test_the_same_seed_asks_the_same(server: LoadedServer) -> None:
    words = (server.url, "--burst", "3", "--prompt-tokens", "5-50", "--seed", "7")
    await bench(*words)
    await bench(*words)
    bodies = [body["messages"] for body in server.bodies()]
    assert sorted(map(str, bodies[:3])) == sorted(map(str, bodies[3:]))


async def test_options_reach_the_body(server: LoadedServer) -> None:
    extra = '{"ignore_eos": true, "temperature": 0.5}'
    done = await bench(server.url, "-n", "1", "-r", "50", "-p", "hello", "--no-usage", "--model", "other", "--extra", extra)
    assert done.exit_code == 0
    (body,) = server.bodies()
    assert (body["model"], body["ignore_eos"], body["temperature"]) == ("other", True, 0.5)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert "stream_options" not in body


async def test_a_ladder_has_a_row_for_each_step(server: LoadedServer) -> None:
    done = await bench(server.url, "--ladder", "20,60", "--step", "500ms")
    assert done.exit_code == 0
    assert re.search(r"^20/s +\d+ +0 ", done.output, re.MULTILINE)
    assert re.search(r"^60/s +\d+ +0 ", done.output, re.MULTILINE)


async def test_a_target_that_is_down_gives_a_report_and_an_exit_code(tmp_path: Path) -> None:
    page = tmp_path / "run.html"
    done = await bench("http://127.0.0.1:1/v1", "--burst", "2", "--html", str(page))
    assert done.exit_code == NOTHING_ANSWERED
    assert re.search(r"connect +2 +.*refused", done.output)
    assert page.exists()


@pytest.mark.parametrize("prompt", ["rubbish", "page", "status 503", "cut", "error", "nothing", "reset"])
async def test_a_target_that_answers_rubbish_gives_a_report(server: LoadedServer, prompt: str) -> None:
    done = await bench(server.url, "--burst", "2", "--prompt", prompt)
    assert done.exit_code == NOTHING_ANSWERED
    assert "0 answered, 2 failed" in done.output
    assert "Traceback" not in done.output


async def test_fail_under_makes_a_gate_of_it(server: LoadedServer) -> None:
    assert (await bench(server.url, "--burst", "1", "--fail-under", "0.9", "--slo-e2e", "0.001ms")).exit_code == FAILED_UNDER
    assert (await bench(server.url, "-r", "1", "-n", "1", "--fail-under", "0", "--slo-e2e", "60s")).exit_code in (
        0,
        FAILED_UNDER,
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--burst", "2", "--ladder", "1,2"),
        ("--ladder", "1,x"),
        ("--duration", "-1s"),
        ("--duration", "forever"),
        ("--timeout", "0"),
        ("--extra", "{"),
        ("--extra", "[1]"),
        ("--max-tokens", "few"),
        ("--trace", "/absent.csv"),
        ("--html", "/absent/folder/run.html"),
        ("--arrivals", "gamma", "--cv", "0"),
        ("--slo-ttft", "soon"),
        ("--slo-ttft", "forever"),
        ("--slo-tpot", "0"),
        ("--csv", "-"),
        ("--json", "-", "--html", "-"),
        ("--json", "run.out", "--csv", "./run.out"),
        ("--burst", "2", "--count", "3"),
        ("--rate", "1e-9", "--count", "2"),
        ("--rate", "0"),
    ],
)
async def test_options_that_make_no_sense_are_said_before_any_load(server: LoadedServer, words: tuple[str, ...]) -> None:
    done = await bench(server.url, *words)
    assert done.exit_code == 2, done.output
    assert not server.asked


async def test_ctrl_c_ends_the_sending_and_reports_what_is_there(server: LoadedServer, tmp_path: Path) -> None:
    written = tmp_path / "run.json"
    async with started(server.url, "--rate", "20", "--duration", "10m", "--json", str(written)) as process:
        await until(lambda: len(server.asked) >= 5, within_s=LIMIT_S)
        process.send_signal(signal.SIGINT)
        out, errors = await process.communicate()
    assert process.returncode == INTERRUPTED, errors
    assert b"Traceback" not in errors
    assert b"stopped before its end" in out
    summary = json.loads(written.read_text())["summary"]
    assert summary["ok"] == len(server.asked)


async def test_a_second_ctrl_c_waits_for_nobody(server: LoadedServer) -> None:
    async with started(server.url, "--burst", "2", "--prompt", "silence", patient=True) as process:
        await until(lambda: len(server.asked) == 2, within_s=LIMIT_S)
        process.send_signal(signal.SIGINT)
        await until(lambda: not is_pending(signal.SIGINT, process.pid))  # two signals at once are one
        process.send_signal(signal.SIGINT)
        out, errors = await asyncio.wait_for(process.communicate(), LIMIT_S)
    assert (process.returncode, b"Traceback" in errors) == (INTERRUPTED, False)
    assert b"2 requests were still unanswered" in out


def test_tables_fit_into_eighty_columns() -> None:
    """No number is broken in two, whatever the rungs are called and however long requests take."""
    phases = (("placed", 10.0), ("loaded", 95_000.0))
    samples = [
        a_sample(at, e2e_s=at * 7.7 + 0.9996, ttft_s=0.1004, sent_s=at + 0.002, rung="asleep", waited_s=0.1, phases_ms=phases)
        for at in range(60)
    ]
    summary = summarize(
        a_run([*samples, a_sample(61.0, error="5xx", message="word " * 50)], steps=("1.25/s",)), Slo(ttft_s=2.0)
    )
    console = Console(width=80, record=True, file=io.StringIO())
    print_summary(summary, console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    assert next(line for line in lines if line.startswith("first token")).count("ms") == 6
    assert not [line for line in lines if "…" in line or line.strip() in ("ms", "s")]


async def test_a_terminal_has_a_progress_bar(server: LoadedServer) -> None:
    ours, theirs = pty.openpty()
    try:
        async with started(server.url, "--rate", "50", "-n", "20", stderr=theirs) as process:
            os.close(theirs)
            out, _ = await process.communicate()
        drawn = await asyncio.to_thread(os.read, ours, 1 << 16)
    finally:
        os.close(ours)
    assert process.returncode == 0
    assert b"20 answered" in out
    assert b"asking" in drawn
