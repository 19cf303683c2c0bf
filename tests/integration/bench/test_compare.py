"""``standby compare`` as a user runs it, on servers that answer, die, or are interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.bench_server import LoadedServer, loaded_server
from support.user import BIN, environment
from support.waiting import until

LIMIT_S = 60.0
QUICK = ("--requests", "24", "--rate", "60", "--blocks", "2", "--max-tokens", "3")


@dataclass
class Compare:
    """The running command; ``lines`` is what it has said of its steps so far."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)

    async def until_said(self, words: str) -> None:
        """Read on until a line holds ``words``."""
        assert self.process.stderr is not None
        async with asyncio.timeout(LIMIT_S):
            while not (self.lines and words in self.lines[-1]):
                line = await self.process.stderr.readline()
                assert line, self.lines
                self.lines.append(line.decode())

    async def ended(self, code: int) -> str:
        """Return what it printed, once it has ended with ``code``."""
        async with asyncio.timeout(LIMIT_S):
            out, err = await self.process.communicate()
        self.lines += err.decode().splitlines()
        assert self.process.returncode == code, (out.decode(), self.lines)
        assert "Traceback" not in err.decode()
        return out.decode()


@asynccontextmanager
async def compare(tmp_path: Path, *words: str) -> AsyncIterator[Compare]:
    """Start the command; nothing of it is left at the end."""
    process = await asyncio.create_subprocess_exec(
        BIN / "standby", "compare", *words,
        env={**environment(tmp_path / "state"), "COLUMNS": "160"},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Compare(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
async def servers() -> AsyncIterator[tuple[LoadedServer, LoadedServer]]:
    async with loaded_server() as a, loaded_server() as b:
        yield a, b


def prompts(server: LoadedServer) -> list[str]:
    return [str(body["messages"][0]["content"]) for body in server.bodies()]


def table_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in document["table"]}


async def test_both_targets_get_the_same_requests_by_turns(servers: tuple[LoadedServer, LoadedServer], tmp_path: Path) -> None:
    a, b = servers
    page = tmp_path / "page.html"
    words = (
        a.url,
        b.url,
        *QUICK,
        "--idle",
        "10ms",
        "--cold",
        "3",
        "--burst",
        "5",
        "--bursts",
        "2",
        "--json",
        "--html",
        str(page),
    )
    async with compare(tmp_path, *words) as running:
        found = json.loads(await running.ended(0))

    assert prompts(a) == prompts(b)
    assert len(prompts(a)) == found["a"]["sent"] == 3 + 2 * 5 + 2 + 24 + 1
    rows = table_of(found)
    assert rows["failed, warm"]["a"]["text"] == "0 of 24 (0.0%)"
    assert rows["its phases, medians"]["b"]["text"].startswith("placed 1.0 ms, loaded 12 ms, first token")
    assert rows["0 to 5: all served"]["a"]["note"] == "median of 2"
    assert rows["5xx while scaling in"]["a"]["note"] == "nothing says when it scales in"
    assert rows["price of 1,000 requests"]["a"]["known"] == "not measured"
    assert rows["how it was made cold"]["a"]["text"] == "left alone for 0.01 s; whether it was cold then, nobody says"
    blocks = [line.partition(" on ")[2] for line in running.lines if line.startswith("warm block")]
    assert [url for line in blocks for url in (a.url, b.url) if line.startswith(url)] == [a.url, b.url, b.url, a.url]
    assert "Side by side" in page.read_text()


async def test_without_a_time_to_be_cold_nothing_from_zero_is_measured(
    servers: tuple[LoadedServer, LoadedServer], tmp_path: Path
) -> None:
    async with compare(tmp_path, servers[0].url, servers[1].url, *QUICK) as running:
        said = await running.ended(0)

    assert "not measured: nothing says when it is cold; --idle gives a time after" in " ".join(said.split())
    assert "measured, of 24" in said


async def test_a_target_that_dies_on_the_way_is_told_and_the_other_one_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    async with AsyncExitStack() as stack, loaded_server() as b:
        doomed = AsyncExitStack()
        a = await stack.enter_async_context(_closed_by(doomed))
        words = (a.url, b.url, "--requests", "80", "--rate", "20", "--blocks", "2", "--only", "warm", "--html", str(page))
        async with compare(tmp_path, *words) as running:
            await running.until_said(f"warm block 1 of 2 on {a.url}")
            await doomed.aclose()
            said = await running.ended(7)

    assert f"lost: A ({a.url}) was lost" in said
    assert "during warm blocks: connect:" in said
    assert "measured, of 80" in said
    assert f"A ({a.url}) was lost" in page.read_text()


@asynccontextmanager
async def _closed_by(other: AsyncExitStack) -> AsyncIterator[LoadedServer]:
    """Yield a server that ends when ``other`` is closed."""
    server = await other.enter_async_context(loaded_server())
    try:
        yield server
    finally:
        await other.aclose()


async def test_a_target_that_was_never_there_is_told(servers: tuple[LoadedServer, LoadedServer], tmp_path: Path) -> None:
    words = ("http://127.0.0.1:9/v1", servers[1].url, *QUICK, "--idle", "10ms", "--model", "tiny", "--json")
    async with compare(tmp_path, *words) as running:
        found = json.loads(await running.ended(7))

    assert found["a"]["death"]["act"] == "cold starts"
    assert table_of(found)["first token, P50, warm"]["a"]["note"].startswith("lost after")
    assert table_of(found)["failed, warm"]["b"]["text"] == "0 of 24 (0.0%)"


async def test_ctrl_c_gives_what_there_is(servers: tuple[LoadedServer, LoadedServer], tmp_path: Path) -> None:
    a, b = servers
    words = (a.url, b.url, "--requests", "4000", "--rate", "50", "--blocks", "400", "--only", "warm", "--json")
    async with compare(tmp_path, *words) as running:
        await running.until_said(f"warm block 2 of 400 on {a.url}")
        running.process.send_signal(signal.SIGINT)
        found = json.loads(await running.ended(130))

    assert found["interrupted"] is True
    assert len(found["a"]["samples"]) >= 20
    assert table_of(found)["cold start to the first token"]["a"]["note"] == "not asked for"


async def test_ctrl_c_while_the_baseline_is_packing_ends_all_at_once(tmp_path: Path) -> None:
    """Nothing was measured, so nothing is told; the baseline's program goes, too."""
    large = tmp_path / "large.gguf"
    with large.open("wb") as file:
        file.truncate(100_000_000_000)  # packing it takes far longer than this test waits
    async with compare(tmp_path, "http://127.0.0.1:9/v1", f"container:{large}", "--model", "m", "--json") as running:
        own = psutil.Process(running.process.pid)

        async def packing() -> bool:
            return any("standby.bench.baseline" in words_of(child) for child in own.children())

        await until(packing, "the baseline's program runs", LIMIT_S)
        started = own.children()
        running.process.send_signal(signal.SIGINT)
        assert await running.ended(130) == ""
    await until(lambda: not any(map(is_alive, started)), "nothing of it is left", LIMIT_S)


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that is gone."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs; a zombie does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("http://127.0.0.1:9/v1", "container:/no/such.gguf"), "there is no file"),
        (("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--rung", "warm"), "--rung 'warm' is none of"),
        (("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--only", "hot"), "--only: there is no 'hot'"),
        (("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--rate", "0"), "rate"),
        (("http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1", "--html", "/no/such/page.html"), "cannot be written"),
    ],
)
async def test_what_makes_no_sense_is_said_before_anything_starts(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    async with compare(tmp_path, *words) as running:
        assert await running.ended(2) == ""

    assert said in " ".join(running.lines)
