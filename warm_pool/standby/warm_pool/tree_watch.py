"""Notices that an essential process of an engine has ended although its first one lives (field cases B30, B32).

An engine's API process may go on to answer 503, or to wait half an hour for a worker that is dead. Its processes are found
by group and mark in one pass over all processes, and each is watched by a handle of its own, so that an end is known at once.

Essential is what has lived for two seconds and runs the leader's own program, or holds 64 MiB: workers and cores. Compilers
and other short helpers are not. How a process ended is asked of the kernel: an exit with 0 is no fault, only a doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from standby.runtime.activity import age_s, command_line, executable, how_it_ended, mark_of
from standby.runtime.engines.base import EngineHandle
from standby.runtime.exit_status import ExitStatus
from standby.runtime.procfs import ProcessStat, process_stat, processes, resident

_log = logging.getLogger(__name__)

ESSENTIAL_AGE_S: Final = 2.0
ESSENTIAL_BYTES: Final = 64 * 2**20
SCAN_STARTING_S: Final = 0.5
SCAN_LOADED_S: Final = 5.0
# The leader often ends for the same reason a moment later, and then its own end says more.
_LEADER_LIMIT_S: Final = 0.3
# Python programs that run the leader's interpreter and may come and go.
_HELPERS: Final = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "compile_worker")


@dataclass(frozen=True, slots=True)
class HelperLoss:
    """``certain``: it was essential and broke; else only a probe can tell whether the engine still works."""

    pid: int
    words: str
    certain: bool


Lost = Callable[[str, HelperLoss], None]


@dataclass(slots=True)
class _Member:
    stat: ProcessStat
    handle: int
    same_program: bool
    helper: bool
    held_bytes: int = 0


@dataclass(slots=True)
class _Tree:
    """One engine. ``loaded``: it has said that it is ready."""

    engine: EngineHandle
    program: tuple[int, int] | None = None
    loaded: bool = False
    members: dict[int, _Member] = field(default_factory=dict)


class TreeWatch:
    """One for all engines of a node; owned by the agent's loop. ``lost(key, loss)`` is called there."""

    def __init__(self, lost: Lost) -> None:
        self._lost = lost
        self._trees: dict[str, _Tree] = {}
        self._strangers: set[tuple[int, int]] = set()
        self._news = asyncio.Event()

    def follow(self, key: str, engine: EngineHandle) -> None:
        """Watch an engine from its spawn on."""
        self.forget(key)
        self._trees[key] = _Tree(engine)
        self._strangers.clear()  # a process seen without a mark may belong to nobody, but a new tree may know its group
        self._news.set()

    def loaded(self, key: str) -> None:
        """The engine has loaded: its processes come and go less from now on."""
        if key in self._trees:
            self._trees[key].loaded = True

    def forget(self, key: str) -> None:
        """Watch the engine no more; called before it is stopped, since its processes then end in any order."""
        tree = self._trees.pop(key, None)
        if tree is not None:
            for member in tuple(tree.members.values()):
                self._close(tree, member)

    def close(self) -> None:
        """Watch nothing any more."""
        for key in tuple(self._trees):
            self.forget(key)

    async def run(self) -> None:
        """Look for new processes until cancelled: often while an engine starts, seldom later. ``close`` follows."""
        while True:
            self._news.clear()
            await self.scan()
            starting = any(not tree.loaded for tree in self._trees.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCAN_STARTING_S if starting else SCAN_LOADED_S):
                    await self._news.wait()

    async def scan(self) -> None:
        """Look at all processes once: watch those of followed engines, and note what they hold."""
        if not self._trees:
            return
        # In a thread: milliseconds for each hundred processes, twice a second, in which no token would pass.
        found = await asyncio.to_thread(lambda: tuple(processes()))
        groups = {tree.engine.pid: key for key, tree in self._trees.items() if tree.engine.process.status is None}
        marks = {tree.engine.process.mark: key for key, tree in self._trees.items()}
        seen: set[tuple[int, int]] = set()
        for stat in found:
            if not stat.alive or stat.pid in groups or stat.pid == os.getpid():
                continue
            key = groups.get(stat.group) or groups.get(stat.session) or self._by_mark(stat, marks, seen)
            if key is not None:
                self._note(key, stat)
        self._strangers = seen

    def _by_mark(self, stat: ProcessStat, marks: dict[str, str], seen: set[tuple[int, int]]) -> str | None:
        """Read a process's environment once in its life: it is the dearest part of a look."""
        name = (stat.pid, stat.start_ticks)
        if name not in self._strangers:
            key = marks.get(mark_of(stat.pid))
            if key is not None:
                return key
        seen.add(name)
        return None

    def _note(self, key: str, stat: ProcessStat) -> None:
        tree = self._trees[key]
        member = tree.members.get(stat.pid)
        if member is None or member.stat.start_ticks != stat.start_ticks:
            if member is not None:
                self._close(tree, member)
            member = self._open(key, tree, stat)
        if member is not None:
            member.held_bytes = max(member.held_bytes, resident(stat.pid).total)

    def _open(self, key: str, tree: _Tree, stat: ProcessStat) -> _Member | None:
        try:
            handle = os.pidfd_open(stat.pid)
        except OSError:
            return None
        now = process_stat(stat.pid)
        if now is None or now.start_ticks != stat.start_ticks:
            os.close(handle)
            return None
        # Looked up late: the first process is a guard for a moment, which then becomes the engine.
        tree.program = executable(tree.engine.pid) or tree.program
        words = command_line(stat.pid)
        member = _Member(
            stat=stat,
            handle=handle,
            same_program=tree.program is not None and executable(stat.pid) == tree.program,
            helper=any(name in words for name in _HELPERS),
        )
        tree.members[stat.pid] = member
        asyncio.get_running_loop().add_reader(handle, self._ended, key, tree, member)
        return member

    def _close(self, tree: _Tree, member: _Member) -> None:
        if tree.members.get(member.stat.pid) is member:
            del tree.members[member.stat.pid]
            asyncio.get_running_loop().remove_reader(member.handle)
            os.close(member.handle)

    def _ended(self, key: str, tree: _Tree, member: _Member) -> None:
        status = how_it_ended(member.stat.pid, member.handle)
        lived = age_s(member.stat.start_ticks)
        self._close(tree, member)
        loss = _judge(member, status, lived, loaded=tree.loaded)
        if loss is not None:
            asyncio.get_running_loop().call_later(_LEADER_LIMIT_S, self._tell, key, tree, loss)

    def _tell(self, key: str, tree: _Tree, loss: HelperLoss) -> None:
        if self._trees.get(key) is tree and tree.engine.process.status is None:
            _log.warning("engine %s: %s", key, loss.words)
            self._lost(key, loss)


def _judge(member: _Member, status: ExitStatus | None, lived_s: float, *, loaded: bool) -> HelperLoss | None:
    """Return what the end of a process means for its engine; None: nothing."""
    if member.helper or lived_s < ESSENTIAL_AGE_S or not (member.same_program or member.held_bytes >= ESSENTIAL_BYTES):
        return None
    how = "" if status is None else f": {status.words}"
    words = f"its process {member.stat.pid} has ended, the engine's first one lives{how}"
    if status is None:
        # Nobody knows how it ended. While it starts there is no probe to ask; later there is.
        certain = member.same_program and not loaded
    elif member.same_program:
        certain = not status.ok
    else:
        certain = status.signal_number is not None  # a compiler that fails says so with its code
    if not certain and not loaded:
        return None
    return HelperLoss(member.stat.pid, words, certain)
