"""What the process trees of engines hold in RAM, as the kernel says it. Blocks for milliseconds: not for the event loop.

Pages that several processes share (a zygote's imports, the weights of one model) are divided among them: that is PSS,
and only its sum over all processes is what the host really holds. Where it may not be read, RSS stands in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.runtime.activity import mark_of
from standby.runtime.procfs import processes, proportional

_PROC: Final = Path("/proc")
_WANTED: Final = frozenset({"VmRSS", "VmHWM"})


@dataclass(frozen=True, slots=True)
class TreeMemory:
    """Bytes in RAM of one engine's processes.

    ``peak`` is ``held`` and what each process has held beyond it at some time since it began. ``exact``: all of it PSS.
    """

    held: int
    peak: int
    exact: bool
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """How an engine's processes are known: the mark in their environment, and the group or session of the first one."""

    mark: str
    group: int


def look(trees: Mapping[str, Tree]) -> dict[str, TreeMemory]:
    """Return what each tree holds now, in one pass over all processes; an engine without any is left out."""
    return {name: memory for name, pids in members(trees).items() if (memory := measure(pids)) is not None}


def members(trees: Mapping[str, Tree]) -> dict[str, tuple[int, ...]]:
    """Return the living processes of each tree: by group or session, else by the mark that they have inherited."""
    groups = {tree.group: name for name, tree in trees.items()}
    marks = {tree.mark: name for name, tree in trees.items()}
    found: dict[str, list[int]] = {name: [] for name in trees}
    for stat in processes():
        if not stat.alive:
            continue
        # A process that made its own session still carries the mark; reading it costs more than the numbers at hand.
        name = groups.get(stat.group) or groups.get(stat.session) or marks.get(mark_of(stat.pid))
        if name is not None:
            found[name].append(stat.pid)
    return {name: tuple(pids) for name, pids in found.items()}


def measure(pids: Iterable[int]) -> TreeMemory | None:
    """Return what these processes hold together; None when none of them is left."""
    found = [memory for pid in pids if (memory := _process(pid)) is not None]
    if not found:
        return None
    return TreeMemory(
        held=sum(one.held for one in found),
        peak=sum(one.peak for one in found),
        exact=all(one.exact for one in found),
        pids=tuple(pid for one in found for pid in one.pids),
    )


def _process(pid: int) -> TreeMemory | None:
    status = _memory_lines(pid)
    if status is None or "VmRSS" not in status:
        return None
    resident, shares = status["VmRSS"], proportional(pid)
    held = resident if shares is None else shares
    beyond = max(0, status.get("VmHWM", resident) - resident)
    return TreeMemory(held=held, peak=held + beyond, exact=shares is not None, pids=(pid,))


def _memory_lines(pid: int) -> dict[str, int] | None:
    """Return the ``Vm…: <n> kB`` lines of its status in bytes; None where it cannot be read."""
    try:
        text = (_PROC / str(pid) / "status").read_text()
    except OSError:  # it has ended, or belongs to somebody else
        return None
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in pairs if name in _WANTED}
