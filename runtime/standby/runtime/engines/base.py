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
from typing import Protocol

from pydantic import Field

from standby.domain.endpoint import Failure
from standby.domain.errors import EngineStartFailed, StandbyError
from standby.domain.model import EngineKind, Manifest
from standby.domain.values import Value
from standby.runtime.exit_status import ExitStatus
from standby.runtime.log_words import first_error_line, log_lines, mask
from standby.runtime.process import EngineProcess

Options = Mapping[str, str | int | float | bool]


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


class Capabilities(Value):
    """What an engine can do beyond start, answer and stop."""

    sleep: bool = Field(description="can give its memory back and continue later")
    shares_weights: bool = Field(default=False, description="instances of one model on a node hold the weights once")


@dataclass(frozen=True)
class EngineHandle:
    """A spawned engine. Hashable by identity; lives until ``stop`` has returned."""

    spec: EngineSpec
    process: EngineProcess
    socket: Path
    log: Path
    started_at: float
    ready: asyncio.Future[None]
    """Set when the engine says by itself that it has loaded; engines that cannot say so never set it."""

    @property
    def pid(self) -> int:
        """Number of the engine's first process, which is also its group and session."""
        return self.process.pid

    @property
    def exited(self) -> asyncio.Future[ExitStatus]:
        """A future, new at each call, of the end of the first process, whoever ended it."""
        return self.process.exited

    __hash__ = object.__hash__


class ProbeResult(Value):
    """One token was generated. ``ms`` from the request to the whole answer."""

    ms: float
    text: str


class SuspendResult(Value):
    """The engine sleeps. Resident bytes are the process's; both figures are measured, never computed.

    ``weights_cached`` is how much of the weights files still lies in the page cache: memory that this process no
    longer maps but the kernel still holds, e.g. for another instance of the same model. None: the kernel cannot say.
    """

    resident_before: int
    resident_after: int
    anonymous_after: int = Field(default=0, description="part of resident_after: key-value cache, buffers, heap")
    weights_cached: int | None = None
    ms: float


class EngineAdapter(Protocol):
    """One kind of engine on this machine."""

    @property
    def kind(self) -> EngineKind:
        """Which engine."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def check(self, options: Options) -> None:
        """Raise InvalidInput that names the option and lists the allowed ones."""

    def estimate_bytes(self, manifest: Manifest, options: Options, slots: int) -> int:
        """Return the host memory in bytes that an awake instance will need: weights, key-value cache, buffers."""

    async def start(self, spec: EngineSpec) -> EngineHandle:
        """Spawn the engine; it is not ready yet. Raises EngineStartFailed, InvalidInput, ConfigurationError."""

    async def wait_loaded(self, handle: EngineHandle, deadline_s: float) -> None:
        """Return when the engine listens and has loaded. Raises StartFailure with exit words and log tail."""

    async def probe(self, handle: EngineHandle, deadline_s: float) -> ProbeResult:
        """Generate one token. Raises ProbeFailed."""

    async def suspend(self, handle: EngineHandle) -> SuspendResult:
        """Stop the process and give its memory back. The caller has drained it. Raises EngineError."""

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
    lines, tail = log_lines(handle.log)
    return Failure(reason=mask(reason), first_error=first_error_line(lines), log_tail=tail, code=code)


def failure_of(error: StandbyError) -> Failure:
    """Return the failure that an error stands for, with the log's words where the error carries them."""
    carried = getattr(error, "failure", None)
    return carried if isinstance(carried, Failure) else Failure(reason=mask(str(error)), code=error.code)
