"""What kind of processor this is, as far as compiled kernels and rounding depend on it."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from standby.runtime.fingerprint import DeviceFacts

CPU_INFO: Final = Path("/proc/cpuinfo")
_NAMES: Final = ("model name", "Model", "CPU part", "cpu")
"""By which x86, small Arm boards, Arm servers and POWER name theirs."""
_FLAGS: Final = ("flags", "Features")
_MATTERS: Final = re.compile(
    r"avx|avx2|avx_\w+|avx512\w*|amx\w*|fma|f16c|sse4_[12]|asimd\w*|sve\w*|sme\w*|i8mm|bf16|fphp", re.ASCII
)
"""Instruction sets for which engines and compilers have kernels of their own."""


def cpu_facts(*, processors: int | None = None, cpu_info: Path = CPU_INFO) -> DeviceFacts:
    """Return the host's processors as one device; ``processors``: how many are used, None: all that this process may use.

    Where the kernel does not tell (no ``/proc/cpuinfo``), the machine's architecture is all that is known.
    """
    try:
        text = cpu_info.read_text(errors="replace")
    except OSError:
        text = ""
    facts = _first_values(text)
    name = next((facts[key] for key in _NAMES if key in facts), "unknown")
    flags = next((facts[key] for key in _FLAGS if key in facts), "")
    return DeviceFacts(
        name=name,
        compute_capability=" ".join(_relevant(flags.split())),
        driver=platform.machine(),
        processors=len(os.sched_getaffinity(0)) if processors is None else processors,
    )


def _first_values(text: str) -> dict[str, str]:
    """Return what the first processor is said to be; the others of a machine are alike."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found.setdefault(key.strip(), value.strip())
    return found


def _relevant(flags: Iterable[str]) -> list[str]:
    return sorted({flag for flag in flags if _MATTERS.fullmatch(flag)})
