"""How a process ended, in words that lead to the cause."""

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
_SHELL_SIGNAL_BASE: Final = 128


@dataclass(frozen=True, slots=True)
class ExitStatus:
    """``code`` is the exit code, or None when ``signal_number`` ended the process."""

    code: int | None
    signal_number: int | None = None

    @classmethod
    def of(cls, returncode: int) -> ExitStatus:
        """Read the convention of ``subprocess``: a negative number is a signal."""
        return cls(None, -returncode) if returncode < 0 else cls(returncode)

    @property
    def ok(self) -> bool:
        """True for exit code 0."""
        return self.code == 0

    @property
    def words(self) -> str:
        """Say it for a person: ``exit code 1``, ``killed by signal 9 (SIGKILL)``."""
        if self.signal_number is not None:
            return _with_meaning(f"killed by signal {self.signal_number} ({_name(self.signal_number)})", self.signal_number)
        assert self.code is not None
        if self.code > _SHELL_SIGNAL_BASE and _name(self.code - _SHELL_SIGNAL_BASE) != "unknown":
            number = self.code - _SHELL_SIGNAL_BASE
            inner = f"exit code {self.code} (a process of the engine was killed by {_name(number)})"
            if number == signal.SIGKILL:
                return f"{inner}: usually out of memory"
            return _with_meaning(inner, number)
        return f"exit code {self.code}"


def _with_meaning(words: str, number: int) -> str:
    meaning = _SIGNAL_MEANS.get(signal.Signals(number)) if _name(number) != "unknown" else None
    return f"{words}: {meaning}" if meaning else words


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
