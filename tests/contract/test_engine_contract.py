"""What every engine adapter promises, run against the fake engine and against real llama.cpp with a real model."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from standby.domain.errors import EngineError, EngineStartFailed
from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineAdapter, EngineHandle, EngineSpec, failure_of
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.process_group import members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import process_stat, resident
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, SERVED_NAME, fake_spec, real_spec, running, short_dir
from support.real_model import real_model_path

ANSWER = "The capital of France is Paris."
QUESTION = {"messages": [{"role": "user", "content": "Name the capital of France."}], "max_tokens": 16, "temperature": 0}


@dataclass
class Case:
    """One engine under test."""

    adapter: EngineAdapter
    spec: Callable[..., EngineSpec]
    run_dir: Path
    ledger: ProcessLedger

    @property
    def real(self) -> bool:
        return self.adapter.kind is EngineKind.LLAMA_CPP


@pytest.fixture(params=["fake", pytest.param("llama_cpp", marks=pytest.mark.real_engine)])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    with short_dir() as run_dir:
        ledger = ProcessLedger(run_dir / "ledger")
        if request.param == "fake":
            yield Case(FakeEngine(ledger, FAKE_ENGINE_PROGRAM), fake_spec, run_dir, ledger)
        else:
            yield Case(LlamaCpp(ledger), real_spec, run_dir, ledger)
        assert ledger.survivors() == ()
        assert ledger.records() == ()


def client(handle: EngineHandle) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(handle.socket)), base_url="http://engine", timeout=30)


async def ask(handle: EngineHandle) -> dict[str, Any]:
    async with client(handle) as http:
        answer = await http.post("/v1/chat/completions", json=QUESTION)
    assert answer.status_code == 200
    content: dict[str, Any] = answer.json()
    return content


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


async def events(lines: AsyncIterator[str]) -> list[str]:
    return [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]


def own_copy(folder: Path) -> Path:
    """A copy of the real model that no other process maps, all of it on disk: only then must its pages go."""
    copy = folder / "own.gguf"
    shutil.copyfile(real_model_path(), copy)
    with copy.open("rb") as stream:
        os.fsync(stream.fileno())
    return copy


async def test_a_loaded_engine_generates_and_names_the_served_model(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        probe = await case.adapter.probe(handle, 10)
        answer = await ask(handle)
    assert probe.ms > 0
    assert text_of(answer) == ANSWER
    assert answer["model"] == SERVED_NAME


async def test_a_streamed_answer_is_the_same_text_and_ends_with_done(case: Case) -> None:
    async with (
        running(case.adapter, case.spec(case.run_dir)) as handle,
        client(handle) as http,
        http.stream("POST", "/v1/chat/completions", json={**QUESTION, "stream": True}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        got = await events(answer.aiter_lines())
    assert got[-1] == "[DONE]"
    chunks = [json.loads(event) for event in got[:-1]]
    assert {chunk["model"] for chunk in chunks} == {SERVED_NAME}
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]]
    assert "".join(pieces) == ANSWER
    assert sum(1 for piece in pieces if piece) > 3


async def test_only_this_user_can_reach_the_socket_and_the_log(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        assert handle.socket.parent.stat().st_mode & 0o777 == 0o700
        assert handle.log.stat().st_mode & 0o777 == 0o600
        folder = handle.socket.parent
    assert not folder.exists()
    assert handle.log.exists()


async def test_a_suspended_engine_is_stopped_and_answers_the_same_after_it_wakes(case: Case) -> None:
    model = {"model": own_copy(case.run_dir)} if case.real else {}
    async with running(case.adapter, case.spec(case.run_dir, slots=4, **model)) as handle:
        first = text_of(await ask(handle))
        result = await case.adapter.suspend(handle)
        stat = process_stat(handle.pid)
        assert stat is not None
        assert stat.stopped
        assert result.resident_after == pytest.approx(resident(handle.pid).total, rel=0.02)
        if case.real:
            weights = real_model_path().stat().st_size
            assert result.resident_before - result.resident_after > 0.8 * weights
            # 4 slots of 2048 tokens promise 180 MiB of key-value cache; what is unused is given back too.
            assert result.anonymous_after < 64 * 2**20
            assert result.weights_cached in (None, 0)
        await case.adapter.resume(handle)
        await case.adapter.probe(handle, 10)
        assert text_of(await ask(handle)) == first == ANSWER


async def test_twenty_cycles_of_sleep_neither_lose_the_answer_nor_gather_memory(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        asleep: list[int] = []
        for _ in range(20):
            asleep.append((await case.adapter.suspend(handle)).resident_after)
            await case.adapter.resume(handle)
            await case.adapter.probe(handle, 10)
        assert text_of(await ask(handle)) == ANSWER
        assert max(asleep[1:]) - asleep[1] < 8 * 2**20


async def test_an_engine_suspended_in_the_middle_of_an_answer_goes_on_where_it_was(case: Case) -> None:
    """A drain that was cut off, or a client that has left, must not corrupt what the engine keeps."""
    spec = case.spec(case.run_dir) if case.real else fake_spec(case.run_dir, token_delay_ms=5, tokens=60)
    long = {**QUESTION, "max_tokens": 200, "ignore_eos": True}
    async with running(case.adapter, spec) as handle, client(handle) as http:
        undisturbed = (await http.post("/v1/chat/completions", json=long)).json()
        async with http.stream("POST", "/v1/chat/completions", json={**long, "stream": True}) as answer:
            lines = answer.aiter_lines()
            first = [await anext(lines) for _ in range(5)]
            await case.adapter.suspend(handle)
            await case.adapter.resume(handle)
            got = [line.removeprefix("data: ") for line in first if line] + await events(lines)
        chunks = [json.loads(event) for event in got[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        assert text == text_of(undisturbed)
        assert text_of(await ask(handle)) == ANSWER or not case.real


async def test_a_sleeping_engine_can_be_stopped(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        await case.adapter.suspend(handle)
        assert (await case.adapter.stop(handle, 5)).words == "killed by signal 15 (SIGTERM)"
        assert members(handle.process.mark) == ()


async def test_an_engine_can_be_stopped_before_it_has_loaded(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir), loaded=False) as handle:
        await case.adapter.stop(handle, 5)
        assert members(handle.process.mark) == ()


async def test_a_killed_engine_is_noticed_by_event(case: Case) -> None:
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        handle.process.send(signal.SIGKILL)
        status = await asyncio.wait_for(handle.exited, 5)
        assert status.words == "killed by signal 9 (SIGKILL)"


async def test_a_sleeping_engine_that_was_killed_cannot_be_resumed(case: Case) -> None:
    """The kernel takes memory from sleepers first: an engine may be gone when it is wanted."""
    async with running(case.adapter, case.spec(case.run_dir)) as handle:
        await case.adapter.suspend(handle)
        handle.process.send(signal.SIGKILL)
        await asyncio.wait_for(handle.exited, 5)
        with pytest.raises(EngineError, match=r"ended while it slept: killed by signal 9"):
            await case.adapter.resume(handle)


async def test_an_engine_that_cannot_load_says_why(case: Case) -> None:
    """The exit in words, the first error line and the log's tail (field case B60)."""
    if case.real:
        bad = case.run_dir / "bad.gguf"
        bad.write_bytes(b"this is no model")
        spec = real_spec(case.run_dir, model=bad)
    else:
        spec = fake_spec(case.run_dir, fail_start=1, fail_message="loading\nerror: no such tensor, token=abcdef123")
    async with running(case.adapter, spec, loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match="engine ended while it loaded: exit code 1") as caught:
            await case.adapter.wait_loaded(handle, 20)
    failure = failure_of(caught.value)
    assert failure.code == "engine_exit"
    assert failure.first_error
    assert failure.first_error in str(caught.value)
    assert failure.log_tail
    assert "abcdef123" not in str(failure)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_goes_away_frees_the_engine(case: Case, stream: bool) -> None:
    """Nothing is generated for nobody, streamed or not (field case B25)."""
    spec = case.spec(case.run_dir, slots=1) if case.real else fake_spec(case.run_dir, slots=1, token_delay_ms=20, tokens=10_000)
    long = {**QUESTION, "max_tokens": 1900, "ignore_eos": True, "stream": stream}
    async with running(case.adapter, spec) as handle:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3), client(handle) as leaver:
                await leaver.post("/v1/chat/completions", json=long)
        async with asyncio.timeout(10):
            # llama.cpp looks for departed clients when nothing has happened for a second: asking oftener hides them.
            await asyncio.sleep(1.2 if case.real else 0)
            while await busy(handle, real=case.real):
                await asyncio.sleep(1.2 if case.real else 0.02)


async def busy(handle: EngineHandle, *, real: bool) -> bool:
    async with client(handle) as http:
        if real:
            return any(slot["is_processing"] for slot in (await http.get("/slots")).json())
        stats = (await http.get("/stats")).json()
    return bool(stats["active"] > 0 or stats["aborts"] != 1)
