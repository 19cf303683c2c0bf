"""Puts every thread of an engine on its processors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

_ROUNDS: Final = 5


def bind(pids: Iterable[int], cores: Collection[int]) -> str:
    """Let all threads of these processes run on ``cores`` only; return what went wrong in words, or nothing.

    Can be called again at each wake. A thread inherits the set of the one that makes it; those made while this runs are
    found in the next round. Whoever is gone meanwhile is passed over. No cores: nothing is done.
    """
    if not cores:
        return ""
    wanted = tuple(pids)
    done: set[int] = set()
    for _ in range(_ROUNDS):
        new = {thread for pid in wanted for thread in threads(pid)} - done
        if not new:
            return ""
        for thread in new:
            try:
                os.sched_setaffinity(thread, cores)
            except ProcessLookupError:
                pass
            except OSError as error:  # a cpuset without these cores, or a process of another user
                return f"thread {thread} cannot be bound to cores {sorted(cores)}: {error.strerror}"
        done |= new
    return "the engine makes threads faster than they can be bound"


def threads(pid: int) -> tuple[int, ...]:
    """Return the numbers of a process's threads; none when it is gone."""
    with contextlib.suppress(OSError):
        return tuple(int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir())
    return ()
