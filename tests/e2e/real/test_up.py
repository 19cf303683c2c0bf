"""``standby up``: one for each state folder, ends cleanly, and goes on where it ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from pathlib import Path

import httpx
import psutil
import pytest

from support.s3_server import S3Server
from support.user import BIN, DEADLINE_S, PARIS, Shell, environment, up
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


async def test_it_finds_everything_again(s3: S3Server, folder: Path) -> None:
    """Stopped by SIGTERM and started again: models, endpoints, keys and the artifact's bytes are all still there."""
    state = folder / "state"
    async with up(state, s3.env()) as first:
        await first.serve("smol", "s3://models/smollm2/", keep_ready="10m")
        cold = await first.ask("smol")
        key = (await first.shell.standby("keys", "create", "ci")).out.strip()
        assert await first.stop(signal.SIGTERM) == 0
        assert first.leftovers() == []
        assert not (state / "connection.json").exists()
    async with up(state, s3.env()) as second:
        staged = await second.ask("smol")
        listed = await second.api.get("/v1/models", headers={"authorization": f"Bearer {key}"})
        assert await second.stop(signal.SIGINT) == 0
        assert second.leftovers() == []

    assert [answer.headers["x-standby-rung"] for answer in (cold, staged)] == ["cold", "staged"]
    assert [answer.json()["choices"][0]["message"]["content"] for answer in (cold, staged)] == [PARIS, PARIS]
    assert [item["id"] for item in listed.json()["data"]] == ["smol"]
    said = first.log.read_text()
    for words in ("nats-server: nats://127.0.0.1:", "node: process", "ready after", "stopping …", "stopped; state stays in"):
        assert words in said
    assert "Traceback" not in said


async def test_whatever_is_killed_comes_back(s3: S3Server, folder: Path) -> None:
    """nats-server and every child die at once: each is started again, and the endpoint answers as before."""
    async with up(folder / "state", s3.env()) as running:
        await running.serve("smol", "s3://models/smollm2/", keep_ready="10m")
        cold = await running.ask("smol")
        for process in psutil.Process(running.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        answers: list[httpx.Response] = []

        async def answered() -> bool:
            with contextlib.suppress(httpx.TransportError):
                answers.append(await running.ask("smol"))
            return bool(answers) and answers[-1].status_code == 200

        await until(answered, "the endpoint answers again", within_s=DEADLINE_S)
        status = await running.shell.standby("status")
        said = running.log.read_text()

    assert "bus           connected" in status.out
    assert cold.status_code == 200
    assert answers[-1].json()["choices"][0]["message"]["content"] == PARIS
    for name in ("nats-server has ended", "node was ended by SIGKILL", "controller was ended", "gateway was ended"):
        assert name in said


async def test_two_never_share_a_state_folder(folder: Path) -> None:
    async with up(folder / "state") as first:
        second = await first.shell.standby("up", "--port", "0", code=3)
        status = await first.shell.standby("status")

    assert f"another `standby up` uses {folder / 'state'}" in second.err
    assert "stop it, or name another folder" in second.err
    assert "bus           connected" in status.out


async def test_a_child_that_ends_while_starting_is_told_at_once(folder: Path) -> None:
    """A taken port: the gateway's own words within seconds, exit code 3, nothing left running."""
    shell = Shell(environment(folder / "state"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = await shell.standby("up", "--port", str(taken.getsockname()[1]), code=3)

    assert "error: gateway ended with exit code 3 while starting; its log ends:" in ran.err
    assert "the gateway cannot listen on 127.0.0.1:" in ran.err
    assert "Address already in use" in ran.err
    assert "--port of `standby up`" in ran.err


async def test_a_start_can_be_called_off(folder: Path) -> None:
    """Ctrl-C before it is ready ends it as cleanly as afterwards."""
    process = await asyncio.create_subprocess_exec(
        BIN / "standby", "up", "--port", "0",
        env=environment(folder / "state"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    said = await process.stderr.readline()
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_S):
        _, rest = await process.communicate()

    assert said.startswith(b"starting in ")
    assert process.returncode == 0
    assert b"ready after" not in rest
    assert rest.endswith(f"stopped; state stays in {folder / 'state'}\n".encode())


@pytest.mark.parametrize(
    ("component", "variables"),
    [
        ("node", ["STANDBY_NODE_TOKEN is not set (secret that gateways show to doors", "STANDBY_STATE_DIR is not set"]),
        ("gateway", ["STANDBY_NODE_TOKEN is not set", "STANDBY_KEY_PEPPER is not set"]),
    ],
)
async def test_a_component_names_the_settings_that_lack(folder: Path, component: str, variables: list[str]) -> None:
    shell = Shell({name: value for name, value in environment(folder).items() if name != "STANDBY_STATE_DIR"})

    ran = await shell.standby(component, code=3)
    wrong = await shell.standby(component, code=3, STANDBY_NODE_TOKEN="t", STANDBY_GATEWAY_PORT="http", STANDBY_DOOR_PORT="x")

    for words in variables:
        assert words in ran.err
    assert "_PORT: " in wrong.err


@pytest.mark.parametrize("words", [["node"], ["controller"], ["gateway"], ["up"], ["demo"], []], ids=" ".join)
async def test_help_needs_no_setting(folder: Path, words: list[str]) -> None:
    ran = await Shell(environment(folder)).standby(*words, "--help")

    assert "Usage: standby" in ran.out
