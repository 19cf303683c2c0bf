"""Stands for an engine that this machine cannot run: an assignment of it fails with the reason and the remedy."""

from __future__ import annotations

from typing import NoReturn

from standby.domain.errors import StandbyError
from standby.domain.model import EngineKind, Manifest
from standby.runtime.engines.base import Capabilities, EngineHandle, EngineSpec, Options


class AbsentEngine:
    """Each call raises ``cause``; nothing is ever spawned. It needs no memory, so that the cause is what is seen."""

    capabilities = Capabilities(sleep=False)
    version = "absent"

    def __init__(self, kind: EngineKind, cause: StandbyError) -> None:
        self.kind = kind
        self._cause = cause

    def check(self, _options: Options) -> None:
        """Raise the cause."""
        raise self._cause

    def uses_compile_cache(self, _options: Options) -> bool:
        """Nothing is compiled."""
        return False

    def prioritised(self, _options: Options) -> bool:
        """Nothing is served."""
        return False

    async def adapters(self, _handle: EngineHandle, _deadline_s: float) -> tuple[str, ...]:
        """None."""
        return ()

    def estimate_bytes(self, _manifest: Manifest, _options: Options, _slots: int) -> int:
        """Nothing."""
        return 0

    async def start(self, _spec: EngineSpec) -> EngineHandle:
        """Raise the cause."""
        raise self._cause

    async def wait_loaded(self, _handle: EngineHandle, _deadline_s: float) -> None:
        """Raise the cause."""
        raise self._cause

    async def probe(
        self,
        _handle: EngineHandle,
        _deadline_s: float,
        *,
        prompt: str = "",  # noqa: ARG002 - protocol
        tokens: int = 1,  # noqa: ARG002 - protocol
        margins: bool = False,  # noqa: ARG002 - protocol
    ) -> NoReturn:
        """Raise the cause."""
        raise self._cause

    async def load(self, _handle: EngineHandle, _deadline_s: float) -> NoReturn:
        """Raise the cause."""
        raise self._cause

    async def suspend(self, _handle: EngineHandle, *, depth: int = 1) -> NoReturn:  # noqa: ARG002 - protocol
        """Raise the cause."""
        raise self._cause

    async def resume(self, _handle: EngineHandle) -> None:
        """Raise the cause."""
        raise self._cause

    async def stop(self, _handle: EngineHandle, _grace_s: float) -> NoReturn:
        """Raise the cause."""
        raise self._cause
