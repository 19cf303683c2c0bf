"""Real vLLM for tests: where it is, its adapter with a zygote that all tests of a run share, and specs for it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from standby.domain.model import EngineKind
from standby.domain.node import DeviceKind
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.vllm import Vllm
from standby.runtime.engines.vllm_program import VllmProgram, find_program
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.host import Zygote
from support.fake_engine_spec import SERVED_NAME, Option
from support.safetensors_twin import twin_folder

HATCH_LIMIT_S: Final = 120.0
_ROOT: Final = Path(__file__).parents[2]
ABSENT: Final = "vLLM is not installed: make vllm"


@cache
def vllm_python() -> Path | None:
    """The interpreter that has vLLM; None where it is not installed."""
    named = os.environ.get("STANDBY_VLLM_PYTHON")
    python = Path(named) if named else _ROOT / ".venv" / "vllm" / "bin" / "python"
    return python if python.exists() else None


needs_vllm = pytest.mark.skipif(vllm_python() is None, reason=ABSENT)


@cache
def vllm_program() -> VllmProgram:
    """The real vLLM. Skips the test where there is none."""
    python = vllm_python()
    if python is None:
        pytest.skip(ABSENT)
    return find_program(python)


def stand_in_program(device: DeviceKind, *, packages: frozenset[str] = frozenset()) -> VllmProgram:
    """A vLLM that is never started, for arguments and for what it says of itself."""
    return VllmProgram(python=Path("/opt/vllm/bin/python"), version="vllm 0.32.0", device=device, packages=packages)


@asynccontextmanager
async def hatched(ledger: ProcessLedger, folder: Path) -> AsyncIterator[Zygote]:
    """A zygote of vLLM, ended at the end; its forks stay."""
    plan = Vllm(ledger, vllm_program()).zygote_plan
    zygote = Zygote(plan, ledger=ledger, log=folder / "zygote.log")
    await zygote.start(HATCH_LIMIT_S)
    try:
        yield zygote
    finally:
        await zygote.stop()


@asynccontextmanager
async def vllm_adapter(ledger: ProcessLedger, folder: Path) -> AsyncIterator[Vllm]:
    """The adapter with a zygote from which every engine is forked."""
    async with hatched(ledger, folder) as zygote:
        yield Vllm(ledger, vllm_program(), lambda _: zygote)


def vllm_spec(
    run_dir: Path,
    *,
    instance: str = "vllm1",
    epoch: int = 1,
    slots: int = 2,
    model: Path | None = None,
    cache_dir: Path | None = None,
    **options: Option,
) -> EngineSpec:
    """A spec of vLLM with the real model as safetensors, or with the one in the folder ``model``."""
    folder = model or twin_folder()
    return EngineSpec(
        instance=instance,
        epoch=epoch,
        kind=EngineKind.VLLM,
        model_dir=folder,
        model_files=tuple(sorted(path.name for path in folder.iterdir())),
        served_name=SERVED_NAME,
        slots=slots,
        options=options,
        run_dir=run_dir,
        cache_dir=cache_dir,
    )
