"""What every engine that runs promises: answers, probes, load, sleep. Real llama.cpp, real vLLM, two stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest

from standby.domain.errors import EngineError
from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineLoad
from standby.runtime.engines.loopback_ports import LOOPBACK
from standby.runtime.process_group import members
from standby.runtime.procfs import proportional, resident
from support.engine_case import Served, refuses_to_sleep
from support.engine_client import ANSWER, QUESTION, ask, client, events, streamed_text, text_of
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")
LONG = {**QUESTION, "max_tokens": 200, "ignore_eos": True}
# llama.cpp looks for departed clients when nothing has happened for a second: asking oftener hides them.
QUIET_S = 1.2


async def load(served: Served) -> EngineLoad:
    return await served.case.adapter.load(served.handle, 60)


async def running_nothing(served: Served) -> bool:
    return (await load(served)).running == 0


async def test_an_engine_names_its_version_and_its_address(served: Served) -> None:
    assert any(letter.isdigit() for letter in served.case.adapter.version)
    address = served.handle.address
    if isinstance(address, Path):
        assert address.is_socket()
        assert address.is_relative_to(served.handle.folder)
    else:
        assert address[0] == LOOPBACK


async def test_a_loaded_engine_generates_and_names_the_served_model(served: Served) -> None:
    answer = await ask(served.handle)
    assert ANSWER in text_of(answer)
    assert answer["model"] == served.case.answers_as


async def test_a_streamed_answer_is_the_same_text_and_ends_with_done(served: Served) -> None:
    whole = text_of(await ask(served.handle))
    async with (
        client(served.handle) as http,
        http.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        got = await events(answer.aiter_lines())
    assert got[-1] == "[DONE]"
    chunks = [json.loads(event) for event in got[:-1]]
    assert {chunk["model"] for chunk in chunks} == {served.case.answers_as}
    assert streamed_text(chunks) == whole
    assert sum(1 for chunk in chunks if streamed_text([chunk])) > 3


async def test_a_probe_gives_the_same_pieces_twice_and_their_margins(served: Served) -> None:
    """A canary is made of them: it is compared after every wake."""
    first, second = [await served.case.adapter.probe(served.handle, 30, prompt="Hi", tokens=4, margins=True) for _ in range(2)]
    assert 1 <= len(first.pieces) <= 4
    assert first.pieces == second.pieces
    assert first.prompt == "Hi"
    assert first.ms > 0
    assert len(first.margins) == len(first.pieces)
    assert all(margin >= 0 for margin in first.margins)
    assert first.margins == pytest.approx(second.margins, abs=0.05)


async def test_a_short_probe_is_one_piece(served: Served) -> None:
    assert len((await served.case.adapter.probe(served.handle, 30)).pieces) == 1


async def test_load_tells_what_runs_and_that_it_gets_on(served: Served) -> None:
    """Health says nothing of either (field case B31)."""
    await until(lambda: running_nothing(served), "idle before")
    before = (await load(served)).progress
    assert before is not None

    async def works() -> bool:
        now = await load(served)
        return now.running > 0 and (now.progress or 0) > before

    async def fills() -> bool:
        used = (await load(served)).kv_used
        assert used is not None
        assert used <= 1
        return used > 0 or served.case.adapter.kind is EngineKind.FAKE

    seen = asyncio.Event()

    async def keep_asking() -> None:
        # To its end each time: how soon a departed client's request ends is another test's.
        while not seen.is_set():
            await ask(served.handle, max_tokens=400, ignore_eos=True)

    asking = asyncio.ensure_future(keep_asking())
    try:
        await until(works, "load tells of the request")
        await until(fills, "the request holds some of the cache")
    finally:
        seen.set()
        await asking
    await until(lambda: running_nothing(served), "idle after")
    assert ((await load(served)).progress or 0) > before


async def test_only_this_user_can_reach_the_socket_and_the_log(served: Served) -> None:
    assert served.handle.folder.stat().st_mode & 0o777 == 0o700
    assert served.handle.log.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_goes_away_frees_the_engine(served: Served, stream: bool) -> None:
    """Nothing is generated for nobody, streamed or not (field case B25)."""
    long = {**LONG, "max_tokens": 1900, "stream": stream}
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.4), client(served.handle) as leaver:
            await leaver.post("/v1/chat/completions", json=long)
    async with asyncio.timeout(60):
        await asyncio.sleep(QUIET_S if served.case.llama else 0)
        while not await running_nothing(served):
            await asyncio.sleep(QUIET_S if served.case.llama else 0.05)


async def test_a_suspended_engine_answers_the_same_after_it_wakes(served: Served) -> None:
    adapter = served.case.adapter
    if not adapter.capabilities.sleep:
        await refuses_to_sleep(adapter, served.handle)
        return
    first = text_of(await ask(served.handle))
    await until(lambda: running_nothing(served), "idle")
    result = await adapter.suspend(served.handle)
    try:
        # What processes share with others, e.g. with a zygote, is counted whole or by shares.
        pids = [stat.pid for stat in members(served.handle.process.mark)]
        whole, shares = sum(resident(pid).total for pid in pids), sum(proportional(pid) or 0 for pid in pids)
        assert pytest.approx(result.resident_after, rel=0.05) in (whole, shares)
        assert result.resident_after <= result.resident_before
    finally:
        await adapter.resume(served.handle)
    await adapter.probe(served.handle, 30)
    assert text_of(await ask(served.handle)) == first


async def test_many_cycles_of_sleep_neither_lose_the_answer_nor_gather_memory(served: Served) -> None:
    adapter = served.case.adapter
    if not adapter.capabilities.sleep:
        await refuses_to_sleep(adapter, served.handle)
        return
    await until(lambda: running_nothing(served), "idle")
    asleep: list[int] = []
    for _ in range(20):
        asleep.append((await adapter.suspend(served.handle)).resident_after)
        await adapter.resume(served.handle)
        await adapter.probe(served.handle, 30)
    assert ANSWER in text_of(await ask(served.handle))
    assert max(asleep[1:]) - asleep[1] < 8 * 2**20


async def test_sleep_in_the_middle_of_an_answer_harms_it_not(served: Served) -> None:
    """A drain that was cut off, or a client that has left: it goes on where it was, or is not put to sleep at all."""
    adapter = served.case.adapter
    if not adapter.capabilities.sleep:
        await refuses_to_sleep(adapter, served.handle)
        return
    undisturbed = text_of(await ask(served.handle, max_tokens=200, ignore_eos=True))
    async with (
        client(served.handle) as http,
        http.stream("POST", "/v1/chat/completions", json={**LONG, "stream": True}) as answer,
    ):
        lines = answer.aiter_lines()
        first = [await anext(lines) for _ in range(5)]
        with contextlib.suppress(EngineError):
            await adapter.suspend(served.handle)
            await adapter.resume(served.handle)
        got = [line.removeprefix("data: ") for line in first if line] + await events(lines)
    assert streamed_text([json.loads(event) for event in got[:-1]]) == undisturbed
    assert ANSWER in text_of(await ask(served.handle))
