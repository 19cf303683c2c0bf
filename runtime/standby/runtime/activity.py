"""What an engine's processes do: who they are, what they use, how they ended. Linux only."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.runtime.exit_status import ExitStatus
from standby.runtime.process_group import MARK_VARIABLE, members
from standby.runtime.procfs import resident

_TICKS: Final = os.sysconf("SC_CLK_TCK")
# pidfd_info of linux/pidfd.h: 64 bytes, the mask first, the exit status last; filled in once the process was waited for.
_PIDFD_GET_INFO: Final = 3 << 30 | 64 << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT: Final = 1 << 3
_PIDFD_INFO: Final = "<QQ11Ii"


@dataclass(frozen=True, slots=True)
class Use:
    """What processes have used in all: processor seconds, bytes read from disk, bytes resident now."""

    processor_s: float = 0.0
    read_bytes: int = 0
    resident_bytes: int = 0


def tree_of(mark: str, leader: int) -> tuple[int, ...]:
    """Return the pids of an engine's living processes; ``leader`` has not been waited for yet."""
    return tuple(stat.pid for stat in members(mark, group=leader))


def use_of(pids: Iterable[int]) -> Use:
    """Return what these processes have used together; those that are gone count nothing."""
    processor, read, held = 0.0, 0, 0
    for pid in pids:
        processor += processor_seconds(pid)
        read += _read_bytes(pid)
        held += resident(pid).total
    return Use(processor, read, held)


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of ``pid``, with that of children it has waited for; 0 when it is gone."""
    fields = _stat_fields(pid)
    return 0.0 if fields is None else sum(int(value) for value in fields[11:15]) / _TICKS


def age_s(start_ticks: int) -> float:
    """Return how long ago a process started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / _TICKS


def executable(pid: int) -> tuple[int, int] | None:
    """Return (device, inode) of the program that ``pid`` runs; None when it is gone or may not be known."""
    with contextlib.suppress(OSError):
        found = Path(f"/proc/{pid}/exe").stat()
        return found.st_dev, found.st_ino
    return None


def command_line(pid: int) -> str:
    """Return the arguments of ``pid`` with spaces between; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def mark_of(pid: int) -> str:
    """Return the engine's mark in the environment of ``pid``; empty when it has none."""
    name = f"{MARK_VARIABLE}=".encode()
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(name):
                return entry.removeprefix(name).decode(errors="replace")
    return ""


def how_it_ended(pid: int, handle: int) -> ExitStatus | None:
    """Return how a process ended that was not our child; ``handle`` is its pidfd, which is readable.

    As a zombie its line in /proc says so, after that the pidfd (Linux 6.15); None: nobody can say.
    """
    fields = _stat_fields(pid)
    if fields is not None and fields[0] == "Z":
        return _status(int(fields[49]))
    buffer = bytearray(struct.pack(_PIDFD_INFO, _PIDFD_INFO_EXIT, *[0] * 13))
    try:
        fcntl.ioctl(handle, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    told = struct.unpack(_PIDFD_INFO, buffer)
    return _status(told[-1]) if told[0] & _PIDFD_INFO_EXIT else None


def _status(wait_status: int) -> ExitStatus:
    return ExitStatus.of(os.waitstatus_to_exitcode(wait_status))


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields after the command's name, the state first."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return line[line.rindex(")") + 2 :].split()


def _read_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/io").read_text().splitlines():
            if line.startswith("read_bytes:"):
                return int(line.split()[1])
    return 0
