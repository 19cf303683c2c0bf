"""What the process trees of engines hold in RAM, as the kernel says it. Blocks for milliseconds: not for the event loop.

Pages that several processes share (a zygote's imports, the weights of one model) are divided among them: that is PSS,
and only its sum over all processes is what the host really holds. Where it may not be read, RSS stands in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.runtime.process_group import MARK_VARIABLE
from standby.runtime.procfs import processes

_PROC: Final = Path("/proc")
_MARK: Final = f"{MARK_VARIABLE}=".encode()


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
    marks = {tree.mark.encode(): name for name, tree in trees.items()}
    found: dict[str, list[int]] = {name: [] for name in trees}
    for stat in processes():
        if not stat.alive:
            continue
        # A process that made its own session still carries the mark; reading it costs more than the numbers at hand.
        name = groups.get(stat.group) or groups.get(stat.session) or marks.get(_mark_of(stat.pid))
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
    status = _fields(_PROC / str(pid) / "status", {"VmRSS", "VmHWM"})
    if status is None or "VmRSS" not in status:
        return None
    rolled = _fields(_PROC / str(pid) / "smaps_rollup", {"Pss"})
    resident = status["VmRSS"]
    held = resident if rolled is None else rolled.get("Pss", resident)
    beyond = max(0, status.get("VmHWM", resident) - resident)
    return TreeMemory(held=held, peak=held + beyond, exact=rolled is not None, pids=(pid,))


def _fields(path: Path, wanted: Collection[str]) -> dict[str, int] | None:
    """Return the wanted ``Name: <n> kB`` lines in bytes; None where the file cannot be read."""
    try:
        text = path.read_text()
    except OSError:  # it has ended, or belongs to somebody else
        return None
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) * 1024 for name, _, value in pairs if name in wanted}


def _mark_of(pid: int) -> bytes:
    try:
        raw = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return b""
    return next((item[len(_MARK) :] for item in raw.split(b"\0") if item.startswith(_MARK)), b"")
