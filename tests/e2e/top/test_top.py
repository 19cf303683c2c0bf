"""The console's feed and ``standby top`` before a whole deployment: real requests, two gateways, one that dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import select
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from standby.cli.client import Client
from standby.cli.connection import Connection
from standby.cli.main import app
from standby.cli.top.app import Top
from support.deployment import DEADLINE_S, Deployment, deployment
from support.waiting import until

Json = dict[str, Any]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Deployment]:
    """Two gateways, and an endpoint ``e`` that has answered three streamed questions through the first one."""
    async with deployment(tmp_path_factory.mktemp("deployment"), gateways=2) as running:
        await running.endpoint("e")
        for _ in range(3):
            assert (await running.chat("e", stream=True)).status_code == 200
        yield running


async def standby(there: Deployment, *words: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["--url", there.url(), "--key", key_of(there), *words])


def key_of(there: Deployment) -> str:
    return str(there.stack.headers()["authorization"].removeprefix("Bearer "))


async def endpoint(there: Deployment, gateway: int = 0, name: str = "e") -> Json:
    rows = (await there.api("GET", "/overview", gateway=gateway))["endpoints"]
    return next((dict(row) for row in rows if row["name"] == name), {})


async def first_answers(there: Deployment) -> Json:
    """The overview once it has the three answers, their climb and the decision behind it: each comes by its own way."""
    found: Json = {}

    async def told() -> bool:
        found.update(await there.api("GET", "/overview"))
        (row,) = [one for one in found["endpoints"] if one["name"] == "e"] or [{"requests": 0}]
        return bool(row["requests"] == 3 and found["activations"] and found["decisions"])

    await until(told, "all of it is told", DEADLINE_S)
    return found


async def test_requests_tokens_and_first_tokens_are_counted(there: Deployment) -> None:
    overview = await first_answers(there)
    row = await endpoint(there)

    assert (row["rung"], row["errors"], sum(row["spark"])) == ("ready", 0, 3)
    assert row["tokens_per_s"] > 0
    assert 0 < row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]
    assert overview["totals"]["requests"] == 3


async def test_the_climb_is_there_with_its_phases_and_the_decision_with_its_reason(there: Deployment) -> None:
    overview = await first_answers(there)

    (activation,) = overview["activations"]
    assert (activation["endpoint"], activation["node"], activation["from_rung"], activation["ok"]) == ("e", "n1", "cold", True)
    assert activation["total_ms"] == pytest.approx(sum(activation["phases_ms"].values()), abs=0.01)
    assert overview["decisions"][-1]["action"] == "assign"
    assert "wait" in overview["decisions"][-1]["reason"]
    assert overview["events"]


async def test_memory_that_is_held_is_set_against_always_on(there: Deployment) -> None:
    async def held() -> bool:
        return bool((await there.api("GET", "/overview"))["savings"]["held_gb_s"] > 0)

    await until(held, "it is measured", DEADLINE_S)
    savings = (await there.api("GET", "/overview"))["savings"]

    assert 0 < savings["held_gb_s"] <= savings["always_on_gb_s"]
    assert savings["sagemaker_serverless_usd"] > 0


async def test_what_runs_at_the_other_gateway_is_seen_here(there: Deployment) -> None:
    """What runs and waits is all gateways'; requests and errors are this one's."""
    await there.endpoint("slow", knobs={"token_delay_ms": 1000})
    client = await there.post("/endpoints/slow/invocations", {"messages": [{"role": "user", "content": "x"}]}, gateway=1)

    async def seen() -> bool:
        row = await endpoint(there, name="slow")
        return bool(row and row["in_flight"] + row["queued"] == 1)

    async def counted() -> bool:
        return bool((await endpoint(there, gateway=1, name="slow"))["requests"] == 1)

    await until(seen, "it runs", DEADLINE_S)
    assert (await client.answer()).status == 200
    await until(counted, "it is counted", DEADLINE_S)
    assert (await endpoint(there, name="slow"))["requests"] == 0


async def test_one_screen_is_printed(there: Deployment) -> None:
    shown = await standby(there, "top", "--once")

    assert shown.exit_code == 0, shown.output
    for words in ("000000000000 at gateway/", "■■■■■ ready", "ready, 0 of 4 slots busy", "HOST MEMORY", "n1", "assign"):
        assert words in shown.stdout
    assert "\x1b" not in shown.stdout


async def test_programs_get_the_overview_as_it_is(there: Deployment) -> None:
    for words in (("top", "--once", "--json"), ("--json", "top")):
        shown = await standby(there, *words)

        assert shown.exit_code == 0, shown.output
        assert {row["name"] for row in json.loads(shown.stdout)["endpoints"]} >= {"e"}


async def test_without_a_terminal_it_says_what_to_do(there: Deployment) -> None:
    shown = await standby(there, "top")

    assert shown.exit_code == 2
    assert "--once" in shown.stderr


async def test_another_tenant_sees_nothing_of_it(there: Deployment) -> None:
    made = await there.api("POST", "/tenants", {"id": "222222222222"})
    key = await there.api("POST", "/keys", {"name": "k", "tenant": made["id"]})
    shown = await asyncio.to_thread(
        CliRunner().invoke, app, ["--url", there.url(), "--key", key["api_key"], "top", "--once", "--json"]
    )

    assert shown.exit_code == 0, shown.output
    overview = json.loads(shown.stdout)
    assert [overview[part] for part in ("endpoints", "instances", "nodes", "activations", "decisions", "events")] == [[]] * 6
    assert overview["savings"]["held_gb_s"] == 0


@pytest.mark.parametrize("ending", ["q", "\x03", "SIGTERM"])
async def test_it_leaves_the_terminal_as_it_was(there: Deployment, ending: str) -> None:
    command = ["--url", there.url(), "--key", key_of(there), "top"]
    with terminal(24, 80) as (ours, theirs):
        before = termios.tcgetattr(theirs)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "standby.cli.main", *command, stdin=theirs, stdout=theirs, stderr=theirs
        )
        shown = await asyncio.to_thread(read_until, ours, b"LAST MINUTE")
        if ending == "SIGTERM":
            process.terminate()
        else:
            os.write(ours, ending.encode())
        shown += await asyncio.to_thread(read_until, ours, b"\x1b[?1049l")
        code = await asyncio.wait_for(process.wait(), DEADLINE_S)

        assert code == 0, shown
        assert termios.tcgetattr(theirs) == before


@contextlib.contextmanager
def terminal(lines: int, columns: int) -> Iterator[tuple[int, int]]:
    """A pseudo terminal of this size, as two descriptors."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (lines, columns))
    try:
        yield ours, theirs
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(descriptor: int, mark: bytes) -> bytes:
    """Read what a program shows until ``mark`` is in it."""
    shown, end = b"", time.monotonic() + DEADLINE_S
    while mark not in shown:
        assert time.monotonic() < end, shown
        if select.select([descriptor], [], [], 0.1)[0]:
            shown += os.read(descriptor, 65536)
    return shown


async def test_the_live_screen_outlives_its_gateway(there: Deployment) -> None:
    """It says that the gateway is away, shows what it knew, and goes on by itself when it is back."""
    top = Top(await there.api("GET", "/overview"), lambda: Client(Connection(there.url(), key_of(there))), 0.25)

    async with top.run_test(size=(170, 45)) as pilot:
        await until(lambda: top.picture.facts["at"] > 0 and top._lost is None, "it is there", DEADLINE_S)
        known, before = set(top.picture.endpoints), top.picture.facts["since"]
        killing = asyncio.create_task(there.kill_gateway(0))
        await until(lambda: top._lost is not None, "it is away", DEADLINE_S)
        known_while_away = set(top.picture.endpoints)
        await killing
        await until(lambda: top._lost is None and top.picture.facts["since"] != before, "it is back", DEADLINE_S)
        await pilot.press("q")

    assert known_while_away == known != set()
    assert top.return_code == 0
