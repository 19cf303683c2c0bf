"""A stand-in engine that misbehaves on demand. It exists for tests of faults, and only when STANDBY_FAKE_ENGINE is set."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from standby.domain.errors import EngineError
from standby.domain.model import EngineKind, Manifest
from standby.runtime.engines.base import Capabilities, EngineHandle, EngineLoad, EngineSpec, Options, SuspendResult
from standby.runtime.engines.process_engine import ProcessEngine, write_spec
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import process_stat, resident

_BASE_BYTES = 32 * 1024 * 1024
_STOP_LIMIT_S = 5.0


class FakeEngine(ProcessEngine):
    """Runs ``program`` with a spec file: ``socket``, ``served_name``, ``slots``, ``options``."""

    def __init__(self, ledger: ProcessLedger, program: Path, *, sleeps: bool = True) -> None:
        super().__init__(ledger)
        self._program = program
        self._sleeps = sleeps

    @property
    def kind(self) -> EngineKind:
        """The stand-in."""
        return EngineKind.FAKE

    @property
    def capabilities(self) -> Capabilities:
        """Sleeps by being stopped; gives nothing back and says so."""
        return Capabilities(sleep=self._sleeps, for_gpus=True)

    @property
    def version(self) -> str:
        """The program itself: another content is another engine."""
        return f"fake {hashlib.sha256(self._program.read_bytes()).hexdigest()[:12]}"

    def check(self, options: Options) -> None:
        """Accept everything: the knobs are the program's own business."""

    def prioritised(self, options: Options) -> bool:
        """As its knob ``priority`` says."""
        return bool(options.get("priority"))

    async def adapters(self, handle: EngineHandle, deadline_s: float) -> tuple[str, ...]:  # noqa: ARG002 - protocol
        """As its knob ``adapters`` says, joined by commas."""
        return tuple(name for name in str(handle.spec.options.get("adapters", "")).split(",") if name)

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:  # noqa: ARG002 - protocol
        """Return the size of the artifact, what it is told to allocate, and a small base."""
        return manifest.unpacked_bytes + int(options.get("allocate_mib", 0)) * 2**20 + _BASE_BYTES

    def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:
        """Write the program's spec and return its command line."""
        content = {
            "socket": str(socket),
            "served_name": spec.served_name,
            "slots": spec.slots,
            "options": dict(spec.options),
        }
        return [sys.executable, str(self._program), "--spec", str(write_spec(folder, "spec.json", content))]

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Read the running requests, and as progress all tokens given out."""
        figures = await self.metrics(handle, deadline_s)
        return EngineLoad(
            running=round(figures["fake:requests_running"]),
            waiting=round(figures["fake:requests_waiting"]),
            progress=figures["fake:tokens_total"],
            kv_used=figures.get("fake:kv_used"),
        )

    async def suspend(self, handle: EngineHandle, *, depth: int = 1) -> SuspendResult:  # noqa: ARG002 - it knows one way only
        """Stop the group; resident memory stays as it is, which the result says."""
        began = time.perf_counter()
        before = resident(handle.pid)
        handle.process.send_to_group(signal.SIGSTOP)
        async with asyncio.timeout(_STOP_LIMIT_S):
            while (stat := process_stat(handle.pid)) and not stat.stopped:
                if handle.process.status is not None:
                    raise EngineError("engine ended while it was being suspended")
                await asyncio.sleep(0.001)
        after = resident(handle.pid)
        return SuspendResult(
            resident_before=before.total,
            resident_after=after.total,
            ms=(time.perf_counter() - began) * 1000,
        )
