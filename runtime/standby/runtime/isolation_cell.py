"""One engine's cgroup: its limits, who is in it, and what the kernel counted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.domain.errors import EngineError
from standby.runtime.exit_status import OutOfMemory

_CPU_PERIOD_US: Final = 100_000
_ROUNDS: Final = 20
_FIRST_WAIT_S: Final = 0.005
_LONGEST_WAIT_S: Final = 0.2


class CgroupFiles:
    """The cgroup file system. Tests put a folder of ordinary files in its place."""

    def read(self, path: Path) -> str:
        """Return a file's text. Raises OSError."""
        return path.read_text()

    def write(self, path: Path, text: str) -> None:
        """Write ``text`` in one call, as the kernel wants it. Raises OSError."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def make(self, path: Path) -> None:
        """Make a cgroup; one that is there already will do. Raises OSError."""
        path.mkdir(exist_ok=True)

    def remove(self, path: Path) -> None:
        """Remove an empty cgroup. Raises OSError (EBUSY while a process is in it)."""
        path.rmdir()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes, processors, share (1 to 10000, 100 is everyone's), processes with threads; None: no such limit."""

    memory_max: int | None = None
    cpus: float | None = None
    cpu_weight: int | None = None
    pids_max: int | None = None


class Cell:
    """The cgroup of one run of one engine. Calls after ``remove`` find nothing."""

    def __init__(self, path: Path, files: CgroupFiles, limits: Limits) -> None:
        self.path = path
        self.limits = limits
        self._files = files

    def apply(self, controllers: Collection[str]) -> tuple[str, ...]:
        """Set the limits that these controllers allow; return the names of those that could not be set."""
        limits = self.limits
        wanted = {
            # All or nothing: a half-killed engine would live on as a zombie service.
            "memory.oom.group": None if limits.memory_max is None else "1",
            "memory.max": None if limits.memory_max is None else str(limits.memory_max),
            "cpu.max": None if limits.cpus is None else f"{max(1000, round(limits.cpus * _CPU_PERIOD_US))} {_CPU_PERIOD_US}",
            "cpu.weight": None if limits.cpu_weight is None else str(limits.cpu_weight),
            "pids.max": None if limits.pids_max is None else str(limits.pids_max),
        }
        return tuple(
            name
            for name, value in wanted.items()
            if value is not None and not (name.split(".")[0] in controllers and self._set(name, value))
        )

    def admit(self, pid: int) -> bool:
        """Move a process with all its threads here; False when it is gone or may not be moved."""
        return self._set("cgroup.procs", str(pid))

    def gather(self, find: Callable[[], Iterable[int]]) -> str:
        """Move every process that ``find`` names here, until it names none that is elsewhere; return what went wrong.

        ``find`` looks up an engine's members by group and mark: a process that its first one forked before it had been
        moved is caught here, and later ones are born inside.
        """
        for _ in range(_ROUNDS):
            outside = set(find()) - set(self.members())
            if not outside:
                return ""
            moved = [self.admit(pid) for pid in outside]
            if not any(moved) and set(find()) & outside:
                return f"processes {sorted(outside)} cannot be moved into {self.path}"
        return f"processes are made faster than they can be moved into {self.path}"

    def members(self) -> tuple[int, ...]:
        """Return the pids here and in cgroups below."""
        found: list[int] = []
        for place in (self.path, *self._below()):
            found.extend(int(line) for line in self._get(place / "cgroup.procs").split())
        return tuple(found)

    def kill(self) -> bool:
        """End everything here at once, what is being forked too; False where the kernel (before 5.14) cannot."""
        return self._set("cgroup.kill", "1")

    def out_of_memory(self) -> OutOfMemory | None:
        """Return what to say when the kernel has killed here for want of memory; None when it has not."""
        counts = dict(line.split() for line in self._get(self.path / "memory.events").splitlines())
        if int(counts.get("oom_kill", 0)) == 0:
            return None
        return OutOfMemory(limit=self.limits.memory_max, peak=self.peak())

    def peak(self) -> int | None:
        """Return the most bytes that were ever held here, page cache included; None before Linux 5.19."""
        text = self._get(self.path / "memory.peak").strip()
        return int(text) if text.isdigit() else None

    async def remove(self, limit_s: float = 5.0) -> None:
        """Remove the cgroup once its last process has gone. Raises EngineError at the limit, or where it may not be removed."""
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + limit_s, _FIRST_WAIT_S
        while not self._removed():
            if clock() > deadline:
                raise EngineError(
                    f"cgroup {self.path} still holds processes {self.members()} {limit_s:g} s after its engine was ended",
                    remedy="they hang in the kernel; look at the disk or the device they use",
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_WAIT_S)

    def _removed(self) -> bool:
        try:
            return self.try_remove()
        except OSError as error:
            raise EngineError(f"cgroup {self.path} cannot be removed: {error.strerror}") from error

    def try_remove(self) -> bool:
        """Remove the cgroup now; False while a process is in it. Raises OSError where it may not be removed."""
        for place in (*self._below(), self.path):
            try:
                self._files.remove(place)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno in (errno.EBUSY, errno.ENOTEMPTY):
                    return False
                raise
        return True

    def _below(self) -> tuple[Path, ...]:
        """Return the cgroups below, the deepest first."""
        return tuple(sorted((path for path in self.path.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts)))

    def _set(self, name: str, value: str) -> bool:
        try:
            self._files.write(self.path / name, value)
        except OSError:
            return False
        return True

    def _get(self, path: Path) -> str:
        with contextlib.suppress(OSError):
            return self._files.read(path)
        return ""
