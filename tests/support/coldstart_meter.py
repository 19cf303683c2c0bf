"""What the processes of an engine cost while nobody asks, and when its log said what."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from standby.host.tasks import end
from standby.runtime.process import EngineProcess
from standby.runtime.process_group import members
from standby.runtime.procfs import process_stat, proportional
from support.coldstart_phases import Line, process_numbers

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_LOOK_S: Final = 0.01
_SETTLE_S: Final = 3.0
MB: Final = 1_000_000


class StampedLog:
    """The lines of a growing file, each with the seconds since ``began`` (``time.perf_counter``) at which it was seen.

    Looks every 10 ms: an engine's own stamps are whole seconds.
    """

    def __init__(self, path: Path, began: float) -> None:
        self.lines: list[Line] = []
        self._path = path
        self._began = began
        self._rest = ""
        self._offset = 0

    def look(self) -> None:
        """Take what has been written since the last look."""
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
            self._offset += len(new)
            at_s = time.perf_counter() - self._began
            *whole, self._rest = (self._rest + new.decode(errors="replace")).split("\n")
            self.lines.extend(Line(at_s, text) for text in whole)

    async def follow(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_S)

    def births(self) -> Mapping[str, float]:
        """Return for each role in the log the seconds from ``began`` to the start of its process; it must be alive."""
        # The kernel counts a process's start from the boot, suspended time included.
        offset = time.clock_gettime(time.CLOCK_BOOTTIME) - (time.perf_counter() - self._began)
        found = {role: process_stat(pid) for role, pid in process_numbers(self.lines).items()}
        return {role: stat.start_ticks / _TICKS - offset for role, stat in found.items() if stat is not None}


@asynccontextmanager
async def stamped(path: Path, began: float) -> AsyncIterator[StampedLog]:
    """Yield a log that is followed while the body runs."""
    log = StampedLog(path, began)
    task = asyncio.create_task(log.follow())
    try:
        yield log
        log.look()
    finally:
        await end([task])


async def idle_cpu(process: EngineProcess, seconds: float) -> float:
    """Return what share of one core all processes of an engine use over ``seconds``, after a moment of rest."""
    await asyncio.sleep(_SETTLE_S)
    pids = process_numbers_of(process)
    before, began = {pid: _cpu_s(pid) for pid in pids}, time.perf_counter()
    await asyncio.sleep(seconds)
    used = sum(_cpu_s(pid) - spent for pid, spent in before.items())
    return used / (time.perf_counter() - began)


def process_numbers_of(process: EngineProcess) -> tuple[int, ...]:
    """Return the numbers of all living processes of an engine."""
    return tuple(stat.pid for stat in members(process.mark, group=process.pid))


def pss_mb(pids: Iterable[int]) -> float:
    """Return the memory of the processes with shared pages divided by their users, in megabytes."""
    return sum(proportional(pid) or 0 for pid in pids) / MB


def private_mb(pids: Iterable[int]) -> float:
    """Return the memory that only one process maps, in megabytes."""
    return sum(_private(pid) for pid in pids) / MB


def _private(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def _cpu_s(pid: int) -> float:
    """Return the processor seconds of a process, those of its threads included, as the kernel's scheduler has counted them."""
    text = Path(f"/proc/{pid}/stat").read_text()
    user, system = text[text.rindex(")") + 2 :].split()[11:13]
    return (int(user) + int(system)) / _TICKS
