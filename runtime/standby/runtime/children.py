"""Children that this process never started: what engines leave behind, and what a zygote gives birth to.

A subreaper becomes the parent of every descendant whose own parent ends. That is how a forked engine becomes a child of
the agent, and it makes the agent answer for strays too: each keeps its number as a zombie until it is waited for.
Waiting for "any child" would steal those of the event loop and of ``subprocess``, so strays are buried one by one.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from typing import Final

from standby.domain.errors import ConfigurationError
from standby.runtime.procfs import ProcessStat, process_stat, processes

_PR_SET_CHILD_SUBREAPER: Final = 36
_owned: Final[set[int]] = set()  # numbers of children that an EngineProcess will wait for itself


def become_subreaper() -> None:
    """Make this process the parent of descendants whose parent ends. Linux prctl(2), for good. Raises ConfigurationError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise ConfigurationError(
            f"the kernel refuses to make the agent a subreaper: {os.strerror(ctypes.get_errno())}",
            remedy="allow prctl(PR_SET_CHILD_SUBREAPER) in the container's seccomp profile",
        )


def own(pid: int) -> None:
    """Say that somebody will wait for ``pid``: it is no stray."""
    _owned.add(pid)


def disown(pid: int) -> None:
    """Say that ``pid`` has been waited for."""
    _owned.discard(pid)


def bury(dead: Iterable[ProcessStat]) -> None:
    """Wait for those of ``dead`` that are zombies, children of ours and nobody's. Never blocks."""
    for stat in dead:
        now = process_stat(stat.pid)
        if now is not None and now.start_ticks == stat.start_ticks and _stray(now):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(stat.pid, os.WNOHANG)


def strays_of(group: int) -> list[ProcessStat]:
    """Return strays of the group or session ``group``; only while that number is surely its own."""
    return [stat for stat in processes() if group in (stat.group, stat.session) and _stray(stat)]


class StraySweep:
    """Buries strays that left their group before they ended, and so belong to no engine that could be told."""

    def __init__(self) -> None:
        self._seen: frozenset[tuple[int, int]] = frozenset()

    def look(self) -> None:
        """Bury strays that an earlier look has seen already.

        Called at intervals of many seconds: the event loop and ``subprocess`` wait for their own children at once, so
        what is still a zombie at the next look is nobody's.
        """
        strays = [stat for stat in processes() if _stray(stat)]
        bury([stat for stat in strays if (stat.pid, stat.start_ticks) in self._seen])
        self._seen = frozenset((stat.pid, stat.start_ticks) for stat in strays)


def _stray(stat: ProcessStat) -> bool:
    return not stat.alive and stat.parent == os.getpid() and stat.pid not in _owned
