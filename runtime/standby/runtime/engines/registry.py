"""Which engines this machine can run."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

from pydantic import Field

from standby.domain.errors import ConfigurationError
from standby.domain.model import EngineKind
from standby.domain.settings import Settings
from standby.runtime.engines.base import EngineAdapter
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.process_ledger import ProcessLedger

_REMEDIES = MappingProxyType({EngineKind.LLAMA_CPP: "pip install 'standby[llama-cpp]'"})


class RuntimeSettings(Settings):
    """Settings of engines."""

    fake_engine: Path | None = Field(
        default=None, description="program that stands in for an engine in tests of faults; unset in every real deployment"
    )


class EngineRegistry:
    """Adapters by kind. What cannot run here is missing, and asking for it says how to get it."""

    def __init__(self, adapters: Mapping[EngineKind, EngineAdapter]) -> None:
        self._adapters = dict(adapters)

    @classmethod
    def discover(cls, ledger: ProcessLedger, settings: RuntimeSettings | None = None) -> Self:
        """Look which engines are installed; loads none of them."""
        settings = settings or RuntimeSettings.load()
        adapters: dict[EngineKind, EngineAdapter] = {}
        if importlib.util.find_spec("xllamacpp"):
            adapters[EngineKind.LLAMA_CPP] = LlamaCpp(ledger)
        if settings.fake_engine:
            adapters[EngineKind.FAKE] = FakeEngine(ledger, settings.fake_engine)
        return cls(adapters)

    def available(self) -> tuple[EngineKind, ...]:
        """Return the kinds that this machine can run, in the order of preference."""
        return tuple(self._adapters)

    def adapter(self, kind: EngineKind) -> EngineAdapter:
        """Return the adapter of ``kind``. Raises ConfigurationError with the way to install it."""
        try:
            return self._adapters[kind]
        except KeyError:
            available = ", ".join(self._adapters) or "none"
            raise ConfigurationError(
                f"engine {kind} cannot run on this machine; available: {available}",
                remedy=_REMEDIES.get(kind, "use another engine for this model"),
            ) from None
