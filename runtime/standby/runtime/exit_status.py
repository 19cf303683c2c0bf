"""How a process ended, in words that lead to the cause, and what to do about it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_SIGNAL_MEANS: Final = MappingProxyType(
    {
        signal.SIGBUS: "weights file vanished under the engine",
        signal.SIGILL: "the engine used an instruction that this processor lacks",
        signal.SIGSEGV: "the engine crashed",
        signal.SIGABRT: "the engine gave up; its last lines say why",
    }
)
_REMEDIES: Final = MappingProxyType(
    {
        signal.SIGILL: "set dtype float32: 16-bit kernels use instructions (AMX, BF16) that may be absent or not permitted",
        signal.SIGBUS: "the artifact was cut short or removed, or its disk failed: fetch it again and look at the kernel's log",
        signal.SIGKILL: "usually out of memory: the kernel's own log says so (dmesg: oom-kill); give the model more memory",
        signal.SIGSEGV: "a fault of the engine itself: keep its log, and try another version or fewer options",
        signal.SIGABRT: "read the last lines of its log",
    }
)
_SHELL_SIGNAL_BASE: Final = 128


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """What the engine's own cgroup tells of the kernel's ending it: its limit and the most it held, in bytes."""

    limit: int | None
    peak: int | None

    @property
    def words(self) -> str:
        """Say it for a person."""
        limit = "" if self.limit is None else f": its memory limit of {self.limit // 2**20} MiB"
        peak = "" if self.peak is None else f" (it held {self.peak // 2**20} MiB at most)"
        return f"killed by the kernel{limit}{peak}"


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """``code`` is the exit code, or None when ``signal_number`` ended the process.

    ``out_of_memory`` is set when the engine's cgroup counted a kill by the kernel.
    """

    code: int | None
    signal_number: int | None = None
    out_of_memory: OutOfMemory | None = None

    @classmethod
    def of(cls, returncode: int, out_of_memory: OutOfMemory | None = None) -> ExitStatus:
        """Read the convention of ``subprocess``: a negative number is a signal."""
        if returncode < 0:
            return cls(None, -returncode, out_of_memory)
        return cls(returncode, None, out_of_memory)

    @property
    def ok(self) -> bool:
        """True for exit code 0."""
        return self.code == 0

    @property
    def cause(self) -> int | None:
        """The signal that ended the process itself, or one of its own that it tells with a code of 128 and more; or None."""
        if self.signal_number is not None:
            return self.signal_number
        number = (self.code or 0) - _SHELL_SIGNAL_BASE
        return number if number > 0 and _name(number) != "unknown" else None

    @property
    def words(self) -> str:
        """Say it for a person: ``exit code 1``, ``killed by signal 9 (SIGKILL)``."""
        if self.signal_number is not None:
            said = f"killed by signal {self.signal_number} ({_name(self.signal_number)})"
        elif self.cause is not None:
            said = f"exit code {self.code} (a process of the engine was killed by {_name(self.cause)})"
        else:
            said = f"exit code {self.code}"
        if self.out_of_memory is not None:
            return f"{said}: {self.out_of_memory.words}"
        meaning = _meaning(self.cause, told=self.signal_number is None)
        return f"{said}: {meaning}" if meaning else said

    @property
    def remedy(self) -> str:
        """What to do about it; empty when nothing is known but the log."""
        if self.out_of_memory is not None:
            return "give the model more memory (--memory-mb), or let it have fewer slots or a shorter context"
        if self.cause is None or _name(self.cause) == "unknown":
            return ""
        return _REMEDIES.get(signal.Signals(self.cause), "")


def _meaning(number: int | None, *, told: bool) -> str:
    """Return what the signal means; ``told``: a process of the engine got it, so it was not us who sent it."""
    if number is None or _name(number) == "unknown":
        return ""
    if number == signal.SIGKILL:
        return "usually out of memory" if told else ""
    return _SIGNAL_MEANS.get(signal.Signals(number), "")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
