"""The container-style baseline by itself, with the real small model."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest

from standby.bench.baseline_container import pack
from standby.bench.compare.subject_container import Baseline, ContainerSubject, baseline
from standby.bench.targets.http import HttpTarget
from standby.bench.targets.requests import Asking, place_of
from standby.domain.errors import ConfigurationError
from support.real_model import real_model_path
from support.user import PARIS, QUESTION
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine]

BODY = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model as a baseline packs it, which takes longer than all else here."""
    return pack(real_model_path(), tmp_path_factory.mktemp("packed"))


@pytest.fixture
async def program(packed: Path, request: pytest.FixtureRequest) -> AsyncIterator[Baseline]:
    """The running program; parametrized by how long it keeps its engine, else for longer than a test takes."""
    lines: list[str] = []
    async with baseline(packed, keep=getattr(request, "param", "10m"), slots=2, say=lines.append) as found:
        yield found
    # Whoever asks for it is told what it did.
    assert [line for line in lines if "store: model.tar.gz" in line]
    assert _running("standby.bench.baseline") == []


@pytest.mark.parametrize("program", ["5s"], indirect=True)
async def test_the_baseline_starts_once_for_many_and_stops_when_nobody_asks(program: Baseline) -> None:
    answers = await asyncio.gather(*(_ask(program) for _ in range(3)))

    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"] == PARIS
        assert answer.headers["x-standby-rung"] == "cold"
        assert answer.headers["x-standby-phases-ms"].startswith("fetched=")
    assert (await _ask(program)).headers["x-standby-rung"] == "ready"
    assert (await program.status())["starts"] == 1

    await until(lambda: _is_stopped(program), "the container's time is over", LIMIT_S)
    status = await program.status()
    assert status["stops"] == 1
    assert status["byte_seconds"] > 0


async def test_the_baseline_is_not_stopped_under_a_request(program: Baseline) -> None:
    await _ask(program)
    asking = asyncio.create_task(_ask(program, max_tokens=400, ignore_eos=True))

    async def busy() -> bool:
        return int((await program.status())["in_flight"]) == 1

    await until(busy, "the request is there", LIMIT_S)
    assert not await program.stop_container()
    assert (await asking).status_code == 200
    # Its answer is whole a moment before the proxy is done with it.
    await until(program.stop_container, "nobody is served any more", LIMIT_S)
    assert not (await program.status())["running"]


async def test_a_baseline_that_is_killed_is_lost_and_says_how(program: Baseline) -> None:
    target = HttpTarget("baseline", place_of(program.url), "/v1/chat/completions", Asking())
    subject = ContainerSubject(target, program, "model.gguf", "10m", LIMIT_S)
    await _ask(program)
    (engine,) = _running("standby.bench.baseline_engine")
    program.process.kill()

    reached = await subject.to_zero()
    assert (reached.ok, reached.lost) == (False, True)
    await program.process.wait()
    assert await subject.ended() == "the baseline's program ended with exit code -9"
    assert (await subject.holding()).gb_s is None
    await until(lambda: not _words_of(engine), "its engine has died with it", LIMIT_S)


async def test_a_model_that_is_none_is_told_to_the_caller(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.gguf"
    wrong.write_bytes(b"GGUF" + bytes(100))
    async with baseline(wrong, keep="1s", slots=1, say=lambda _line: None) as program:
        answer = await _ask(program)

    assert answer.status_code == 503
    assert "the plain engine did not come up" in answer.json()["error"]["message"]
    with pytest.raises(ConfigurationError, match="there is no file"):
        async with baseline(tmp_path / "none.gguf", keep="1s", slots=1, say=lambda _line: None):
            pass


async def _ask(program: Baseline, **more: object) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=LIMIT_S) as client:
        return await client.post(f"{program.url}/v1/chat/completions", content=json.dumps({**BODY, **more}))


async def _is_stopped(program: Baseline) -> bool:
    return not (await program.status())["running"]


def _running(module: str) -> list[psutil.Process]:
    """Every process below this one with a word of its command line that begins so."""
    below = psutil.Process(os.getpid()).children(recursive=True)
    return [process for process in below if any(word.startswith(module) for word in _words_of(process))]


def _words_of(process: psutil.Process) -> list[str]:
    """Its command line; none of one that is gone, or dead and not buried yet."""
    try:
        return [] if not process.is_running() else process.cmdline()
    except psutil.NoSuchProcess:
        return []
