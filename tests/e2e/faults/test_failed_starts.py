"""Eight ways of failing to start, each seen through every command that a person would try (field case B60)."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from standby.cli.main import app
from support.deployment import DEADLINE_S, Deployment
from support.fake_engine_spec import Option

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "hf_ABCDEFGHIJKLMNOPQRST"
SUMMARY = "RuntimeError: Engine core initialization failed. See root cause above."


def trace(raised: str) -> str:
    return f'Traceback (most recent call last):\n  File "engine.py", line 1, in <module>\n    start()\n{raised}'


@dataclass(frozen=True)
class Way:
    """How an engine fails: what it writes, how it ends, and what must be said of both."""

    log: str
    ends: int
    words: str
    first: str


WAYS: dict[str, Way] = {
    "missing-file": Way(
        trace("FileNotFoundError: [Errno 2] No such file or directory: 'tokenizer.json'"),
        1,
        "exit code 1",
        "FileNotFoundError: [Errno 2] No such file or directory: 'tokenizer.json'",
    ),
    "bad-dtype": Way(
        "error: unknown dtype 'float12', choose from float32, float16, bfloat16", 2, "exit code 2", "unknown dtype 'float12'"
    ),
    "socket-taken": Way(
        trace("OSError: [Errno 98] Address already in use"), 1, "exit code 1", "OSError: [Errno 98] Address already in use"
    ),
    "out-of-memory": Way(
        "mapping 91 GiB of weights: error: cannot allocate memory",
        137,
        "exit code 137 (a process of the engine was killed by SIGKILL): usually out of memory",
        "cannot allocate memory",
    ),
    "bus-error": Way(
        "error: reading past the end of model.gguf",
        -signal.SIGBUS,
        "killed by signal 7 (SIGBUS): weights file vanished under the engine",
        "reading past the end of model.gguf",
    ),
    "missing-library": Way(
        "engine: error while loading shared libraries: libcudart.so.13: cannot open shared object file: No such file",
        127,
        "exit code 127",
        "libcudart.so.13",
    ),
    "device-string": Way(
        trace("ValueError: invalid literal for int() with base 10: 'MIG-7a1e2b3c-0000-5000-8000-9d4e5f6a7b8c'")
        + "\nValueError: Model architectures ['LlamaForCausalLM'] failed to be inspected.",
        1,
        "exit code 1",
        "ValueError: invalid literal for int() with base 10: 'MIG-7a1e2b3c-0000-5000-8000-9d4e5f6a7b8c'",
    ),
    "gated": Way(
        trace("OSError: You are trying to access a gated repo. Accept the licence of org/model first."),
        1,
        "exit code 1",
        "OSError: You are trying to access a gated repo.",
    ),
}


async def standby(there: Deployment, *words: str) -> Any:
    """Run a command of the administrator in a thread."""
    arguments = ["--url", there.url(), "--key", there.stack.secrets.admin_key, *words]
    return await asyncio.to_thread(CliRunner().invoke, app, arguments)


def knobs_of(way: Way) -> dict[str, Option]:
    return {"fail_start": way.ends, "fail_message": f"loading with token={SECRET}\n{way.log}\n{SUMMARY}"}


@pytest.mark.parametrize("name", WAYS)
async def test_a_failed_start_says_the_same_everywhere(there: Deployment, name: str) -> None:
    """Phase, exit in words, the first error line and not the summary, the tail without secrets, node and next try."""
    way = WAYS[name]
    model = await there.model(knobs_of(way))

    asked = time.time()
    waited = await standby(there, "endpoints", "create", name, "--model", model, "--min-ready", "1", "--wait")
    shown = await standby(there, "endpoints", "show", name)
    logged = await standby(there, "logs", name)
    status = await standby(there, "status")
    again = await standby(there, "endpoints", "wait", name, "--timeout", "60s")
    failure = (await there.show(name))["failure"]
    deleted = await standby(there, "endpoints", "delete", name, "--wait")
    gone = await standby(there, "logs", name)

    assert (waited.exit_code, again.exit_code) == (9, 9), waited.output
    for said in (waited.stderr, again.stderr, shown.stdout, logged.stdout, status.stdout):
        assert way.words in said, said
        assert way.first in said, said
        assert f"it was: {failure['instance']} on node n1" in said
        assert re.search(r"next try: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", said), said
        assert SECRET not in said
    for said in (waited.stderr, shown.stdout, logged.stdout):
        assert "loading with token=****" in said
        assert SUMMARY in said, "the tail goes to the end"
    assert f"standby endpoints retry {name}" in waited.stderr
    assert failure["reason"].startswith("engine ended while it ")
    assert way.first in failure["first_error"]
    assert failure["next_retry_at"] > asked
    assert (deleted.exit_code, gone.exit_code) == (0, 4), deleted.output


async def test_an_interrupted_wait_leaves_a_whole_endpoint(there: Deployment) -> None:
    """Ctrl-C ends the wait alone: the endpoint is there, says what it does, and can be deleted like any other."""
    model = await there.model({"start_delay_s": 600})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standby.cli.main", "--url", there.url(), "--key", there.stack.secrets.admin_key,
        "endpoints", "create", "slow", "--model", model, "--min-ready", "1", "--wait",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    await there.happened(lambda: there.spawns("slow") == 1, "slow starts")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_S):
        _, stderr = await process.communicate()

    shown = await there.until_state("slow", "starting")
    logged = await standby(there, "logs", "slow")
    retried = await standby(there, "endpoints", "wait", "slow", "--timeout", "50ms")
    deleted = await standby(there, "endpoints", "delete", "slow", "--wait")

    assert process.returncode == 130, stderr
    assert b"Traceback" not in stderr
    assert (shown["status"], shown["failure"]) == ("InService", None)
    assert (logged.exit_code, retried.exit_code, deleted.exit_code) == (0, 7, 0), deleted.output
    assert "starting the engine" in logged.stdout
    assert not there.engines()


async def test_the_log_of_the_life_before_is_kept(there: Deployment) -> None:
    """A tenant sees only the logs of endpoints of its own; ``--previous`` is what the engine said before its last restart."""
    await there.endpoint("again", knobs={"fail_start": 3, "fail_message": "error: no luck"}, min_ready=1)
    await there.happened(lambda: there.spawns("again") >= 2, "it is tried again")
    await there.until_status("again", "Failed")
    (instance,) = (await there.show("again"))["instances"]

    previous = json.loads((await standby(there, "logs", "again", "--previous", "--json")).stdout)
    words = ("logs", "again", "--previous", "-n", "0", "--instance", instance["id"], "--json")
    few = json.loads((await standby(there, *words)).stdout)
    other = await standby(there, "logs", "again", "--instance", "nobody")
    made = await there.api("POST", "/keys", {"name": "t", "tenant": "123456789012"})
    foreign = await there.call("GET", "/api/v1/endpoints/again/logs", headers={"authorization": f"Bearer {made['api_key']}"})
    await there.api("DELETE", "/endpoints/again")

    assert previous["instances"][0]["lines"] == ["error: no luck"]
    assert (few["instances"][0]["lines"], few["instances"][0]["cut"]) == ([], True)
    assert (other.exit_code, instance["id"] in other.stderr) == (4, True)
    assert foreign.status_code == 404
