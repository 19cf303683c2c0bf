"""The sleep mode of vLLM on a GPU, against a stand-in of its HTTP surface: what is asked, in which order, what is believed."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from standby.domain.errors import EngineError
from standby.domain.model import EngineKind
from standby.domain.node import DeviceKind
from standby.runtime.engine_http import request
from standby.runtime.engines.base import EngineHandle, EngineSpec
from standby.runtime.engines.child_protocol import READY_FD_VARIABLE
from standby.runtime.engines.vllm import Vllm
from standby.runtime.process import EngineProcess, spawn
from standby.runtime.process_ledger import ProcessLedger
from support import vllm_stand_in
from support.fake_engine_spec import SERVED_NAME, running, short_dir
from support.vllm import stand_in_program

AWAKE = (vllm_stand_in.RIGHT,)


class StandIn(Vllm):
    """The adapter for GPUs; the program that it starts is the stand-in."""

    async def bring_up(
        self, spec: EngineSpec, arguments: Sequence[str], *, log: Path, mark: str, extra: Mapping[str, str], ready: int
    ) -> EngineProcess:
        return spawn(
            [sys.executable, "-S", vllm_stand_in.__file__, *arguments],
            log=log,
            mark=mark,
            extra_environment={**extra, READY_FD_VARIABLE: str(ready)},
            keep_descriptors=(ready,),
        )


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with short_dir() as folder:
        yield folder


@pytest.fixture
def engine(run_dir: Path) -> Iterator[StandIn]:
    ledger = ProcessLedger(run_dir / "ledger")
    yield StandIn(ledger, stand_in_program(DeviceKind.GPU))
    assert ledger.survivors() == ()


@asynccontextmanager
async def started(engine: Vllm, run_dir: Path, **knobs: Any) -> AsyncIterator[EngineHandle]:
    model = run_dir / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / vllm_stand_in.KNOBS_FILE).write_text(json.dumps(knobs))
    spec = EngineSpec(
        instance="v", epoch=1, kind=EngineKind.VLLM, model_dir=model, model_files=("config.json",), served_name=SERVED_NAME,
        slots=2, run_dir=run_dir,
    )  # fmt: skip
    async with running(engine, spec) as handle:
        yield handle


async def calls(handle: EngineHandle) -> object:
    return (await request(handle.address, "GET", "/calls")).json()


async def answer(engine: Vllm, handle: EngineHandle) -> tuple[str, ...]:
    return (await engine.probe(handle, 60)).pieces


async def test_weights_kept_on_the_host_come_back_before_the_cache(engine: StandIn, run_dir: Path) -> None:
    async with started(engine, run_dir) as handle:
        slept = await engine.suspend(handle, depth=1)
        await engine.resume(handle)
        assert slept.depth == "level 1"
        assert slept.resident_before > 0
        assert await calls(handle) == ["sleep 1 wait", "wake weights", "wake kv_cache"]
        assert await answer(engine, handle) == AWAKE


async def test_weights_that_were_dropped_are_read_again_before_anything_is_generated(engine: StandIn, run_dir: Path) -> None:
    """Woken without it, vLLM generates rubbish from what lies in their place."""
    async with started(engine, run_dir) as handle:
        slept = await engine.suspend(handle, depth=2)
        assert await answer(engine, handle) == (vllm_stand_in.WRONG,)
        await engine.resume(handle)
        assert slept.depth == "level 2"
        assert await calls(handle) == ["sleep 2 wait", "wake weights", "reload_weights", "wake kv_cache"]
        assert await answer(engine, handle) == AWAKE


async def test_a_wake_is_done_once(engine: StandIn, run_dir: Path) -> None:
    async with started(engine, run_dir) as handle:
        await engine.suspend(handle)
        await engine.resume(handle)
        before = await calls(handle)
        await engine.resume(handle)
        assert await calls(handle) == before


async def test_a_busy_engine_is_not_put_to_sleep(engine: StandIn, run_dir: Path) -> None:
    """Field case B15."""
    async with started(engine, run_dir, running=3) as handle:
        with pytest.raises(EngineError, match="still works on 3 requests"):
            await engine.suspend(handle)
        assert await calls(handle) == []


async def test_that_it_says_200_proves_nothing(engine: StandIn, run_dir: Path) -> None:
    """Field case B13."""
    async with started(engine, run_dir, sleep_lies=True) as handle:
        with pytest.raises(EngineError, match="accepted to sleep at level 1 and says that it does not sleep"):
            await engine.suspend(handle)


async def test_an_engine_that_dies_of_falling_asleep_is_noticed(engine: StandIn, run_dir: Path) -> None:
    async with started(engine, run_dir, dies_asleep=True) as handle:
        with pytest.raises(EngineError):
            await engine.suspend(handle)
        assert (await asyncio.wait_for(handle.exited, 60)).code == 9


@pytest.mark.parametrize("tag", ["weights", "kv_cache"])
async def test_a_wake_that_fails_half_way_says_so(engine: StandIn, run_dir: Path, tag: str) -> None:
    """Part of its memory may be missing: the caller ends it."""
    async with started(engine, run_dir, wake_fails=tag) as handle:
        await engine.suspend(handle)
        with pytest.raises(EngineError, match=f"wake_up.tags={tag} with 500: .*out of memory"):
            await engine.resume(handle)


async def test_an_engine_without_the_routes_says_so(engine: StandIn, run_dir: Path) -> None:
    async with started(engine, run_dir, no_routes=True) as handle:
        with pytest.raises(EngineError, match=r"answered POST /sleep.* with 404"):
            await engine.suspend(handle)


async def test_a_level_that_does_not_exist_is_refused(engine: StandIn, run_dir: Path) -> None:
    async with started(engine, run_dir) as handle:
        with pytest.raises(EngineError, match="sleep level 3"):
            await engine.suspend(handle, depth=3)
