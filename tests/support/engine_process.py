"""The fake engine as a process of its own behind a unix socket, which can be stopped and killed."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from standby.wire.sockets import nobody_listens
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir
from support.waiting import until


@dataclass
class EngineProcess:
    """``socket`` is where it listens."""

    socket: Path
    process: subprocess.Popen[bytes]

    def suspend(self) -> None:
        """From now on it accepts and reads nothing; the kernel goes on to take connections for it."""
        self.process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        self.process.kill()


@contextlib.asynccontextmanager
async def engine_process(**knobs: object) -> AsyncIterator[EngineProcess]:
    """Run one until the context ends; ``knobs`` are the fake engine's."""
    with short_dir() as folder:
        spec = folder / "spec.json"
        socket = folder / "engine.sock"
        options = {"text": "process", **knobs}
        spec.write_text(json.dumps({"socket": str(socket), "served_name": "e", "slots": 4, "options": options}))
        with subprocess.Popen([sys.executable, str(FAKE_ENGINE_PROGRAM), "--spec", str(spec)]) as process:
            try:
                await until(lambda: not nobody_listens(socket), "the engine listens")
                yield EngineProcess(socket, process)
            finally:
                process.kill()
