"""vLLM: safetensors models on GPUs and processors; forked from a zygote where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from standby.domain.errors import EngineError, ForkFailed, InvalidInput
from standby.domain.model import EngineKind, Manifest
from standby.runtime.engine_http import request
from standby.runtime.engines import vllm_traces
from standby.runtime.engines.base import Capabilities, EngineHandle, EngineLoad, EngineSpec, Options, SuspendResult
from standby.runtime.engines.child_protocol import READY_FD_VARIABLE, SLEEP
from standby.runtime.engines.process_engine import ProcessEngine
from standby.runtime.engines.sleep_steps import members_of, memory_of, refuse_busy, until_stopped
from standby.runtime.engines.vllm_arguments import arguments, environment, kv_bytes
from standby.runtime.engines.vllm_options import VllmOptions
from standby.runtime.engines.vllm_program import VllmProgram, find_program
from standby.runtime.engines.vllm_sleep import LEVELS, SleepControl
from standby.runtime.exit_status import ExitStatus
from standby.runtime.foreign import foreign_command
from standby.runtime.process import EngineProcess
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.host import Zygote, ZygotePlan

_log = logging.getLogger(__name__)

_CHILD: Final = "standby.runtime.engines.vllm_child"
_PROFILE: Final = "standby.runtime.engines.vllm_profile"
_LOAD_LIMIT_S: Final = 5.0
_SUSPEND_LIMIT_S: Final = 15.0
_SUSPEND_LOOK_S: Final = 0.002
_GPU_BASE_BYTES: Final = 3 * 2**30  # interpreter, CUDA libraries and pinned buffers of each rank; measured sizes replace it
# Measured on SmolLM2-135M: both processes of an engine, beyond weights and cache, that they do not share with a zygote.
_CPU_BASE_BYTES: Final = 420 * 2**20
# Weights are packed anew for the processor's matrix units, and the copy that was read is dropped late.
_CPU_WEIGHTS_FACTOR: Final = 1.3

Zygotes = Callable[[EngineKind], Zygote | None]


class Vllm(ProcessEngine):
    """Two processes for each instance: the API server and EngineCore; on several GPUs one more for each.

    On a GPU it sleeps by vLLM's own sleep mode. On a processor it is stopped after it has given back the untouched part
    of its key-value cache and free heap; its weights are its own memory there and cannot be given back.
    """

    guards_itself = True
    says_ready = True

    def __init__(
        self, ledger: ProcessLedger, program: VllmProgram, zygotes: Zygotes = lambda _: None, traces: str | None = None
    ) -> None:
        """``zygotes`` returns the zygote that forks engines of a kind now; None: start plainly. ``traces``: where spans go."""
        super().__init__(ledger)
        self._program = program
        self._zygotes = zygotes
        self._levels: dict[EngineHandle, int] = {}
        lacks = vllm_traces.missing(program.packages) if traces is not None else ()
        if lacks:
            _log.warning("vLLM's own spans are left out, since %s is not installed beside it", ", ".join(lacks))
        self._traces = None if lacks else traces

    @property
    def kind(self) -> EngineKind:
        """vLLM."""
        return EngineKind.VLLM

    @property
    def capabilities(self) -> Capabilities:
        """Sleeps, is forked from a zygote, and keeps what it compiles."""
        return Capabilities(sleep=True, zygote=True, device=self._program.device, for_gpus=True)

    @property
    def version(self) -> str:
        """Versions of vLLM, torch and transformers, as they were when this was made."""
        return self._program.version

    @property
    def zygote_plan(self) -> ZygotePlan:
        """How to make the zygote."""
        return ZygotePlan(self.kind, self._program.python, _PROFILE, self._preload())

    def installed_version(self) -> str:
        """Return the versions that are installed now; runs another interpreter (0.1 s). Raises ConfigurationError."""
        return find_program(self._program.python).version

    def uses_compile_cache(self, options: Options) -> bool:
        """Return whether an engine with these options compiles anything that is worth keeping."""
        return not VllmOptions.parse(options).eager(on_gpu=self._program.on_gpu)

    def check(self, options: Options) -> None:
        """Raise InvalidInput unless every option is known and in range, and what it needs is installed."""
        parsed = VllmOptions.parse(options)
        missing = [name for name in parsed.needed_packages if name not in self._program.packages]
        if missing:
            raise InvalidInput(
                f"vLLM's options need {', '.join(missing)}, which is not installed beside it",
                remedy=f"install it: {self._program.python} -m pip install {' '.join(missing)}",
            )
        if not self._program.on_gpu and parsed.devices > 1:
            raise InvalidInput(f"devices={parsed.devices}: this vLLM computes on a processor", remedy="leave the option out")

    def prioritised(self, options: Options) -> bool:
        """Return whether it schedules by priority: it refuses other numbers than 0 where it does not."""
        return VllmOptions.parse(options).priority

    async def adapters(self, handle: EngineHandle, deadline_s: float) -> tuple[str, ...]:
        """Read them from its list of models, where each names the model that it belongs to. Raises EngineError."""
        if not VllmOptions.parse(handle.spec.options).enable_lora:
            return ()
        try:
            async with asyncio.timeout(deadline_s):
                answer = await request(handle.address, "GET", "/v1/models")
            said: Any = answer.json()
            return tuple(str(card["id"]) for card in said["data"] if card.get("parent"))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:  # TimeoutError is an OSError
            raise EngineError(f"engine did not tell its adapters within {deadline_s:g} s: {error!r}") from error

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:
        """Host memory in bytes; on a GPU the weights while they are loaded, or kept while it sleeps."""
        parsed = VllmOptions.parse(options)
        if self._program.on_gpu:
            return manifest.unpacked_bytes + parsed.devices * _GPU_BASE_BYTES
        facts = manifest.facts
        context = min(parsed.context, facts.context_length or parsed.context)
        cache = kv_bytes(parsed, slots, context, facts.kv_bytes_per_token or 0)
        return round(manifest.unpacked_bytes * _CPU_WEIGHTS_FACTOR) + cache + _CPU_BASE_BYTES

    def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:  # noqa: ARG002 - it needs no files
        """Return vLLM's arguments; ``bring_up`` puts a program before them where there is no zygote."""
        self.check(spec.options)
        return [*arguments(spec, socket, on_gpu=self._program.on_gpu), *vllm_traces.arguments(self._traces)]

    async def bring_up(
        self, spec: EngineSpec, arguments: Sequence[str], *, log: Path, mark: str, extra: Mapping[str, str], ready: int
    ) -> EngineProcess:
        """Fork it from the zygote, or start it plainly where there is none or the fork fails."""
        traced = vllm_traces.environment(self._traces, spec)
        added = {**environment(spec, on_gpu=self._program.on_gpu), **traced, **extra}
        zygote = self._zygotes(self.kind)
        if zygote is not None:
            try:
                return await zygote.fork(
                    arguments=arguments,
                    environment=added,
                    log=log,
                    mark=mark,
                    descriptors={READY_FD_VARIABLE: ready},
                    cores=spec.cores,
                )
            except ForkFailed as error:
                _log.warning("instance %s is started without a zygote: %s", spec.instance, error)
        command = foreign_command(self._program.python, _CHILD, arguments)
        process = await super().bring_up(spec, command, log=log, mark=mark, extra={**self._preload(), **added}, ready=ready)
        if spec.cores:
            # An error here would lose a process that runs: one that has ended already says so by its exit, and
            # processors that are not ours any more are told when the whole engine is bound to them.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(process.pid, spec.cores)
        return process

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Read running and waiting requests; as progress the steps that its core has made."""
        figures = await self.metrics(handle, deadline_s)
        tokens = figures.get("vllm:prompt_tokens_total", 0) + figures.get("vllm:generation_tokens_total", 0)
        return EngineLoad(
            running=round(figures.get("vllm:num_requests_running", 0)),
            waiting=round(figures.get("vllm:num_requests_waiting", 0)),
            progress=figures.get("vllm:iteration_tokens_total_count", tokens),
            kv_used=_share(figures.get("vllm:kv_cache_usage_perc")),
        )

    async def suspend(self, handle: EngineHandle, *, depth: int = 1) -> SuspendResult:
        """Put it to sleep. ``depth`` is vLLM's sleep level on a GPU; a processor knows one way only."""
        if (status := handle.process.status) is not None:
            raise EngineError(f"engine ended before it could be put to sleep: {status.words}")
        if self._program.on_gpu:
            return await self._sleep_on_gpu(handle, depth)
        return await self._sleep_on_cpu(handle)

    async def resume(self, handle: EngineHandle) -> None:
        """Wake it; nothing happens to one that is awake. On any error the caller must end it: part of it may be missing."""
        await super().resume(handle)
        if self._program.on_gpu:
            await SleepControl(handle.address).wake(self._levels.get(handle, max(LEVELS)))
            self._levels.pop(handle, None)

    async def stop(self, handle: EngineHandle, grace_s: float) -> ExitStatus:
        """End the group; what does not end by SIGTERM, e.g. in the last moments of its start, is killed after ``grace_s``."""
        self._levels.pop(handle, None)
        return await super().stop(handle, grace_s)

    def _preload(self) -> dict[str, str]:
        """Return what must be in the environment when the interpreter starts."""
        libraries = [str(path) for path in self._program.preload]
        inherited = os.environ.get("LD_PRELOAD")
        found = {"LD_PRELOAD": ":".join([*libraries, *([inherited] if inherited else [])])} if libraries else {}
        # What lies on our own search path would win over the packages of another interpreter.
        return found if self._program.python == Path(sys.executable) else {**found, "PYTHONPATH": ""}

    async def _sleep_on_gpu(self, handle: EngineHandle, level: int) -> SuspendResult:
        if level not in LEVELS:
            raise EngineError(f"sleep level {level} is none of {LEVELS}")
        refuse_busy(await self.load(handle, _LOAD_LIMIT_S))
        began, before = time.perf_counter(), await memory_of(handle)
        self._levels[handle] = level
        await SleepControl(handle.address).sleep(level)
        if (status := handle.process.status) is not None:
            raise EngineError(f"engine ended while it fell asleep: {status.words}")
        return SuspendResult(
            resident_before=before,
            resident_after=await memory_of(handle),
            depth=f"level {level}",
            ms=(time.perf_counter() - began) * 1000,
        )

    async def _sleep_on_cpu(self, handle: EngineHandle) -> SuspendResult:
        began, before = time.perf_counter(), await memory_of(handle)
        if await self._idle(handle):
            handle.process.send(SLEEP)
            await _until_stopped(handle)
        handle.process.send_to_group(signal.SIGSTOP)
        await _until_stopped(handle)
        elapsed = (time.perf_counter() - began) * 1000
        after = await memory_of(handle)
        return SuspendResult(
            resident_before=before,
            resident_after=after,
            depth="stopped",
            kept=f"{after} bytes: on a processor weights and interpreter are its own memory, which cannot be given back",
            ms=elapsed,
        )

    async def _idle(self, handle: EngineHandle) -> bool:
        """Return whether it has nothing to do; memory that a step may write to must not be given back."""
        try:
            load = await self.load(handle, _LOAD_LIMIT_S)
        except EngineError:  # an engine that does not answer is treated as one that works
            return False
        return not load.running and not load.waiting


def _share(found: float | None) -> float | None:
    return None if found is None else min(1.0, max(0.0, found))


async def _until_stopped(handle: EngineHandle) -> None:
    await until_stopped(handle, await members_of(handle), limit_s=_SUSPEND_LIMIT_S, look_s=_SUSPEND_LOOK_S)
