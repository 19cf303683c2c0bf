"""A real vLLM endpoint up and down the whole ladder, as its user sees it: the same greedy answer from every rung."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from support.fake_engine_spec import short_dir
from support.reality import Reality, alive, assert_clean
from support.s3_server import S3Server
from support.safetensors_twin import twin_folder
from support.user import DEADLINE_S, PARIS, QUESTION, Up, up
from support.vllm import needs_vllm, vllm_python
from support.waiting import until

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(400)]

KEEP_ZYGOTE_S = 2.0
TENANT = "123456789012"


class Place:
    """``standby up`` with vLLM and two tenants, and what is really there of it."""

    def __init__(self, running: Up, other: httpx.AsyncClient, reality: Reality) -> None:
        self.up, self.other, self.reality = running, other, reality
        self.answers: list[httpx.Response] = []

    async def ask(self, rung: str) -> None:
        """Ask the endpoint, which must answer from this rung as it always does."""
        answer = await self.up.ask("twin")
        assert (answer.status_code, text_of(answer)) == (200, PARIS), answer.text
        assert answer.headers["x-standby-rung"] == rung
        self.answers.append(answer)

    async def zygote(self) -> dict[str, Any]:
        """What the node says of vLLM's zygote."""
        found: dict[str, Any] = (await self.reality.node())["zygotes"]["vllm"]
        return found


def joined(out: str) -> str:
    """A table as one line: how wide its columns are says nothing."""
    return " ".join(out.split())


def text_of(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(s3: S3Server) -> AsyncIterator[Place]:
    for path in twin_folder().iterdir():
        await s3.upload("models", f"twin/{path.name}", path)
        await s3.upload("models", f"theirs/{path.name}", path)
    # One byte more makes it another model.
    with short_dir() as folder:
        (folder / "README.md").write_text("the other tenant's")
        await s3.upload("models", "theirs/README.md", folder / "README.md")
    with short_dir() as home:
        settings = {
            "STANDBY_VLLM_PYTHON": str(vllm_python()),
            "STANDBY_ZYGOTE_KEEP_S": str(KEEP_ZYGOTE_S),
            "STANDBY_HEARTBEAT_S": "0.5",
            "STANDBY_OPEN_SOURCES": "true",
            "TMPDIR": str(home),
        }
        async with up(home / "state", {**s3.env(), **settings}) as running:
            key = (await running.call("POST", "/keys", {"name": "other", "tenant": TENANT}))["api_key"]
            headers = {"authorization": f"Bearer {key}"}
            async with httpx.AsyncClient(base_url=running.url, headers=headers, timeout=DEADLINE_S, trust_env=False) as other:

                async def theirs() -> Any:
                    return (await other.get("/api/v1/instances")).json()["instances"]

                reality = Reality(home / "state" / "node", home, lambda path: running.call("GET", path), others=[theirs])
                yield Place(running, other, reality)


async def test_down_and_up_the_ladder(place: Place) -> None:
    """Cold → zygote → ready → asleep → ready → zygote → ready; each rung is told by the header and by the commands."""
    shell = place.up.shell
    await place.up.call("POST", "/models", {"name": "twin", "source_uri": "s3://models/twin/", "engine": "vllm"})
    # Each is longer than the commands take that look at it meanwhile.
    policy = {"keep_ready": "6s", "keep_asleep": "12s", "keep_zygote": "10m"}
    await place.up.call("POST", "/endpoints", {"name": "twin", "model": "twin", "policy": policy})

    await place.ask("cold")
    ready = (await shell.standby("ps", "--json")).json()["instances"]
    await place.up.until_resting("twin", "zygote")
    rested = await shell.standby("ps")
    await assert_clean(place.reality)
    assert [len(place.reality.zygotes()), len(place.reality.all_processes())] == [1, 1]

    await place.ask("zygote")
    awake = await place.up.until_resting("twin", "asleep")
    slept = await shell.standby("ps")
    await assert_clean(place.reality)

    await place.ask("asleep")
    await place.up.until_resting("twin", "asleep")
    await place.up.until_resting("twin", "zygote")
    priced = await shell.standby("ps")
    await place.ask("zygote")
    nodes, prices, status = await asyncio.gather(
        shell.standby("nodes"), shell.standby("prices", "--json"), shell.standby("status")
    )

    assert [(one["engine"], one["state"]) for one in ready] == [("vllm", "ready")]
    assert "zygote: a pre-imported vllm process forks it, for " in joined(rested.out), "its price is not known yet"
    assert re.search(r"forks it \([\d.]+ m?s until ready\), for ", joined(priced.out))
    assert "asleep: process kept, " in joined(slept.out)
    assert awake["resident_bytes"] > 0
    assert "vllm ready" in joined(nodes.out)
    assert "instances" in status.out
    (priced_here,) = prices.json()["prices"]
    assert {"cold→staged", "zygote→ready", "asleep→ready", "ready→asleep"} <= priced_here["transitions"].keys()
    assert priced_here["transitions"]["zygote→ready"]["seconds"] > priced_here["transitions"]["asleep→ready"]["seconds"]
    assert priced_here["footprint"]["awake"] > priced_here["footprint"]["asleep"] > 0
    assert [one["engine"] for one in prices.json()["zygotes"]] == ["vllm"]


async def test_a_zygote_serves_two_tenants_and_streams(place: Place) -> None:
    """Two endpoints of two tenants with two models are forked from one zygote, at once; each has a tree of its own."""
    for call, path, body in (
        ("POST", "/models", {"name": "theirs", "source_uri": "s3://models/theirs/", "engine": "vllm"}),
        ("POST", "/endpoints", {"name": "theirs", "model": "theirs", "policy": {"keep_ready": "10m"}}),
    ):
        answer = await place.other.request(call, f"/api/v1{path}", json=body)
        assert answer.status_code < 300, answer.text
    await place.up.until_resting("twin", "zygote")
    forks = (await place.zygote())["forks"]
    (zygote,) = place.reality.zygotes()
    question = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
    ours, theirs = await asyncio.gather(
        streamed(place.up.api, "/endpoints/twin/invocations", question),
        place.other.post("/endpoints/theirs/invocations", json=question),
    )
    instances = {one["endpoint"]: one for one in await place.reality.instances()}
    trees = [place.reality.tree(instances[name]["id"]) for name in ("twin", "theirs")]
    await until_forks(place, forks + 2)

    assert (ours, text_of(theirs)) == (PARIS, PARIS)
    assert place.reality.zygotes() == [zygote]
    assert all(trees)
    assert not {process.pid for process in trees[0]} & {process.pid for process in trees[1]}
    assert instances["twin"]["model_digest"] != instances["theirs"]["model_digest"]
    assert len({process.ppid() for tree in trees for process in tree[:1]}) == 1, "both are the agent's own"
    assert zygote.pid not in {process.ppid() for tree in trees for process in tree}
    await assert_clean(place.reality)


async def streamed(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
    """Ask for a stream and return its text; it must have come in pieces and end as streams do."""
    pieces: list[str] = []
    async with client.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    for line in lines[:-1]:
        pieces.extend(choice["delta"].get("content") or "" for choice in json.loads(line[6:])["choices"])
    assert len([piece for piece in pieces if piece]) > 1
    return "".join(pieces)


async def until_forks(place: Place, count: int) -> None:
    async def reached() -> bool:
        return bool((await place.zygote())["forks"] == count)

    await until(reached, f"{count} engines were forked from it", DEADLINE_S)


async def test_the_zygote_leaves_after_the_last_instance(place: Place) -> None:
    """Two seconds after the last one, as configured; nothing is left then."""
    processes = place.reality.all_processes()
    (zygote,) = place.reality.zygotes()
    await place.up.call("DELETE", "/endpoints/twin")
    await until(lambda: gone(place, "twin"), "its first instance is gone", DEADLINE_S)
    assert alive(zygote), "another one is still there"
    assert (await place.other.delete("/api/v1/endpoints/theirs")).status_code < 300
    await until(lambda: gone(place, "theirs"), "its last instance is gone", DEADLINE_S)
    await until(lambda: not alive(zygote), "the zygote has left", DEADLINE_S)
    await assert_clean(place.reality, gone=processes)

    await until(lambda: holds_nothing(place), "the node tells that it holds nothing", DEADLINE_S)
    assert place.reality.all_processes() == []


async def holds_nothing(place: Place) -> bool:
    node = await place.reality.node()
    return (node["zygotes"]["vllm"]["state"], node["memory"]["reserved"]) == ("none", 0)


async def gone(place: Place, endpoint: str) -> bool:
    return all(one["endpoint"] != endpoint for one in await place.reality.instances())
