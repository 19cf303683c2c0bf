"""``standby profile`` on a running deployment: real py-spy on an engine at work, and what is said where that cannot be."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import psutil
import pytest
from typer.testing import CliRunner

from standby.cli.main import app
from standby.warm_pool.profile_recorders import find_py_spy
from support.deployment import DEADLINE_S, Deployment
from support.raw_http import RawClient
from support.reality import alive

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed: pip install 'standby[profile]'"),
]

STREAM = {"stream": True, "max_tokens": 1_000_000}


def arguments(there: Deployment, *words: str) -> list[str]:
    return ["--url", there.url(), "--key", there.stack.secrets.admin_key, *words]


async def standby(there: Deployment, *words: str) -> Any:
    return await asyncio.to_thread(CliRunner().invoke, app, arguments(there, *words))


async def test_an_engine_at_work_is_profiled(there: Deployment, tmp_path: Path) -> None:
    """Stacks with the engine's own functions in both forms, the node agent's beside them, and a manifest of all."""
    await there.endpoint("busy", knobs={"tokens": 1_000_000}, slots=2)
    await there.warm("busy")
    client = await there.post("/endpoints/busy/invocations-response-stream", {"prompt": "go on", **STREAM})
    # Unread, the answer would soon fill every buffer, and the engine would stand still.
    reading = asyncio.create_task(read_all(client))
    out = tmp_path / "profile"

    ran = await standby(there, "profile", "busy", "--seconds", "1", "--node", "--out", str(out), "--json")
    again = await standby(there, "profile", "busy", "--seconds", "1", "--out", str(out))
    client.abort()
    await reading

    assert ran.exit_code == 0, ran.output
    manifest = json.loads(ran.stdout)
    assert manifest == json.loads((out / "manifest.json").read_text())
    (node,) = manifest["nodes"]
    assert (node["node"], node["state"], node["stopped"], node["copied"]) == ("n1", "done", "", True)
    instance = (await there.instance("busy") or {})["id"]
    assert {file["name"] for file in node["files"]} == {
        f"{name}.{ending}" for name in (instance, "node-n1") for ending in ("speedscope.json", "flame.svg")
    }
    recorded = json.loads((out / "n1" / f"{instance}.speedscope.json").read_text())
    assert "FakeEngine.one_request" in {frame["name"] for frame in recorded["shared"]["frames"]}
    picture = (out / "n1" / f"{instance}.flame.svg").read_text()
    ET.fromstring(picture)
    assert "FakeEngine.one_request" in picture
    assert [left["what"] for left in node["left_out"]] == [f"NVIDIA's profilers for {instance}"]
    assert (again.exit_code, "is no empty folder" in again.stderr) == (2, True)


async def read_all(client: RawClient) -> None:
    """Read and forget until the connection ends."""
    with contextlib.suppress(ConnectionError):
        while await client.reader.read(2**20):
            pass


async def test_ctrl_c_ends_it_on_the_node_as_well(there: Deployment, tmp_path: Path) -> None:
    await there.endpoint("long", knobs={"tokens": 1_000_000})
    await there.warm("long")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standby.cli.main", *arguments(there, "profile", "long", "--seconds", "60"),
        cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    profiles = there.stack.options.state.root / "node" / "profiles"

    async def recorders() -> list[psutil.Process]:
        found = []
        for one in psutil.Process(there.stack.children["node"].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if one.name() == "py-spy" and alive(one):
                    found.append(one)
        return found

    await there.until(recorders, "py-spy records")
    process.send_signal(signal.SIGINT)
    async with asyncio.timeout(DEADLINE_S):
        _, stderr = await process.communicate()

    async def ended() -> bool:
        return not await recorders()

    await there.until(ended, "py-spy has ended")
    assert (process.returncode, b"Traceback" in stderr) == (130, False), stderr
    assert b"stopped on n1; what was recorded is in " in stderr
    kept = [path for path in profiles.iterdir() if str(path).encode() in stderr]

    async def written() -> bool:
        return (kept[0] / "manifest.json").exists()

    await there.until(written, "what was recorded is kept")
    assert json.loads((kept[0] / "manifest.json").read_text())["stopped"].startswith("stopped by ")
    assert (await there.invoke("long", max_tokens=1)).status_code == 200


async def test_nothing_to_profile_and_nobody_who_may(there: Deployment) -> None:
    await there.endpoint("cold")
    made = await there.api("POST", "/keys", {"name": "p", "tenant": "123456789012"})

    cold = await standby(there, "profile", "cold")
    nowhere = await standby(there, "profile", "nothing")
    tenant = await there.call(
        "POST", "/api/v1/endpoints/cold/profiles", json={}, headers={"authorization": f"Bearer {made['api_key']}"}
    )
    unknown = await there.call("GET", "/api/v1/nodes/n1/profiles/0123456789abcdef")

    assert (cold.exit_code, "has no ready instance to profile: nothing runs" in cold.stderr) == (7, True), cold.output
    assert nowhere.exit_code == 4
    assert (tenant.status_code, unknown.status_code) == (403, 404)
