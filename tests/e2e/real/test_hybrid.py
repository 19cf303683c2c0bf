"""One endpoint with several engines, as its user sees it: each answers, the answer says why, one that dies is passed over."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import pytest_asyncio

from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir
from support.s3_server import S3Server
from support.safetensors_twin import twin_folder
from support.user import DEADLINE_S, QUESTION, Up, up
from support.vllm import needs_vllm, vllm_python
from support.waiting import until

pytestmark = [pytest.mark.drill, pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

ROUTE = "x-standby-route"


def text_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


async def instances(place: Up, endpoint: str) -> dict[str, Any]:
    """The newest instance of each backend."""
    return {one["backend"]: one for one in (await place.show(endpoint))["instances"]}


async def until_ready(place: Up, endpoint: str, backends: set[str], within_s: float = DEADLINE_S) -> None:
    async def ready() -> bool:
        return {name for name, one in (await instances(place, endpoint)).items() if one["state"] == "ready"} == backends

    await until(ready, f"all of {backends} are ready", within_s)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(s3: S3Server) -> AsyncIterator[Up]:
    with short_dir() as home:
        settings = {"STANDBY_FAKE_ENGINE": str(FAKE_ENGINE_PROGRAM)}
        async with up(home / "state", {**s3.env(), **settings}) as found:
            await found.call("POST", "/models", {"name": "smol", "source_uri": "s3://models/smollm2/"})
            yield found


def engine_of(place: Up, instance: str) -> psutil.Process:
    """The first process of an instance's engine."""
    found, seen = [], []
    for one in psutil.Process(place.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            seen.append(one.cmdline())
            found += [one] if any(instance in word for word in seen[-1]) else []
    assert found, f"no engine of {instance} among {seen}"
    return found[0]


async def test_an_engine_that_dies_is_passed_over_at_once_and_the_answer_says_so(place: Up) -> None:
    ran = await place.shell.standby(
        "endpoints", "create", "two", "--model", "smol", "--tier", "critical", "--hybrid", "thresholds",
        "--backend", "engine=llama_cpp,name=first,min-ready=1", "--backend", "engine=fake,name=spare,min-ready=1",
    )  # fmt: skip
    assert "endpoint two is InService" in ran.out

    await until_ready(place, "two", {"first", "spare"})
    answer = await place.ask("two", QUESTION)
    assert "Paris" in text_of(answer)
    assert "first" in answer.headers[ROUTE], answer.headers[ROUTE]
    shown = (await place.shell.standby("endpoints", "show", "two")).out
    assert "critical: one more try elsewhere" in shown
    assert "first (preferred)" in shown

    first = (await instances(place, "two"))["first"]
    os.kill(engine_of(place, first["id"]).pid, signal.SIGKILL)

    async def known() -> bool:
        now = (await instances(place, "two")).get("first", {})
        return (now.get("state"), now.get("epoch")) != ("ready", first["epoch"])

    await until(known, "its death is known", DEADLINE_S)
    for _ in range(3):
        answer = await place.ask("two", QUESTION)
        assert "Paris" in text_of(answer)
        assert "spare" in answer.headers[ROUTE], answer.headers[ROUTE]


async def test_each_engine_is_woken_for_its_own_requests_only(place: Up) -> None:
    body = {
        "name": "lazy",
        "model": "smol",
        "backends": [{"engine": "llama_cpp", "name": "first"}, {"engine": "fake", "name": "spare"}],
        "traffic": {"hybrid": {"policy": "thresholds"}},
    }
    await place.call("POST", "/endpoints", body)
    assert "Paris" in text_of(await place.ask("lazy", QUESTION))
    assert list(await instances(place, "lazy")) == ["first"]


@pytest.mark.vllm
@needs_vllm
async def test_llama_cpp_and_vllm_answer_for_one_endpoint_each_for_its_prompts(s3: S3Server, folder: Path) -> None:
    for path in twin_folder().iterdir():
        await s3.upload("models", f"twin/{path.name}", path)
    settings = {"STANDBY_VLLM_PYTHON": str(vllm_python())}
    async with up(folder / "state", {**s3.env(), **settings}) as found:
        weights = {"full": {"source_uri": "s3://models/twin/"}}
        await found.call("POST", "/models", {"name": "smol", "source_uri": "s3://models/smollm2/", "weights": weights})
        await found.shell.standby(
            "endpoints", "create", "pair", "--model", "smol", "--hybrid", "thresholds", "--latency-target", "100ms",
            "--queue", "static", "--max-cold-wait", "4m",
            "--backend", "engine=llama_cpp,min-ready=1",
            "--backend", "engine=vllm,weights=full,slots=2,min-ready=1,option.context=2048",
        )  # fmt: skip
        await until_ready(found, "pair", {"llama_cpp", "vllm"}, 120)
        short = await found.ask("pair", QUESTION)
        assert "Paris" in text_of(short)
        assert "vllm" in short.headers[ROUTE], short.headers[ROUTE]
        # More than 512 tokens and fewer than 2048 bytes: neither short nor long, however they are counted.
        middling = await found.ask("pair", f"{'a b c d ' * 200}{QUESTION}")
        text_of(middling)
        assert "llama_cpp" in middling.headers[ROUTE], middling.headers[ROUTE]
