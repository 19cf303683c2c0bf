"""Real vLLM behind a whole deployment: whichever process of it is killed, nothing is left, nobody else is hurt, it comes back.

What the adapter alone does is in ``integration/engines/test_vllm_real``; the same faults with an engine that starts in a
moment, and more of them, are in ``e2e/faults/test_engine_trees``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from support.deployment import PARIS, aws_error_of, deployment, text_of
from support.engine_place import EnginePlace
from support.reality import alive, assert_clean
from support.safetensors_twin import twin_folder
from support.vllm import needs_vllm, vllm_python

pytestmark = [pytest.mark.vllm, needs_vllm, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

VICTIM, NEIGHBOUR = "victim", "neighbour"
LONG_START_S = 60.0


class Place(EnginePlace):
    """Two endpoints serve the real model with vLLM."""

    async def ask(self, endpoint: str) -> str:
        """The greedy answer."""
        return text_of(await self.there.invoke(endpoint, temperature=0, max_tokens=24))

    async def ask_both(self) -> list[str]:
        """The greedy answers of both endpoints, asked at once."""
        return [*await asyncio.gather(self.ask(VICTIM), self.ask(NEIGHBOUR))]

    def failures(self, endpoint: str) -> int:
        """How often an engine of the endpoint has failed so far."""
        return sum(one["after"] == "failed" for one in self.there.of_kind("transition", endpoint))

    async def zygote(self) -> psutil.Process:
        """The zygote once it is ready."""

        async def ready() -> list[psutil.Process]:
            found = (await self.reality.node())["zygotes"]["vllm"]
            return self.reality.zygotes() if found["state"] == "ready" else []

        (one,) = await self.there.until(ready, "a zygote is ready", LONG_START_S)
        assert isinstance(one, psutil.Process)
        return one

    async def forked(self, endpoint: str) -> bool:
        """Whether the endpoint's engine was forked, which is told by the program that the kernel knows it by."""
        (leader, *_), zygote = await self.tree(endpoint), await self.zygote()
        return leader.cmdline()[:4] == zygote.cmdline()[:4]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder: Path = twin_folder()
    async with deployment(tmp_path_factory.mktemp("vllm"), environment={"STANDBY_VLLM_PYTHON": str(vllm_python())}) as there:
        await there.api("POST", "/models", {"name": "twin", "source_uri": f"{folder.as_uri()}/", "engine": "vllm"})
        yield Place(there)


async def test_two_starts_at_once_and_two_requests_of_one_name(place: Place) -> None:
    """Both wait for the same zygote; two callers who chose the same request id at once are both answered."""
    for name in (VICTIM, NEIGHBOUR):
        await place.there.endpoint(name, model="twin", keep_ready="10m")
    assert await place.ask_both() == [PARIS, PARIS]
    for name in (VICTIM, NEIGHBOUR):
        await place.there.became(name, "ready")
    assert [place.there.spawns(name) for name in (VICTIM, NEIGHBOUR)] == [1, 1]
    assert await place.forked(VICTIM)
    assert await place.forked(NEIGHBOUR)
    body = {"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0, "max_tokens": 24}
    headers = {"x-request-id": "the-same"}
    path = f"/endpoints/{VICTIM}/invocations"
    answers = await asyncio.gather(*(place.there.call("POST", path, json=body, headers=headers) for _ in range(4)))
    assert [text_of(answer) for answer in answers] == [PARIS] * 4
    await assert_clean(place.reality)


async def test_any_process_of_an_engine_is_killed(place: Place) -> None:
    """First every process but the first one, then the first one: callers are told, the neighbour's stream goes on."""
    for number in (-1, 0):
        failed, tree, others = place.failures(VICTIM), await place.tree(VICTIM), await place.tree(NEIGHBOUR)
        assert len(tree) >= 2
        stream = await place.there.post(
            f"/endpoints/{NEIGHBOUR}/invocations", {"prompt": "Once", "max_tokens": 60, "ignore_eos": True, "stream": True}
        )
        # Never the same twice: a request that was alone when an engine died is not given to another one (field case B34).
        asking = asyncio.create_task(place.there.invoke(VICTIM, max_tokens=1500 + number, ignore_eos=True))
        await place.there.until(lambda: in_flight(place, VICTIM), "its request is in flight")
        tree[number].kill()
        # A first process that lives on for a moment says in its own words that the one behind it is gone. What the engine had
        # not read when it died had not begun: its next life answers that, whole.
        answer = await asking
        assert answer.status_code in (200, 424)
        assert answer.status_code == 424 or answer.json()["usage"]["completion_tokens"] == 1500 + number
        await place.there.happened(lambda n=failed: place.failures(VICTIM) > n, "its end is seen")  # type: ignore[misc]
        assert await place.ask(VICTIM) == PARIS
        await assert_clean(place.reality, gone=tree)
        assert (await stream.answer()).complete
        assert all(alive(process) for process in others)
        assert await place.forked(VICTIM)
    assert place.there.spawns(NEIGHBOUR) == 1


async def in_flight(place: Place, endpoint: str) -> bool:
    return bool((await place.there.instance(endpoint) or {})["in_flight"])


async def test_a_killed_zygote_is_replaced_and_its_engines_go_on(place: Place) -> None:
    before, trees = await place.zygote(), [*await place.tree(VICTIM), *await place.tree(NEIGHBOUR)]
    before.kill()
    assert await place.ask_both() == [PARIS, PARIS]
    await place.there.until(lambda: another(place, before), "another zygote is ready", LONG_START_S)
    assert all(alive(process) for process in trees)
    await assert_clean(place.reality, gone=[before])
    # The neighbour's: an endpoint that fails three times within a minute is Failed for a while.
    leader, *rest = await place.tree(NEIGHBOUR)
    leader.kill()
    await place.there.happened(lambda: place.failures(NEIGHBOUR) == 1, "its end is seen")
    assert await place.ask(NEIGHBOUR) == PARIS
    assert await place.forked(NEIGHBOUR)
    await place.there.until(lambda: has_forked(place, 1), "the node tells of the fork")
    await assert_clean(place.reality, gone=[leader, *rest])


async def has_forked(place: Place, count: int) -> bool:
    return bool((await place.reality.node())["zygotes"]["vllm"]["forks"] == count)


async def another(place: Place, before: psutil.Process) -> bool:
    ready = (await place.reality.node())["zygotes"]["vllm"]["state"] == "ready"
    return ready and before not in place.reality.zygotes() and len(place.reality.zygotes()) == 1


async def test_an_engine_that_starts_is_deleted(place: Place) -> None:
    """vLLM does not hear SIGTERM while it starts: it is killed after the grace."""
    await place.there.endpoint("unwanted", model="twin", keep_ready="10m")
    asking = asyncio.create_task(place.there.invoke("unwanted"))
    await place.there.happened(lambda: place.there.spawns("unwanted"), "it starts")
    await place.there.until(lambda: place.begun("unwanted"), "its process is there")
    tree = await place.tree("unwanted")
    assert not asking.done()
    await place.there.api("DELETE", "/endpoints/unwanted")
    aws_error_of(await asking, 400, "endpoint_not_found")
    await assert_clean(place.reality, gone=tree)


async def test_a_killed_agent_leaves_no_vllm(place: Place) -> None:
    """Engines, what they have forked, and the zygote end within seconds; the next agent serves both endpoints."""
    before, boot = place.reality.all_processes(), (await place.reality.node())["boot_id"]
    assert len(before) >= 3
    place.there.kill("node")
    await place.there.until(lambda: place.another_agent(boot), "the next agent is there")
    await assert_clean(place.reality, gone=before)
    assert await place.ask_both() == [PARIS, PARIS]
    await place.zygote()
    await assert_clean(place.reality)
