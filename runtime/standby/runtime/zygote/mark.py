"""Changes the mark that the kernel shows of a process. Standard library only, Python 3.10.

Processes of an engine are known by a mark in the environment that they were *started* with (/proc/<pid>/environ). A fork
is not started: it would carry the zygote's mark for ever, and ending the zygote would end every engine. The kernel reads
that environment from the process's own memory, so it is written over there; what ``os.environ`` holds lies elsewhere.
"""

from __future__ import annotations

import ctypes

from standby.runtime.engines.child_protocol import MARK_VARIABLE

_ENVIRONMENT_START, _ENVIRONMENT_END = 47, 48  # fields 50 and 51 of proc_pid_stat(5), counted after the command name


def shown_mark() -> str:
    """Return the mark that the kernel shows of this process; empty if none."""
    with open("/proc/self/environ", "rb") as stream:  # noqa: PTH123 - a child's first steps import nothing more
        shown = stream.read().split(b"\0")
    prefix = f"{MARK_VARIABLE}=".encode()
    return next((entry[len(prefix) :].decode() for entry in shown if entry.startswith(prefix)), "")


def rewrite_mark(old: str, new: str) -> None:
    """Let the kernel show ``new`` instead of ``old``, for this process and what it forks. Raises RuntimeError.

    The marks must have the same length.
    """
    start, end = _environment_area()
    held = ctypes.string_at(start, end - start) if start else b""
    assignment = f"{MARK_VARIABLE}={old}".encode()
    position = held.find(assignment)
    if position < 0 or len(old) != len(new):
        raise RuntimeError("the mark of this process cannot be changed: its environment is not where the kernel says")
    ctypes.memmove(start + position, f"{MARK_VARIABLE}={new}".encode(), len(assignment))
    if shown_mark() != new:
        raise RuntimeError("the mark of this process cannot be changed: the kernel still shows the old one")


def _environment_area() -> tuple[int, int]:
    with open("/proc/self/stat", encoding="ascii", errors="replace") as stream:  # noqa: PTH123 - as above
        line = stream.read()
    fields = line[line.rindex(")") + 2 :].split()
    return int(fields[_ENVIRONMENT_START]), int(fields[_ENVIRONMENT_END])
