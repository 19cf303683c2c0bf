"""``standby logs --follow`` against a real control API and a node's own answers over a real bus."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from standby.bus.subjects import logs_subject
from standby.domain.engine_logs import EngineLog, LogAnswer
from standby.domain.instance import InstanceState
from standby.warm_pool.engine_logs import EngineLogs
from standby.warm_pool.managed import Managed
from support.command import standby
from support.control_api import ONE, Control

LIMIT_S = 30


def managed(name: str, state: InstanceState = InstanceState.READY) -> Managed:
    """An instance, as far as its log is asked for."""
    assignment = SimpleNamespace(tenant=ONE, endpoint="chat")
    return cast("Managed", SimpleNamespace(id=name, assignment=assignment, life=SimpleNamespace(state=state)))


@asynccontextmanager
async def followed(control: Control, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The command as a process of its own; it is interrupted in the end, if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "standby.cli.main", "--url", control.url, "logs", "chat", "-f", *more),
        env={**os.environ, "STANDBY_API_KEY": control.keys["one"]},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_line(process: asyncio.subprocess.Process, wanted: str) -> list[str]:
    """Return the lines up to the wanted one."""
    found: list[str] = []
    assert process.stdout is not None
    while wanted not in found:
        line = await process.stdout.readline()
        assert line, found
        found.append(line.decode().rstrip("\n"))
    return found


async def test_lines_come_over_lives_and_instances_until_ctrl_c(control: Control, tmp_path: Path) -> None:
    await control.register()
    await control.create()
    await control.place(InstanceState.READY)
    log, here = tmp_path / "chat-i1.log", {"chat-i1": managed("chat-i1")}
    log.write_text("old\nhalf")
    subscription = await EngineLogs("n1", here, tmp_path).serve(control.context.bus)
    async with followed(control, "-n", "2") as process:
        assert (await until_line(process, "half"))[-2:] == ["old", "half"]
        with log.open("a") as stream:
            stream.write(" and whole token=hf_ABCDEFGHIJKLMNOP\n")
        assert await until_line(process, "half and whole token=****") == ["half and whole token=****"]
        with log.open("a") as stream:
            stream.write("dying")
        log.rename(tmp_path / "chat-i1.previous.log")
        log.write_text("second life\n")
        lines = await until_line(process, "second life")
        assert lines[:2] == ["dying", ""]
        assert lines[2].startswith("==> chat-i1 on n1: ready")
        assert lines[2].endswith("; its engine was started anew")
        process.send_signal(signal.SIGINT)
        _, stderr = await process.communicate()
    await subscription.unsubscribe()
    assert (process.returncode, stderr) == (130, b"")


async def test_marks_are_checked_and_a_life_that_is_over_is_not_followed(control: Control, tmp_path: Path) -> None:
    await control.register()
    await control.create()
    await control.place(InstanceState.READY)
    (tmp_path / "chat-i1.log").write_text("line\n")
    subscription = await EngineLogs("n1", {"chat-i1": managed("chat-i1")}, tmp_path).serve(control.context.bus)
    path = "/api/v1/endpoints/chat/logs?after="
    everything = (await control.call("one", "GET", path)).json()["instances"][0]
    malformed = await control.call("one", "GET", f"{path}chat-i1")
    wrong = (await control.call("one", "GET", f"{path}chat-i1:nonsense")).json()
    await subscription.unsubscribe()
    both = await standby(control, "logs", "chat", "--follow", "--previous")
    assert (everything["lines"], everything["renewed"]) == (["line"], True)
    assert malformed.status_code == 400
    assert "'nonsense' is no mark of a log" in wrong["failures"][0]["message"]
    assert (both.exit_code, "does not go on" in both.stderr) == (2, True)


async def test_a_node_that_cannot_follow_does_not_repeat_itself(control: Control) -> None:
    """One of an earlier version does not know the question, and would send the same last lines each time."""
    await control.register()
    await control.create()
    await control.place(InstanceState.READY)
    log = EngineLog(instance="chat-i1", state=InstanceState.READY, lines=("again and again",))

    async def answer(_subject: str, _payload: bytes) -> bytes:
        return LogAnswer(node="n1", logs=(log,)).encode()

    subscription = await control.context.bus.serve(logs_subject("n1"), answer)
    (told,) = (await control.call("one", "GET", "/api/v1/endpoints/chat/logs?after=")).json()["instances"]
    await subscription.unsubscribe()
    assert (told["lines"], "earlier version" in told["missing"]) == ([], True)
