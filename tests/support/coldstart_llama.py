"""llama.cpp from staged to its first token, through the adapter that the node uses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineSpec
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.process_ledger import ProcessLedger
from support.coldstart_client import SERVED, first_token
from support.coldstart_values import Sample
from support.real_model import real_model_path

SLOTS: Final = 2
_LOAD_LIMIT_S: Final = 60
_GRACE_S: Final = 2.0


class LlamaStarts:
    """Starts of the real GGUF model. Its file lies in the page cache, as a node's staging leaves it."""

    def __init__(self, ledger: ProcessLedger, run_dir: Path, prompts: Iterator[str]) -> None:
        self._adapter = LlamaCpp(ledger)
        self._run_dir = run_dir
        self._prompts = prompts
        self._epoch = 0

    @property
    def version(self) -> str:
        """The engine's."""
        return self._adapter.version

    async def start(self) -> Sample:
        """Measure one start."""
        real_model_path().read_bytes()
        spec = self._spec()
        began = time.perf_counter()
        handle = await self._adapter.start(spec)
        try:
            await self._adapter.wait_loaded(handle, _LOAD_LIMIT_S)
            loaded_s = time.perf_counter() - began
            token = await first_token(handle.address, next(self._prompts), handle.process)
            return Sample(token.at - began, details={"loaded": loaded_s})
        finally:
            await self._adapter.stop(handle, _GRACE_S)

    def _spec(self) -> EngineSpec:
        self._epoch += 1
        model = real_model_path()
        return EngineSpec(
            instance="llama",
            epoch=self._epoch,
            kind=EngineKind.LLAMA_CPP,
            model_dir=model.parent,
            model_files=(model.name,),
            served_name=SERVED,
            slots=SLOTS,
            run_dir=self._run_dir,
        )
