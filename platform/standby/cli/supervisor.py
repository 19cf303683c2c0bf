"""Supervised children of ``standby up``: started, watched, started again with a growing pause, ended in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standby.bus.embedded import EmbeddedNats
from standby.domain.errors import ConfigurationError
from standby.host import tasks
from standby.host.group import log_tail, spawn, stop_group

_log = logging.getLogger(__name__)

PROGRAM: Final = (sys.executable, "-m", "standby.cli.main")
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
# A child that lived this long was well: its next failure counts as the first again.
WELL_AFTER_S: Final = 60.0
_LOOK_S: Final = 0.5
# After the second signal; the node may need the time that its engines get to end.
HURRY_S: Final = 10.0


def restart_pause(failures: int) -> float:
    """Return the seconds before the next start after ``failures`` in a row: 1, 2, 4, … 30."""
    return float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (max(1, failures) - 1)))


async def keep_nats(nats: EmbeddedNats) -> None:
    """Start the embedded nats-server again whenever it ends by itself, on the same port over the same state."""
    failures = 0
    while True:
        await asyncio.sleep(_LOOK_S)
        if not nats.has_died and not failures:
            continue
        pause = restart_pause(failures + 1)
        _log.warning("nats-server has ended; again in %.0f s", pause)
        await asyncio.sleep(pause)
        await nats.stop()
        try:
            await nats.start()
            failures = 0
        except ConfigurationError as error:
            failures += 1
            _log.error("nats-server does not start: %s", error)


def in_words(code: int | None) -> str:
    """Return how a process ended: ``ended with exit code 3``, ``was ended by SIGKILL``."""
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


@dataclass
class Child:
    """One process of the deployment: ``standby <arguments>`` with ``environment``.

    It may take ``grace_s`` to end; ``hurry`` cuts that short by a second signal.
    """

    name: str
    arguments: list[str]
    environment: Mapping[str, str]
    log: Path
    grace_s: float = 15.0
    program: Sequence[str] = PROGRAM
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    restarts: int = 0
    ends: int = 0
    last_code: int | None = None
    _process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _stopping: bool = False
    _asked: bool = False
    _failures: int = field(default=0)
    _log_began: int = 0

    async def start(self) -> None:
        """Start the process and keep it running until ``stop``."""
        await self._spawn()
        self._keeper = asyncio.create_task(self._keep())

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return None if self._process is None else self._process.pid

    async def stop(self) -> int | None:
        """End the process group and do not start it again; return the exit code."""
        self._stopping = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        if self._process is None:
            return None
        await self._ask_to_end(self._process)
        return await stop_group(self._process, HURRY_S)

    async def _ask_to_end(self, process: asyncio.subprocess.Process) -> None:
        """Send the first signal and wait for the end, the hurry, or the end of the grace."""
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        ending = [asyncio.create_task(process.wait()), asyncio.create_task(self.hurry.wait())]
        await asyncio.wait(ending, timeout=self.grace_s, return_when=asyncio.FIRST_COMPLETED)
        await tasks.end(ending)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone; if it ends, it is started again."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """Ask the process to end in its own time; it is started again at once."""
        self._asked = True
        self.signal(signal.SIGTERM)

    def require_alive(self) -> None:
        """Raise ConfigurationError with the end of the log if the process has ended, even if it was started again."""
        if self.ends:
            raise ConfigurationError(
                f"{self.name} {in_words(self.last_code)} while starting; its log ends:\n{self.tail()}",
                remedy=f"mend what the log says; the whole of it: {self.log}",
            )

    def tail(self) -> str:
        """Return the end of what the latest start wrote into the log."""
        return log_tail(self.log, since=self._log_began)

    async def _spawn(self) -> None:
        command = [*self.program, *self.arguments]
        self._log_began = self.log.stat().st_size if self.log.exists() else 0
        self._process = await spawn(command, environment=self.environment, log=self.log)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping:
            assert self._process is not None
            began = loop.time()
            self.last_code = code = await self._process.wait()
            self.ends += 1
            if self._asked and code == 0:
                self._asked = False
                _log.info("%s ended as asked and is started again", self.name)
            else:
                self._failures = 1 if loop.time() - began > WELL_AFTER_S else self._failures + 1
                pause = restart_pause(self._failures)
                _log.warning("%s %s; again in %.0f s; its log: %s", self.name, in_words(code), pause, self.log)
                await asyncio.sleep(pause)
            self.restarts += 1
            await self._spawn()
