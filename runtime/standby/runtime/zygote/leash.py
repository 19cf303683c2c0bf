"""One fork under way, from the agent's side."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, Final

from standby.runtime.children import bury
from standby.runtime.process import EngineProcess
from standby.runtime.process_group import kill_members
from standby.runtime.procfs import ProcessStat, process_stat
from standby.runtime.zygote.protocol import GO, MESSAGE_LIMIT, Armed, Born, Message, Refused, decode, pair

_ABANDON_LIMIT_S: Final = 2.0


class NothingBornError(Exception):
    """The fork came to nothing; says why. ``fit``: the zygote may be asked again."""

    def __init__(self, reason: str, *, fit: bool = False) -> None:
        super().__init__(reason)
        self.fit = fit


class Fork:
    """Its leash, and what is known of it."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._near, self.far = pair()
        self._near.setblocking(False)
        self._born: Born | None = None
        self._process: EngineProcess | None = None

    async def until_armed(self) -> EngineProcess:
        """Return the engine's process, which waits for ``release``. Raises NothingBornError."""
        while True:
            match await hear(self._near):
                case Born() as born:
                    self._born = born
                case Armed() if self._born is not None:
                    self._process = EngineProcess(self._born.pid, self._mark)
                    return self._process
                case Refused() as refused:
                    raise NothingBornError(refused.reason, fit=refused.fit)
                case _:
                    raise NothingBornError("the new process ended before it was on its own")

    async def release(self) -> None:
        """Let the engine run; if it has ended meanwhile, its exit says so."""
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(self._near, GO)
        self._bury_midwife()

    async def abandon(self, patience_s: float = _ABANDON_LIMIT_S) -> None:
        """End whatever has come of it, and wait until it is gone; ``patience_s`` for a zygote that is still at work on it."""
        with contextlib.suppress(OSError):
            self._near.shutdown(socket.SHUT_WR)  # a fork that waits at its gate ends
        if self._process is not None:
            await self._process.stop(0.0)
            self._bury_midwife()
            return
        with contextlib.suppress(TimeoutError, NothingBornError):
            async with asyncio.timeout(patience_s):
                self._process = await self.until_armed()
        if self._process is not None:
            await self._process.stop(0.0)
        else:
            await kill_members(self._mark)
            await self._bury_engine()
        self._bury_midwife()

    def close(self) -> None:
        """Give the sockets back."""
        self._near.close()
        self.far.close()

    async def _bury_engine(self) -> None:
        """Wait for an engine that ended before it was watched: it may still be the midwife's child for a moment."""
        if self._born is None:
            return
        deadline = asyncio.get_running_loop().time() + _ABANDON_LIMIT_S
        while (stat := self._stat(self._born.pid)) is not None and asyncio.get_running_loop().time() < deadline:
            bury([stat])
            await asyncio.sleep(0.001)

    def _stat(self, pid: int) -> ProcessStat | None:
        stat = process_stat(pid)
        assert self._born is not None, "asked for a pid that it told"
        return stat if stat is not None and stat.start_ticks == self._born.start_ticks else None

    def _bury_midwife(self) -> None:
        """Wait for a midwife whose zygote was killed over her work, and who became our child that way."""
        stat = process_stat(self._born.midwife) if self._born is not None else None
        if stat is not None:
            bury([stat])


async def hear(end: socket.socket) -> Message | None:
    """Return the next message on ``end``; None when the other side has gone."""
    try:
        packet = await asyncio.get_running_loop().sock_recv(end, MESSAGE_LIMIT)
    except ConnectionError:
        return None
    return decode(packet) if packet else None


async def writable(end: socket.socket) -> None:
    """Return once ``end`` takes another packet."""
    loop = asyncio.get_running_loop()
    free = asyncio.Event()
    loop.add_writer(end, free.set)
    try:
        await free.wait()
    finally:
        loop.remove_writer(end)


async def complete(work: Coroutine[Any, Any, object]) -> None:
    """Wait for ``work`` to its end, however often the caller is cancelled meanwhile; then pass that on.

    For cleaning up: given up halfway, a process would be left that nobody knows of.
    """
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    task.result()
    if cancelled:
        raise asyncio.CancelledError
