"""TensorRT-LLM by ``trtllm-serve``: safetensors models on NVIDIA GPUs; hot or cold, sleeping where the version can."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from standby.domain.errors import EngineError, InvalidInput
from standby.domain.model import EngineKind, Manifest
from standby.domain.node import DeviceKind
from standby.runtime.engine_http import Answer, request
from standby.runtime.engines.base import (
    Capabilities,
    EngineHandle,
    EngineLoad,
    EngineSpec,
    Options,
    StartFailure,
    SuspendResult,
    describe,
)
from standby.runtime.engines.loopback_ports import LOOPBACK, LoopbackPorts, names_taken_port
from standby.runtime.engines.metrics_text import figures_of
from standby.runtime.engines.process_engine import ProcessEngine, run_folder
from standby.runtime.engines.sleep_steps import memory_of, refuse_busy
from standby.runtime.engines.tensorrt_llm_options import TensorRtLlmOptions
from standby.runtime.engines.tensorrt_llm_program import TrtLlmProgram
from standby.runtime.engines.tensorrt_llm_sleep import KEY_VARIABLE, RuntimeControl
from standby.runtime.exit_status import ExitStatus
from standby.runtime.log_words import log_lines
from standby.runtime.process import EngineProcess
from standby.runtime.process_ledger import ProcessLedger

_log = logging.getLogger(__name__)

_FIRST_WAIT_S: Final = 0.02
_LONGEST_WAIT_S: Final = 0.5
_REFUSALS_ALLOWED: Final = 3
_SHOWN_BYTES: Final = 200
_CONTROL_LIMIT_S: Final = 120.0
_BUSY_LOOK_LIMIT_S: Final = 5.0
# Interpreter, CUDA libraries and pinned buffers of each rank; an estimate, replaced by measured sizes once it has run.
_BASE_BYTES: Final = 4 * 2**30


@dataclass
class _Run:
    """What is known of one started engine beyond its handle."""

    port: int
    key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    load: EngineLoad | None = None


class TensorRtLlm(ProcessEngine):
    """One ``trtllm-serve`` per instance on a loopback port; every setting is in its configuration file.

    It knows no unix socket and no key for its routes: whoever has an account on this machine can reach the port.
    A version that cannot be given a name answers under the name of the model's folder, which is made to be the last
    part of the served name. Its workers are started by MPI in sessions of their own and outlive it; they are ended by
    the mark that they inherit. After SIGTERM it waits for running requests without limit: ``stop`` ends it.
    """

    def __init__(self, ledger: ProcessLedger, program: TrtLlmProgram) -> None:
        super().__init__(ledger)
        self._program = program
        self._ports = LoopbackPorts()
        self._runs: dict[Path, _Run] = {}
        self._sleeps = program.sleeps

    @property
    def kind(self) -> EngineKind:
        """TensorRT-LLM."""
        return EngineKind.TENSORRT_LLM

    @property
    def capabilities(self) -> Capabilities:
        """Sleeps where the version has the routes, and until an engine has said that it lacks them."""
        return Capabilities(sleep=self._sleeps, device=DeviceKind.GPU, for_gpus=True)

    @property
    def version(self) -> str:
        """The package's version and torch's."""
        torch = f" torch {self._program.torch}" if self._program.torch else ""
        return f"tensorrt-llm {self._program.version}{torch}"

    def check(self, options: Options) -> None:
        """Raise InvalidInput unless every option is known, in range, and known to this version."""
        parsed = TensorRtLlmOptions.parse(options)
        parsed.config(1)
        if parsed.priority and not self._program.priorities:
            raise InvalidInput(
                f"priority=True: TensorRT-LLM {self._program.version} does not serve by priority",
                remedy="leave the option out, or use a newer TensorRT-LLM",
            )

    def prioritised(self, options: Options) -> bool:
        """Return whether its waiting queue is ordered by priority."""
        return TensorRtLlmOptions.parse(options).priority

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:  # noqa: ARG002 - protocol
        """Host memory: weights while they are loaded (and while it sleeps), blocks kept on the host, each rank's base."""
        parsed = TensorRtLlmOptions.parse(options)
        return manifest.unpacked_bytes + parsed.kv_host_mib * 2**20 + parsed.devices * _BASE_BYTES

    def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:  # noqa: ARG002 - it knows no sockets
        """Write the configuration, and return the command line."""
        self.check(spec.options)
        run = self._runs[folder] = _Run(self._ports.take())
        config = folder / "config.yaml"
        config.write_text(TensorRtLlmOptions.parse(spec.options).config(spec.slots).as_yaml())
        # A slash cannot be in a folder's name: of "org/model" the last part is kept.
        model = folder / "model" / spec.served_name.rsplit("/", 1)[-1]
        model.parent.mkdir()
        model.symlink_to(spec.model_dir.resolve())
        return [
            *self._program.command, str(model), "--backend", "pytorch",
            "--host", LOOPBACK, "--port", str(run.port), "--config", str(config),
            *(("--served_model_name", spec.served_name) if self._program.names else ()),
            *(("--enable_sleep_mode",) if self._sleeps else ()),
        ]  # fmt: skip

    async def bring_up(
        self, spec: EngineSpec, arguments: Sequence[str], *, log: Path, mark: str, extra: Mapping[str, str], ready: int
    ) -> EngineProcess:
        """Spawn it with the environment that it needs."""
        added = self._environment(spec, self._runs[run_folder(spec)])
        return await super().bring_up(spec, arguments, log=log, mark=mark, extra={**extra, **added}, ready=ready)

    async def start(self, spec: EngineSpec) -> EngineHandle:
        """Spawn the engine with a port of its own."""
        folder = run_folder(spec)
        try:
            handle = await super().start(spec)
        except BaseException:
            self._forget(folder)
            raise
        return replace(handle, address=(LOOPBACK, self._runs[handle.folder].port))

    async def wait_loaded(self, handle: EngineHandle, deadline_s: float) -> None:
        """Wait until it has generated a token. A port that somebody took meanwhile is said to be that."""
        try:
            await super().wait_loaded(handle, deadline_s)
        except StartFailure as error:
            lines, tail = log_lines(handle.log)
            if handle.process.status is None or not any(names_taken_port(line) for line in (*lines, *tail)):
                raise
            port = self._run(handle).port
            failure = describe(handle, f"port {port} was taken by another program meanwhile", code="engine_port_taken")
            raise StartFailure(failure, remedy="nothing to do: the next start gets another port") from error
        await self._look_whether_it_sleeps(handle, deadline_s)

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Read the records of its iterations, which are gone once read; between them the last one stands.

        An idle engine writes none, and version 1.2 waits up to 2 s for one before it answers.
        """
        run = self._run(handle)
        if not TensorRtLlmOptions.parse(handle.spec.options).iteration_stats:
            return EngineLoad()
        records = await _iterations(handle, deadline_s)
        if records:
            run.load = _load_of(records[-1])
        return run.load or EngineLoad(progress=0.0)

    async def metrics(self, handle: EngineHandle, deadline_s: float) -> dict[str, float]:
        """Return the Prometheus figures of requests, where the option request_metrics is set. Raises EngineError."""
        if not TensorRtLlmOptions.parse(handle.spec.options).request_metrics:
            return {}
        return figures_of(await _ask(handle, "/prometheus/metrics", deadline_s), "/prometheus/metrics")

    async def suspend(self, handle: EngineHandle, *, depth: int = 1) -> SuspendResult:  # noqa: ARG002 - it knows one way only
        """Release weights and key-value cache of an engine that has nothing to do, and make sure that it did."""
        if not self._sleeps:
            raise EngineError(f"{self.version} cannot sleep: it is hot or cold", remedy="stop it, and start it when wanted")
        refuse_busy(await self.load(handle, _BUSY_LOOK_LIMIT_S))
        began = time.perf_counter()
        before = await memory_of(handle)
        control = self._control(handle)
        await control.release(_CONTROL_LIMIT_S)
        if await control.awake(_CONTROL_LIMIT_S):
            raise EngineError("engine says that it runs after it was told to release its memory")
        return SuspendResult(
            resident_before=before,
            resident_after=await memory_of(handle),
            depth="released",
            ms=(time.perf_counter() - began) * 1000,
        )

    async def resume(self, handle: EngineHandle) -> None:
        """Take the memory back, and make sure that all of it is."""
        if (status := handle.process.status) is not None:
            raise EngineError(f"engine ended while it slept: {status.words}")
        control = self._control(handle)
        await control.resume(_CONTROL_LIMIT_S)
        if not await control.awake(_CONTROL_LIMIT_S):
            raise EngineError("engine says that it sleeps after it was told to resume", remedy="stop it and start it again")

    async def stop(self, handle: EngineHandle, grace_s: float) -> ExitStatus:
        """End it and every process that carries its mark, and let its port go."""
        status = await super().stop(handle, grace_s)
        self._forget(handle.folder)
        return status

    # ---- readiness and probe -----------------------------------------------------------------------------------

    async def _until_healthy(self, handle: EngineHandle) -> None:
        """Ask for one token until there is one: its plain health says 200 whatever happens (version 1.2).

        Until it has loaded it refuses connections (1.2) or answers 503 to everything (later).
        """
        wait, refusals = _FIRST_WAIT_S, 0
        while True:
            try:
                answer = await request(handle.address, "GET", "/health_generate")
            except (OSError, ValueError):  # not listening yet, or its end cut the answer off
                pass
            else:
                if answer.status == HTTPStatus.OK:
                    return
                refusals += answer.status != HTTPStatus.SERVICE_UNAVAILABLE
                if refusals >= _REFUSALS_ALLOWED:
                    words = answer.body[:_SHOWN_BYTES].decode(errors="replace")
                    reason = f"engine has loaded but generates nothing, it answers {answer.status}: {words}"
                    raise StartFailure(describe(handle, reason, code="engine_generates_nothing"))
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _LONGEST_WAIT_S)

    async def _look_whether_it_sleeps(self, handle: EngineHandle, deadline_s: float) -> None:
        """Believe the engine rather than its files: where the routes are missing, this version is hot or cold."""
        if self._sleeps and not await self._control(handle).offered(deadline_s):
            _log.warning("%s has no /memory_status although its sources name it: it will not sleep", self.version)
            self._sleeps = False

    async def _completion(self, handle: EngineHandle, payload: Mapping[str, object]) -> Answer:
        """Ask again without alternatives where the engine refuses them, and give its name for the model back as ours."""
        answer = await super()._completion(handle, payload)
        if answer.status == HTTPStatus.BAD_REQUEST and "logprobs" in payload:
            plain = {name: value for name, value in payload.items() if name != "logprobs"}
            answer = await super()._completion(handle, plain)
        content = answer.json()
        if not self._program.names and isinstance(content, dict):
            own = handle.spec.served_name.rsplit("/", 1)[-1]
            if content.get("model") == own:
                return Answer(answer.status, json.dumps({**content, "model": handle.spec.served_name}).encode())
        return answer

    # ---- helpers -----------------------------------------------------------------------------------------------

    def _environment(self, spec: EngineSpec, run: _Run) -> dict[str, str]:
        """Return what it needs beyond the common environment; models are files here, so nothing is looked up outside."""
        added = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        # In a container all of us may be root, where Open MPI refuses to start workers unless it is told twice.
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if spec.devices:
            added["CUDA_VISIBLE_DEVICES"] = ",".join(spec.devices)
        return {**added, KEY_VARIABLE: run.key} if self._sleeps else added

    def _control(self, handle: EngineHandle) -> RuntimeControl:
        run = self._run(handle)
        return RuntimeControl(LOOPBACK, run.port, run.key)

    def _run(self, handle: EngineHandle) -> _Run:
        """Return what is known of a run. Raises EngineError when it was stopped, as between two looks of its health."""
        if (run := self._runs.get(handle.folder)) is None:
            raise EngineError("engine was stopped meanwhile")
        return run

    def _forget(self, folder: Path) -> None:
        if (run := self._runs.pop(folder, None)) is not None:
            self._ports.give_back(run.port)


async def _iterations(handle: EngineHandle, deadline_s: float) -> list[dict[str, Any]]:
    answer = (await _ask(handle, "/metrics", deadline_s)).json()
    if not isinstance(answer, list):
        raise EngineError(f"engine answered /metrics with something else than a list: {str(answer)[:_SHOWN_BYTES]}")
    # Some versions hand each record on as the text that the executor made.
    try:
        records = [json.loads(record) if isinstance(record, str) else record for record in answer]
    except ValueError as error:
        raise EngineError(f"engine answered /metrics with a record that is no JSON: {error}") from error
    return [record for record in records if isinstance(record, dict)]


def _load_of(record: Mapping[str, Any]) -> EngineLoad:
    try:
        return EngineLoad(
            running=int(record.get("numActiveRequests", 0)),
            waiting=int(record.get("numQueuedRequests", 0)),
            progress=float(record.get("iter", 0)),
            kv_used=_blocks_used(record.get("kvCacheStats")),
        )
    except (TypeError, ValueError) as error:
        raise EngineError(f"engine's iteration record cannot be read: {str(record)[:_SHOWN_BYTES]}") from error


def _blocks_used(stats: object) -> float | None:
    if not isinstance(stats, Mapping):
        return None
    most, used = float(stats.get("maxNumBlocks", 0)), float(stats.get("usedNumBlocks", 0))
    return min(1.0, max(0.0, used / most)) if most > 0 else None


async def _ask(handle: EngineHandle, path: str, deadline_s: float) -> Answer:
    try:
        async with asyncio.timeout(deadline_s):
            answer = await request(handle.address, "GET", path)
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        raise EngineError(f"engine did not answer {path} within {deadline_s:g} s: {error!r}") from error
    if answer.status != HTTPStatus.OK:
        raise EngineError(f"engine answered {path} with {answer.status}")
    return answer
