"""What one child process spends between two points: time, CPU, bytes, memory. Needs nothing but the kernel's own counts."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


class Meter:
    """Counts from its construction on; what was imported before costs nothing here.

    ``marks`` are seconds since the construction; ``spent()`` ends with one line of JSON in the hands of the parent.
    """

    def __init__(self) -> None:
        self.marks: dict[str, float] = {}
        _reset_peak()
        self._resident = _status()["VmRSS"]
        self._memory = memory()
        self._io = _io()
        self._cpu = _cpu()
        self._began = time.perf_counter()

    def mark(self, name: str) -> None:
        """Note the time."""
        self.marks[name] = time.perf_counter() - self._began

    def spent(self) -> dict[str, Any]:
        """Return the wall seconds, CPU seconds (with ended children), bytes, calls and memory growth since the construction."""
        wall, cpu, now = time.perf_counter() - self._began, _cpu() - self._cpu, _io()
        io = {name: now[name] - before for name, before in self._io.items()}
        return {
            "wall_s": wall,
            "cpu_s": cpu,
            "read_bytes": io["rchar"],
            "written_bytes": io["wchar"],
            "disk_read_bytes": io["read_bytes"],
            "disk_written_bytes": io["write_bytes"],
            "peak_bytes": _status()["VmHWM"] - self._resident,
            **{f"{name}_bytes": value - self._memory[name] for name, value in memory().items()},
            **{f"{name}_s": value for name, value in self.marks.items()},
        }


def tell(figures: dict[str, Any]) -> None:
    """Hand the figures to the parent."""
    print(json.dumps(figures), flush=True)


def arguments() -> dict[str, Any]:
    """Return what the parent asks for: the JSON in the first argument."""
    asked: dict[str, Any] = json.loads(sys.argv[1])
    return asked


def memory() -> dict[str, int]:
    """Return bytes that only this process maps (``private``) and those that no file on the disk backs (``anonymous``)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return {"private": values["Private_Clean"] + values["Private_Dirty"], "anonymous": values["Anonymous"]}


def touch(content: memoryview) -> None:
    """Read one byte of each page."""
    content[::_PAGE].tobytes()
    content[-1:].tobytes()


def _reset_peak() -> None:
    # 5: the peak of the resident set starts again from what is resident now; see proc_pid_clear_refs(5).
    Path("/proc/self/clear_refs").write_text("5")


def _status() -> dict[str, int]:
    lines = (line.partition(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(rest.split()[0]) * 1024 for name, _, rest in lines if name in {"VmRSS", "VmHWM"}}


def _io() -> dict[str, int]:
    lines = (line.partition(":") for line in Path("/proc/self/io").read_text().splitlines())
    return {name: int(value) for name, _, value in lines}


def _cpu() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
