"""Keeps engines apart: where the kernel and the administrator let us, each in a cgroup (version 2) of its own.

Below the agent's own cgroup::

    <own>/standby-agent-<scope>      the agent, since a cgroup with children that have limits may hold no process
    <own>/standby-engines-<scope>/   <instance>-<run>, one for each engine

Where that cannot be had nothing fails: engines have their own session, mark and ledger everywhere, and ``describe`` says what
is missing. A process enters its cgroup by itself right after fork or exec (``isolation_entry``), and the agent moves it as
well, with whatever it has forked by then (``Cell.gather``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.runtime.isolation_cell import Cell, CgroupFiles, Limits
from standby.runtime.isolation_entry import CGROUP_VARIABLE
from standby.runtime.isolation_policy import DeviceSharing

_log = logging.getLogger(__name__)

_ROOT: Final = Path("/sys/fs/cgroup")
_SELF: Final = Path("/proc/self/cgroup")
_CONTROLLERS: Final = ("memory", "cpu", "pids")
_AGENT: Final = "standby-agent-"
_ENGINES: Final = "standby-engines-"
_WITHOUT: Final = "engines are told apart by session and mark, and limited by the memory ledger alone"


@dataclass(frozen=True, slots=True)
class _Ground:
    """Where cgroups for engines can be made, and which controllers limit them there; ``lacks`` says why not more."""

    engines: Path | None
    controllers: tuple[str, ...] = ()
    lacks: str = ""


class Isolation:
    """The cgroups of one agent. ``scope`` tells agents on one machine apart; its leftovers are this agent's to remove."""

    def __init__(self, ground: _Ground, files: CgroupFiles, scope: str) -> None:
        self._ground = ground
        self._files = files
        self._scope = scope

    @classmethod
    def open(
        cls,
        scope: str,
        *,
        wanted: bool = True,
        root: Path = _ROOT,
        self_cgroup: Path = _SELF,
        files: CgroupFiles | None = None,
        pid: int | None = None,
    ) -> Isolation:
        """Find what this machine allows, move the agent where it has to be, and end what an earlier agent left.

        ``wanted`` False: no cgroups, as the operator says so. Never fails: see ``describe``.
        """
        files = files or CgroupFiles()
        ground = _survey(scope, root, self_cgroup, files, os.getpid() if pid is None else pid, wanted=wanted)
        isolation = cls(ground, files, scope)
        isolation._sweep()
        return isolation

    @property
    def available(self) -> bool:
        """Whether engines get cgroups of their own."""
        return self._ground.engines is not None

    @property
    def controllers(self) -> tuple[str, ...]:
        """Which of memory, cpu and pids can be limited."""
        return self._ground.controllers

    def describe(self, sharing: DeviceSharing | None = None) -> str:
        """Say in words how engines are kept apart here."""
        ground = self._ground
        if ground.engines is None:
            words = f"no cgroups ({ground.lacks}): {_WITHOUT}"
        else:
            words = "each engine in a cgroup of its own, ended as one"
            if ground.controllers:
                words += f"; limited there: {', '.join(ground.controllers)}"
            if missing := [name for name in _CONTROLLERS if name not in ground.controllers]:
                words += f"; not limited: {', '.join(missing)} ({ground.lacks})"
        if sharing is DeviceSharing.EXCLUSIVE_TENANT:
            words += "; a GPU or MIG instance serves one tenant at a time"
        elif sharing is DeviceSharing.SHARED:
            words += "; tenants share GPUs"
        return words

    def create(self, instance: str, run: int, limits: Limits) -> Cell | None:
        """Make the cgroup for an engine that is about to be spawned; None where there are none."""
        if self._ground.engines is None:
            return None
        cell = Cell(self._ground.engines / f"{instance}-{run}", self._files, limits)
        try:
            self._files.make(cell.path)
        except OSError as error:
            _log.warning("engine %s gets no cgroup: %s", instance, error)
            return None
        if refused := cell.apply(self._ground.controllers):
            _log.info("engine %s: the cgroup does not limit %s", instance, ", ".join(refused))
        return cell

    def close(self) -> None:
        """Remove the folder of the engines if it is empty; the agent's own goes with whoever made the one above it."""
        if self._ground.engines is not None:
            _remove(Cell(self._ground.engines, self._files, Limits()))

    def _sweep(self) -> None:
        """End and remove what earlier agents of this scope left: nobody else makes cgroups there."""
        if self._ground.engines is None:
            return
        for place in sorted(path for path in self._ground.engines.iterdir() if path.is_dir()):
            left = Cell(place, self._files, Limits())
            if members := left.members():
                _log.warning("ended processes %s of an earlier agent's engine %s", members, place.name)
                left.kill()
            _remove(left)


def _remove(cell: Cell) -> None:
    """Remove an empty cgroup if it can be; one that stays harms nobody."""
    try:
        cell.try_remove()
    except OSError as error:
        _log.warning("cgroup %s cannot be removed: %s", cell.path, error)


def entry_environment(cell: Cell | None) -> dict[str, str]:
    """Return the variable that lets the engine enter its cgroup by itself, or nothing."""
    return {} if cell is None else {CGROUP_VARIABLE: str(cell.path)}


def _survey(scope: str, root: Path, self_cgroup: Path, files: CgroupFiles, pid: int, *, wanted: bool) -> _Ground:
    if not wanted:
        return _Ground(None, lacks="switched off")
    mount = next((place for place in (root, root / "unified") if (place / "cgroup.controllers").exists()), None)
    if mount is None:
        return _Ground(None, lacks="cgroup version 2 is not mounted")
    own = _own(mount, self_cgroup)
    if own is None:
        return _Ground(None, lacks="the agent's own cgroup cannot be seen from here")
    engines = own / f"{_ENGINES}{scope}"
    try:
        files.make(engines)
    except OSError as error:
        return _Ground(None, lacks=f"cgroup version 2 is not writable: {error.strerror}")
    offered = files.read(own / "cgroup.controllers").split()
    possible = [name for name in _CONTROLLERS if name in offered]
    lacks = "their controllers belong to cgroup version 1 or are not delegated" if len(possible) < len(_CONTROLLERS) else ""
    enabled, why = _enable(own, possible, files, pid, scope)
    usable: list[str] = []
    for name in enabled:
        try:
            files.write(engines / "cgroup.subtree_control", f"+{name}")
        except OSError as error:  # e.g. a controller that threads cannot have, in a cgroup that is threaded
            why = why or f"{error.strerror} in {engines}"
        else:
            usable.append(name)
    return _Ground(engines, tuple(usable), why or lacks)


def _own(mount: Path, self_cgroup: Path) -> Path | None:
    """Return the cgroup below which this agent may make others: its own, or the one above if it has moved itself before."""
    try:
        lines = self_cgroup.read_text().splitlines()
    except OSError:
        return None
    line = next((line for line in lines if line.startswith("0::")), None)
    if line is None:
        return None
    own = mount / line.removeprefix("0::").strip().lstrip("/")
    if ".." in own.parts or not own.is_dir():  # a cgroup outside of this container
        return None
    return own.parent if own.name.startswith(_AGENT) else own


def _enable(own: Path, wanted: Sequence[str], files: CgroupFiles, pid: int, scope: str) -> tuple[tuple[str, ...], str]:
    """Hand the controllers down to the cgroups below ``own``; return those that could be, and why not the others."""
    before = files.read(own / "cgroup.subtree_control").split()
    missing = [name for name in wanted if name not in before]
    if not missing:
        return tuple(wanted), ""
    inside = (own / "cgroup.type").exists()  # only the root of all may hold processes and hand controllers down
    try:
        if inside:
            files.make(own / f"{_AGENT}{scope}")
            files.write(own / f"{_AGENT}{scope}" / "cgroup.procs", str(pid))
        for name in missing:
            files.write(own / "cgroup.subtree_control", f"+{name}")
    except OSError as error:
        kept = tuple(name for name in wanted if name in files.read(own / "cgroup.subtree_control").split())
        return kept, (
            f"other processes share the agent's cgroup {own}, or it is not delegated ({error.strerror}): "
            "give the agent one of its own (systemd: Delegate=yes)"
        )
    return tuple(wanted), ""
