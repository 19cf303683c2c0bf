"""An engine's process, spawned or forked: in its own session, watched by event, gone with its whole group when stopped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from standby.domain.errors import EngineStartFailed
from standby.host.guard import guarded
from standby.runtime.children import disown, own
from standby.runtime.engines.child_protocol import PARENT_VARIABLE
from standby.runtime.exit_status import ExitStatus
from standby.runtime.process_group import MARK_VARIABLE, bury_strays, kill_members
from standby.runtime.procfs import process_stat

# An engine sees these and nothing else: the agent's own environment holds store credentials and tokens.
_ENVIRONMENT: Final = frozenset(
    {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV"}
    | {"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"}
    | {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}
)
# Programs that name themselves (setproctitle, as vLLM's processes do) write over the memory in which the kernel shows a
# process's environment, and with it the mark; this variable tells that library to leave it alone.
_KEEP_MARK: Final = "SPT_NOENV"


class EngineProcess:
    """A running engine, watched by event until its first process has ended. It must be a child of this process.

    The ended process is not waited for until ``stop``: as a zombie it keeps its number, and so the number of its
    group, from being given to a stranger while members of the group may still have to be killed.
    """

    def __init__(self, pid: int, mark: str, *, popen: subprocess.Popen[bytes] | None = None) -> None:
        """Watch ``pid``. ``popen``: the object that spawned it; None: it was adopted, e.g. from a zygote."""
        self.pid = pid
        self.mark = mark
        stat = process_stat(pid)
        assert stat is not None, "an own child that has not been waited for is always visible"
        assert stat.parent == os.getpid(), "only children can be waited for"
        self.start_ticks = stat.start_ticks
        self._ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self._popen = popen
        self.forked = popen is None
        """Adopted from a zygote, not spawned."""
        self._handle = os.pidfd_open(pid)
        self._reaped = False
        own(pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._handle, self._notice_exit)

    @property
    def status(self) -> ExitStatus | None:
        """How the first process ended; None while it runs."""
        return self._ended.result() if self._ended.done() else None

    @property
    def exited(self) -> asyncio.Future[ExitStatus]:
        """A future of the end, for each who asks: a waiter that is cancelled cancels nobody else's."""
        return asyncio.shield(self._ended)

    def send(self, number: signal.Signals) -> None:
        """Send ``number`` to the first process; nothing happens when it has ended."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send ``number`` to the whole group; nothing happens when it has ended."""
        if not self._reaped:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def stop(self, grace_s: float) -> ExitStatus:
        """End the group: SIGTERM, after ``grace_s`` seconds SIGKILL; return when every process of it is gone.

        May be called again, also after a cancelled call, and after the engine has ended by itself.
        Raises EngineError when the kernel does not let one of them go.
        """
        if not self._ended.done():
            self.send_to_group(signal.SIGTERM)
            self.send_to_group(signal.SIGCONT)  # a stopped process does not see SIGTERM until it is continued
            await asyncio.wait([self._ended], timeout=grace_s)
        if not self._reaped:
            await kill_members(self.mark, group=self.pid)
            await self.exited
            await bury_strays(self.pid)
            self._reap()
        return self._ended.result()

    def _notice_exit(self) -> None:
        ended = os.waitid(os.P_PIDFD, self._handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        self._loop.remove_reader(self._handle)
        if not self._ended.done():
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            self._ended.set_result(ExitStatus.of(code))

    def _reap(self) -> None:
        if not self._reaped:
            self._reaped = True
            if self._popen is not None:
                self._popen.wait()
            else:
                os.waitpid(self.pid, 0)
            disown(self.pid)
            os.close(self._handle)


def engine_environment(extra: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return the whole environment of an engine: the few variables it may see of ours, ``extra``, its mark, our number."""
    ours = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("LC_")}
    return {**ours, _KEEP_MARK: "1", **extra, MARK_VARIABLE: mark, PARENT_VARIABLE: str(os.getpid())}


def open_log(log: Path) -> int:
    """Return a descriptor to write the empty file ``log`` (0600) with; the caller closes it."""
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)


def spawn(
    arguments: Sequence[str],
    *,
    log: Path,
    mark: str,
    extra_environment: Mapping[str, str] | None = None,
    keep_descriptors: Sequence[int] = (),
    guards_itself: bool = False,
) -> EngineProcess:
    """Start ``arguments`` as an engine: own session and group, no standard input, output to ``log``, dies with us.

    Must be called by the thread that runs the event loop, because the kernel ties the child to the calling THREAD.
    ``guards_itself``: the program calls ``guard.arm`` with the number in STANDBY_ENGINE_PARENT; any other program is
    started through the guard. Only ``keep_descriptors`` are inherited. Raises EngineStartFailed.
    """
    command = list(arguments) if guards_itself else guarded(list(arguments))
    environment = engine_environment(extra_environment or {}, mark)
    output = open_log(log)
    try:
        popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            pass_fds=tuple(keep_descriptors),
        )
    except OSError as error:
        raise EngineStartFailed(
            f"program {arguments[0]} cannot be started: {error.strerror}", remedy="check that it exists and is executable"
        ) from error
    finally:
        os.close(output)
    return EngineProcess(popen.pid, mark, popen=popen)
