"""Engines' logs from afar: asked of their nodes over a real bus, bounded, masked, and of the caller's own endpoints only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from standby.domain.endpoint import Failure
from standby.domain.engine_logs import MOST_LINES, LogOrder
from standby.domain.instance import InstanceState
from standby.warm_pool.engine_logs import ANSWER_BYTES, EngineLogs
from standby.warm_pool.managed import Managed
from support.command import standby
from support.control_api import ONE, TWO, Control


def managed(name: str, tenant: str = ONE, endpoint: str = "chat") -> Managed:
    """An instance, as far as its log is asked for."""
    assignment = SimpleNamespace(tenant=tenant, endpoint=endpoint)
    return cast("Managed", SimpleNamespace(id=name, assignment=assignment, life=SimpleNamespace(state=InstanceState.FAILED)))


@asynccontextmanager
async def a_node(control: Control, folder: Path, instances: Mapping[str, Managed]) -> AsyncIterator[EngineLogs]:
    logs = EngineLogs("n1", instances, folder)
    subscription = await logs.serve(control.context.bus)
    try:
        yield logs
    finally:
        await subscription.unsubscribe()


async def test_the_end_of_the_log_is_shown_below_the_failure(control: Control, tmp_path: Path) -> None:
    """The failure's own tail is not printed twice; colours and other control characters never reach the terminal."""
    await control.register()
    await control.create()
    failure = Failure(reason="exit code 1", first_error="no luck", log_tail=("line 98",), node="n1", instance="chat-i1", at=1.0)
    await control.place(InstanceState.FAILED, failure=failure)
    await control.fail("chat", failure)
    lines = [*(f"line {number}" for number in range(99)), "\x1b[31mred\x1b[0m token=hf_ABCDEFGHIJKLMNOP\x07"]
    (tmp_path / "chat-i1.log").write_text("\n".join(lines) + "\n")
    async with a_node(control, tmp_path, {"chat-i1": managed("chat-i1")}):
        shown = await standby(control, "logs", "chat", "--lines", "2")
        whole = json.loads((await standby(control, "logs", "chat", "--lines", str(MOST_LINES), "--json")).stdout)
        before = await standby(control, "logs", "chat", "--previous")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "endpoint chat is Failed, failed: exit code 1",
        "first error: no luck",
        "it was: chat-i1 on node n1",
        "",
        "==> chat-i1 on n1: failed: exit code 1",
        "(earlier lines are left out: --lines)",
        "line 98",
        "red token=****",
    ]
    assert (len(whole["instances"][0]["lines"]), whole["instances"][0]["cut"]) == (100, False)
    assert "(no life before this one)" in before.stdout


async def test_a_silent_node_is_named_and_the_failure_is_told_all_the_same(control: Control) -> None:
    await control.register()
    await control.create()
    await control.place(InstanceState.READY)
    await control.fail("chat", Failure(reason="exit code 7", log_tail=("the end",)))
    shown = await standby(control, "logs", "chat")
    assert shown.exit_code == 7
    assert "exit code 7" in shown.stdout
    assert "the end" in shown.stdout
    assert "node 'n1' does not answer" in shown.stderr


async def test_a_node_answers_with_the_asked_endpoints_logs_only(tmp_path: Path) -> None:
    """Also when a tenant's endpoint has another one's name; an answer fits into a message whatever the logs hold."""
    names = {"a": ONE, "b": ONE, "c": TWO}
    for name in names:
        (tmp_path / f"{name}.log").write_text("\n".join('"' * 3000 for _ in range(MOST_LINES)))
    logs = EngineLogs("n1", {name: managed(name, tenant) for name, tenant in names.items()}, tmp_path)
    answer = await logs.read(LogOrder(tenant=ONE, endpoint="chat", lines=MOST_LINES))
    assert [log.instance for log in answer.logs] == ["a", "b"]
    assert all(log.cut and log.lines for log in answer.logs)
    assert ANSWER_BYTES < len(answer.encode()) < 1024 * 1024
    assert (await logs.read(LogOrder(tenant=TWO, endpoint="other"))).logs == ()


async def test_bytes_that_are_no_text_fit_into_an_answer_too(tmp_path: Path) -> None:
    """Each of them becomes three on its way."""
    (tmp_path / "a.log").write_bytes((b"\xff" * 1000 + b"\n") * 2000)
    logs = EngineLogs("n1", {"a": managed("a")}, tmp_path)
    answer = await logs.read(LogOrder(tenant=ONE, endpoint="chat", lines=MOST_LINES))
    assert len(answer.logs[0].lines) > 100
    assert answer.logs[0].cut
    assert len(answer.encode()) < 512 * 1024


async def test_no_endpoint_no_log(control: Control) -> None:
    await control.register(who="two")
    await control.create(who="two")
    foreign = await standby(control, "logs", "chat")
    lines = await control.call("two", "GET", "/api/v1/endpoints/chat/logs?lines=99999")
    nothing = await standby(control, "logs", "chat", who="two")
    assert foreign.exit_code == 4
    assert lines.status_code == 400
    assert (nothing.exit_code, "no instances: nothing runs" in nothing.stdout) == (0, True)
