"""Builders for engines in tests: the fake engine's program and adapter, and specs of both kinds."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineAdapter, EngineHandle, EngineSpec
from support.real_model import real_model_path

FAKE_ENGINE_PROGRAM = Path(__file__).with_name("fake_engine.py")
SERVED_NAME = "org/smol-135m"
Option = str | int | float | bool


@contextmanager
def short_dir() -> Iterator[Path]:
    """A folder with a path short enough for unix sockets; pytest's own may be too long."""
    with tempfile.TemporaryDirectory(prefix="sb-") as folder:
        yield Path(folder)


def fake_spec(run_dir: Path, *, instance: str = "fake1", epoch: int = 1, slots: int = 2, **options: Option) -> EngineSpec:
    """A spec of the fake engine with these knobs."""
    return EngineSpec(
        instance=instance,
        epoch=epoch,
        kind=EngineKind.FAKE,
        model_dir=run_dir,
        model_files=("model.gguf",),
        served_name=SERVED_NAME,
        slots=slots,
        options=options,
        run_dir=run_dir,
    )


def real_spec(
    run_dir: Path, *, instance: str = "real1", epoch: int = 1, slots: int = 2, model: Path | None = None, **options: Option
) -> EngineSpec:
    """A spec of llama.cpp with the real model, or with ``model``."""
    model = model or real_model_path()
    return EngineSpec(
        instance=instance,
        epoch=epoch,
        kind=EngineKind.LLAMA_CPP,
        model_dir=model.parent,
        model_files=(model.name,),
        served_name=SERVED_NAME,
        slots=slots,
        options=options,
        run_dir=run_dir,
    )


@asynccontextmanager
async def running(adapter: EngineAdapter, spec: EngineSpec, *, loaded: bool = True) -> AsyncIterator[EngineHandle]:
    """A started engine, loaded unless told otherwise; stopped at the end, whatever happened."""
    handle = await adapter.start(spec)
    try:
        if loaded:
            await adapter.wait_loaded(handle, 120)
        yield handle
    finally:
        await adapter.stop(handle, 1)
