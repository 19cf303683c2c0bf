"""One engine under the contract: its adapter, its specs, and what is different about it."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from standby.domain.errors import EngineError
from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineAdapter, EngineHandle, EngineSpec
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, SERVED_NAME, fake_spec, real_spec, short_dir
from support.trtllm import HOT_OR_COLD, SLEEPING, trtllm_adapter, trtllm_spec
from support.vllm import vllm_adapter, vllm_spec

KINDS = ("fake", "llama_cpp", "tensorrt_llm", "tensorrt_llm_sleeping", "vllm")
_STUB_DELAY_MS = 4


@dataclass
class Case:
    """An engine; ``spec(instance=…, slots=…)`` makes what starts it."""

    name: str
    adapter: EngineAdapter
    make_spec: Callable[..., EngineSpec]
    run_dir: Path
    ledger: ProcessLedger

    @property
    def real(self) -> bool:
        """Whether a real model answers."""
        return self.adapter.kind in (EngineKind.LLAMA_CPP, EngineKind.VLLM)

    @property
    def llama(self) -> bool:
        """llama.cpp gives more than others and notices less."""
        return self.adapter.kind is EngineKind.LLAMA_CPP

    @property
    def answers_as(self) -> str:
        """What the engine calls the model: TensorRT-LLM 1.2 cannot be told and uses the last part."""
        return SERVED_NAME.rsplit("/", 1)[-1] if self.name == "tensorrt_llm" else SERVED_NAME

    def spec(self, *, instance: str, slots: int = 2) -> EngineSpec:
        """A spec whose answers take a while where no model computes them."""
        stub = {} if self.real else {"token_delay_ms": _STUB_DELAY_MS}
        return self.make_spec(self.run_dir, instance=instance, slots=slots, **stub)

    def own_copy(self, spec: EngineSpec) -> EngineSpec:
        """The same with a copy of llama.cpp's model that no other process maps, all of it on disk: its pages must go.

        Other engines hold weights of their own.
        """
        if not self.llama:
            return spec
        copy = self.run_dir / f"own-{spec.instance}"
        copy.mkdir()
        for name in spec.model_files:
            shutil.copyfile(spec.model_dir / name, copy / name)
            with (copy / name).open("rb") as stream:
                os.fsync(stream.fileno())
        return spec.model_copy(update={"model_dir": copy})

    def broken_spec(self, *, instance: str) -> EngineSpec:
        """A spec of an engine that cannot load: rubbish for a model, or told to fail with a secret in its words."""
        if not self.real:
            told = {"fail_start": 1, "fail_message": "loading\nerror: no such tensor, token=abcdef123"}
            return self.make_spec(self.run_dir, instance=instance, **told)
        spec = self.spec(instance=instance)
        rubbish = self.run_dir / f"rubbish-{instance}"
        for name in spec.model_files:
            (rubbish / name).parent.mkdir(parents=True, exist_ok=True)
            (rubbish / name).write_bytes(b"this is no model")
        return spec.model_copy(update={"model_dir": rubbish})


@dataclass
class Served:
    """An engine that runs and is asked by many tests: whoever changes its state puts it back."""

    case: Case
    handle: EngineHandle


@asynccontextmanager
async def engine_case(name: str) -> AsyncIterator[Case]:
    """The engine of this name; at the end nothing that it started may be left."""
    with short_dir() as run_dir:
        ledger = ProcessLedger(run_dir / "ledger")
        match name:
            case "fake":
                yield Case(name, FakeEngine(ledger, FAKE_ENGINE_PROGRAM), fake_spec, run_dir, ledger)
            case "llama_cpp":
                yield Case(name, LlamaCpp(ledger), real_spec, run_dir, ledger)
            case "vllm":
                async with vllm_adapter(ledger, run_dir) as adapter:
                    yield Case(name, adapter, vllm_spec, run_dir, ledger)
            case _:
                version = HOT_OR_COLD if name == "tensorrt_llm" else SLEEPING
                adapter_of_stand_in = trtllm_adapter(ledger, version)

                def make(run_dir: Path, **more: object) -> EngineSpec:
                    return trtllm_spec(run_dir, version=version, **more)  # type: ignore[arg-type]

                yield Case(name, adapter_of_stand_in, make, run_dir, ledger)
        assert ledger.survivors() == ()
        assert ledger.records() == ()


async def refuses_to_sleep(adapter: EngineAdapter, handle: EngineHandle) -> None:
    """An engine that is hot or cold says so, and goes on serving."""
    assert not adapter.capabilities.sleep
    with pytest.raises(EngineError, match="cannot sleep: it is hot or cold"):
        await adapter.suspend(handle)
    await adapter.probe(handle, 30)
