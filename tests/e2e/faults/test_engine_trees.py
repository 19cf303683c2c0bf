"""Engines are trees of processes: whatever part of one is killed, hangs or lies, nothing of it is left within seconds.

After each fault: no process without an owner, no socket or folder that nobody uses, a ledger that equals reality
(``support.reality``). What is tested elsewhere: an engine and the agent killed under load (``test_kills``), failed starts and
their words (``test_broken_engine``), herds and probes (``test_wake``), sickness with short limits
(``integration/health/test_sick_node``), faults around a fork (``integration/zygote/test_faults``), real vLLM
(``e2e/real/test_vllm_trees``).
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from standby.warm_pool.run_dir import run_dir
from support.deployment import PARIS, aws_error_of, deployment, text_of
from support.engine_place import EnginePlace
from support.reality import MIB, alive, assert_clean
from support.scrapes import scrape_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZE_MB = 128


class Place(EnginePlace):
    """The engines' claims are known."""

    async def endpoint(self, name: str, *, memory_mb: int = SIZE_MB, **options: Any) -> str:
        """Create an endpoint whose claim is known: the ledger must be exact."""
        self.reality.promised[name] = memory_mb * MIB
        return await self.there.endpoint(name, memory_mb=memory_mb, **options)

    async def clean(self, *gone: psutil.Process) -> None:
        await assert_clean(self.reality, gone=gone)

    async def delete(self, *endpoints: str) -> None:
        """End what a test has used, and see that nothing of it is left."""
        trees = [process for name in endpoints for process in await self.family(name)]
        for name in endpoints:
            await self.there.api("DELETE", f"/endpoints/{name}")
        for name in endpoints:
            await self.there.until(lambda n=name: self.gone(n), f"{name} is gone")  # type: ignore[misc]
        await self.clean(*trees)

    async def generates(self, endpoint: str) -> bool:
        """Whether the endpoint's engine has begun to work on a request."""
        return await self.there.active(endpoint) == 1

    async def gone(self, endpoint: str) -> bool:
        return (await self.there.call("GET", f"/api/v1/endpoints/{endpoint}")).status_code == 404


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    async with deployment(tmp_path_factory.mktemp("trees")) as running:
        yield Place(running)


async def test_a_poisonous_request_takes_its_own_engine_alone(place: Place) -> None:
    """The caller is told, a neighbour's stream goes on, and the endpoint comes back."""
    await place.endpoint("neighbour", knobs={"token_delay_ms": 60, "tokens": 100})
    await place.endpoint("poisoned", knobs={"spawn_child": True})
    await asyncio.gather(place.there.warm("neighbour"), place.there.warm("poisoned"))
    victims, others = await place.tree("poisoned"), await place.tree("neighbour")
    stream = await place.there.post("/endpoints/neighbour/invocations", {"prompt": "x", "stream": True, "max_tokens": 100})
    await place.there.until(lambda: place.generates("neighbour"), "its stream has begun")
    aws_error_of(await place.there.invoke("poisoned", poison=True), 424, "engine_died")
    assert (await stream.answer()).complete
    assert all(alive(process) for process in others)
    assert text_of(await place.there.invoke("poisoned")) == PARIS
    await place.there.became("poisoned", "ready", 2)
    assert place.there.spawns("neighbour") == 1
    assert place.there.spawns("poisoned") == 2
    await place.clean(*victims)
    await place.delete("neighbour", "poisoned")


async def test_what_left_the_engines_session_is_ended_with_it(place: Place) -> None:
    """Memory that is not returned: a grandchild in a session of its own holds 300 MiB when the first process is killed."""
    await place.endpoint("runaway", knobs={"runaway_mib": 300}, memory_mb=512)
    await place.there.warm("runaway")
    leader, runaway = await place.tree("runaway")
    await place.there.until(lambda: holds(runaway, 300 * MIB), "it holds its memory")
    leader.kill()
    await place.clean(leader, runaway)
    assert text_of(await place.there.invoke("runaway")) == PARIS
    assert len(await place.tree("runaway")) == 2
    await place.delete("runaway")


async def holds(process: psutil.Process, amount: int) -> bool:
    return process.memory_info().rss >= amount


async def test_a_worker_that_is_killed_takes_its_engine_down_and_a_new_one_serves(place: Place) -> None:
    """It lies in a session of its own, and the process that answers lives on and would answer for ever."""
    await place.endpoint("worker", knobs={"runaway_mib": 1})
    await place.there.warm("worker")
    tree = await place.tree("worker")
    _, worker = tree
    await place.there.until(lambda: older(worker, 2.5), "it is old enough to be essential")
    worker.kill()
    await place.there.happened(lambda: failures(place, "worker"), "the engine is found to be sick")
    assert "has ended, the engine's first one lives: killed by signal 9 (SIGKILL)" in failures(place, "worker")[0]
    await place.clean(*tree)
    assert text_of(await place.there.invoke("worker")) == PARIS
    await place.delete("worker")


async def older(process: psutil.Process, seconds: float) -> bool:
    return time.time() - process.create_time() >= seconds


def failures(place: Place, endpoint: str) -> list[str]:
    """Why the endpoint's engines failed so far."""
    return [one["reason"] for one in place.there.of_kind("transition", endpoint) if one["after"] == "failed"]


async def test_a_killed_agent_leaves_nothing_of_any_engine(place: Place) -> None:
    """Field case B30: one sleeps, one serves, one has a worker in a session of its own, one starts; and files of a stranger."""
    await place.endpoint("sleeper", keep_ready="0.2s", keep_asleep="1h", knobs={"spawn_child": True})
    await place.there.warm("sleeper")
    await place.endpoint("server", knobs={"ignore_term": True, "spawn_child": True})
    await place.endpoint("worker", knobs={"runaway_mib": 1})
    await place.endpoint("starter", knobs={"start_delay_s": 600})
    await asyncio.gather(place.there.warm("server"), place.there.warm("worker"))
    asking = asyncio.create_task(place.there.invoke("starter"))
    await place.there.until_state("starter", "starting")
    await place.there.until_state("sleeper", "asleep")
    leave_a_socket(run_dir(place.reality.node_state) / "stranger-1")
    await place.there.until(lambda: all_run(place, 7), "every process of the four has begun")
    before = place.reality.all_processes()
    boot = (await place.reality.node())["boot_id"]
    place.there.kill("node")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await place.there.until(lambda: place.another_agent(boot), "the next agent is there")
    await place.clean(*before)
    answers = await asyncio.gather(*(place.there.invoke(name) for name in ("sleeper", "server", "worker")))
    assert [text_of(answer) for answer in answers] == [PARIS] * 3
    await place.delete("sleeper", "server", "worker", "starter")


async def all_run(place: Place, count: int) -> bool:
    return len(place.reality.all_processes()) == count


def leave_a_socket(folder: Path) -> None:
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "engine.sock"))


async def test_sigterm_while_it_starts(place: Place) -> None:
    """The engine ends by it, that is said in words, and the next start serves."""
    await place.endpoint("terminated", knobs={"start_delay_s": 5.0})
    asking = asyncio.create_task(place.there.invoke("terminated"))
    await place.there.happened(lambda: place.there.spawns("terminated"), "it starts")
    await place.there.until(lambda: place.begun("terminated"), "its process is there")
    (engine,) = await place.tree("terminated")
    engine.terminate()
    await place.there.happened(lambda: failures(place, "terminated"), "its end is seen")
    assert "killed by signal 15 (SIGTERM)" in failures(place, "terminated")[0]
    assert "while it was starting" in failures(place, "terminated")[0] or "while it loaded" in failures(place, "terminated")[0]
    await place.clean(engine)
    assert text_of(await asking) == PARIS
    await place.there.became("terminated", "ready")
    assert place.there.spawns("terminated") == 2
    await place.delete("terminated")


async def test_an_engine_that_ignores_its_end_while_it_starts(place: Place) -> None:
    """It is deleted while it starts: nothing of it is left, and its caller is told."""
    await place.endpoint("stubborn", knobs={"start_delay_s": 600, "ignore_term": True, "spawn_child": True})
    asking = asyncio.create_task(place.there.invoke("stubborn"))
    await place.there.until(lambda: place.begun("stubborn"), "its process is there")
    await place.delete("stubborn")
    aws_error_of(await asking, 400, "endpoint_not_found")


async def test_an_agent_that_is_told_to_stop_while_an_engine_starts(place: Place) -> None:
    """It ends in good order, and its successor goes on."""
    await place.endpoint("waiting", knobs={"start_delay_s": 5.0})
    asking = asyncio.create_task(place.there.invoke("waiting"))
    await place.there.until(lambda: place.begun("waiting"), "its process is there")
    before, boot = place.reality.all_processes(), (await place.reality.node())["boot_id"]
    place.there.stack.children["node"].restart()
    await place.there.until(lambda: place.another_agent(boot), "the next agent is there")
    await place.clean(*before)
    assert place.there.stack.children["node"].last_code == 0
    assert text_of(await asking) == PARIS
    await place.delete("waiting")


async def test_an_engine_that_wakes_damaged_serves_nobody(place: Place) -> None:
    """Its canary differs after the wake: it is ended and started from cold, operators are told, the caller gets the truth."""
    await place.endpoint("damaged", knobs={"wakes_wrong": True}, keep_ready="0.2s", keep_asleep="1h")
    await place.there.warm("damaged")
    tree = await place.tree("damaged")
    await place.there.until_state("damaged", "asleep")
    await place.clean()
    assert text_of(await place.there.invoke("damaged")) == PARIS
    await place.clean(*tree)
    await place.there.became("damaged", "ready", 2)
    assert place.there.spawns("damaged") == 2
    (told,) = [one["message"] for one in place.there.of_kind("notice", "damaged")]
    assert "canary mismatch after a wake" in told
    changes = place.there.of_kind("transition", "damaged")
    (ended,) = [one["reason"] for one in changes if (one["before"], one["after"]) == ("probing", "stopping")]
    assert "probe after the wake failed, the engine is started anew: greedy answer to" in ended
    node = await scrape_of(place.there.stack.options.state.root, "node")
    assert node.total("standby_canary_mismatches_total") >= 1
    assert node.total("standby_engine_failures_total", engine="fake") >= 1
    await place.delete("damaged")


async def test_a_start_that_never_ends_ends_at_its_limit(place: Place) -> None:
    """Nothing of it is left while it waits for the next try, and the reason is told."""
    await place.endpoint("endless", knobs={"start_delay_s": 600, "spawn_child": True}, activation_limit="4s")
    asking = asyncio.create_task(place.there.invoke("endless"))
    await place.there.until(lambda: place.begun("endless"), "its process is there")
    tree = await place.tree("endless")
    await place.there.happened(lambda: failures(place, "endless"), "it is given up")
    assert "did not load within 4 s and has not moved for " in failures(place, "endless")[0]
    await place.clean(*tree)
    await place.delete("endless")
    aws_error_of(await asking, 400, "endpoint_not_found")


@pytest.mark.parametrize(
    ("name", "number", "words"),
    [
        ("illegal", signal.SIGILL, "killed by signal 4 (SIGILL): the engine used an instruction that this processor lacks"),
        ("bus", signal.SIGBUS, "killed by signal 7 (SIGBUS): weights file vanished under the engine"),
    ],
)
async def test_a_failed_start_names_what_ended_it(place: Place, name: str, number: int, words: str) -> None:
    """SIGKILL and SIGSEGV are in ``test_broken_engine``."""
    await place.endpoint(name, knobs={"fail_start": -number})
    error = aws_error_of(await place.there.invoke(name), 424, "endpoint_failed")
    assert words in error["Message"]
    assert words in (await place.there.until_status(name, "Failed"))["failure"]["reason"]
    await place.delete(name)


async def test_two_engines_of_a_kind_start_at_once(place: Place) -> None:
    """Of one model: each endpoint gets one engine of its own, whoever asks first."""
    names = ["twin-a", "twin-b"]
    for name in names:
        await place.endpoint(name, knobs={"start_delay_s": 0.3})
    answers = await asyncio.gather(*(place.there.invoke(name) for name in names for _ in range(6)))
    assert [text_of(answer) for answer in answers] == [PARIS] * 12
    for name in names:
        await place.there.became(name, "ready")
    assert [place.there.spawns(name) for name in names] == [1, 1]
    assert len({(await place.tree(name))[0].pid for name in names}) == 2
    await place.delete(*names)
