"""Which engines this machine can run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from pydantic import Field

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.domain.settings import Settings
from standby.runtime.engines import tensorrt_llm_program, vllm_program
from standby.runtime.engines.base import EngineAdapter
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.engines.tensorrt_llm import TensorRtLlm
from standby.runtime.engines.vllm import Vllm, Zygotes
from standby.runtime.process_ledger import ProcessLedger
from standby.telemetry.tracing_settings import TracingSettings

_LLAMA_CPP_REMEDY: Final = "pip install 'standby[llama-cpp]'"


def no_zygotes(_kind: EngineKind) -> None:
    """Every engine is started plainly."""


class RuntimeSettings(Settings):
    """Settings of engines."""

    vllm_python: Path | None = Field(
        default=None, description="interpreter of the environment that has vLLM; unset: standby's own, where vLLM is there"
    )
    tensorrt_llm_serve: Path | None = Field(
        default=None,
        description="trtllm-serve of the environment that has TensorRT-LLM, or that environment's python; unset: standby's own",
    )
    fake_engine: Path | None = Field(
        default=None, description="program that stands in for an engine in tests of faults; unset in every real deployment"
    )


class EngineRegistry:
    """Adapters by kind. What cannot run here is missing, and asking for it says why and how to get it."""

    def __init__(
        self, adapters: Mapping[EngineKind, EngineAdapter], absent: Mapping[EngineKind, ConfigurationError] | None = None
    ) -> None:
        self._adapters = dict(adapters)
        self._absent = dict(absent or {})

    @classmethod
    def discover(cls, ledger: ProcessLedger, settings: RuntimeSettings | None = None, *, zygotes: Zygotes = no_zygotes) -> Self:
        """Look which engines are installed; loads none of them. Other interpreters are run once: call it in a thread.

        ``zygotes`` returns the node's zygote of a kind where there is one now.
        """
        settings = settings or RuntimeSettings.load()
        makers: dict[EngineKind, Callable[[], EngineAdapter]] = {
            EngineKind.LLAMA_CPP: lambda: _llama_cpp(ledger),
            EngineKind.VLLM: lambda: Vllm(
                ledger, vllm_program.find_program(settings.vllm_python), zygotes, TracingSettings.load().engines_url
            ),
            EngineKind.TENSORRT_LLM: lambda: TensorRtLlm(
                ledger, tensorrt_llm_program.find_program(settings.tensorrt_llm_serve)
            ),
        }
        if settings.fake_engine:
            program = settings.fake_engine
            makers[EngineKind.FAKE] = lambda: FakeEngine(ledger, program)
        adapters: dict[EngineKind, EngineAdapter] = {}
        absent: dict[EngineKind, ConfigurationError] = {}
        for kind, make in makers.items():
            try:
                adapters[kind] = make()
            except ConfigurationError as error:
                absent[kind] = error
            except OSError as error:  # a path in the settings that this user may not even look at
                absent[kind] = ConfigurationError(f"engine {kind} cannot be looked for: {error}", remedy="correct its setting")
        return cls(adapters, absent)

    def available(self) -> tuple[EngineKind, ...]:
        """Return the kinds that this machine can run, in the order of preference."""
        return tuple(self._adapters)

    def absent(self) -> Mapping[EngineKind, ConfigurationError]:
        """Return why each other kind cannot run here, with the remedy."""
        return MappingProxyType(self._absent)

    def adapter(self, kind: EngineKind) -> EngineAdapter:
        """Return the adapter of ``kind``. Raises ConfigurationError with what is missing and the way to get it."""
        if kind in self._adapters:
            return self._adapters[kind]
        available = ", ".join(self._adapters) or "none"
        cause = self._absent.get(kind)
        raise ConfigurationError(
            f"engine {kind} cannot run on this machine{f' ({cause.message})' if cause else ''}; available: {available}",
            remedy=cause.remedy if cause else "use another engine for this model",
        ) from cause


def _llama_cpp(ledger: ProcessLedger) -> LlamaCpp:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigurationError("xllamacpp is not installed", remedy=_LLAMA_CPP_REMEDY)
    return LlamaCpp(ledger)
