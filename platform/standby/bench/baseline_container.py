"""One container's life without the container: fetch the packed model, unpack it, start a plain engine; later stop it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from standby.domain.errors import ConfigurationError, EngineStartFailed
from standby.host.group import log_tail, spawn, stop_group

SERVED_NAME: Final = "baseline"
_START_LIMIT_S: Final = 120.0
_GRACE_S: Final = 10.0
_LOOK_S: Final = 0.005
# Faster to pack than the usual level, and no slower to unpack.
_LEVEL: Final = 1

Say = Callable[[str], None]


def pack(model: Path, store: Path) -> Path:
    """Return the model as ``model.tar.gz`` in ``store``, packed now; one that is packed already is taken as it is.

    Raises ConfigurationError where the file cannot be read.
    """
    if model.name.endswith((".tar.gz", ".tgz")):
        return model
    packed = store / "model.tar.gz"
    try:
        with tarfile.open(packed, "w:gz", compresslevel=_LEVEL) as archive:
            archive.add(model, arcname=model.name)
    except OSError as error:
        raise ConfigurationError(
            f"the model {model} cannot be read: {error.strerror}", remedy="name a GGUF file, or a model.tar.gz with one"
        ) from error
    return packed


def unpack(packed: Path, folder: Path) -> Path:
    """Unpack into ``folder`` and return the first GGUF in it. Raises ConfigurationError where there is none."""
    with tarfile.open(packed, "r:gz") as archive:
        archive.extractall(folder, filter="data")
    found = sorted(folder.rglob("*.gguf"))
    if not found:
        raise ConfigurationError(f"{packed} holds no .gguf file", remedy="name a GGUF file, or a model.tar.gz with one")
    return found[0]


@dataclass
class Container:
    """At most one engine at a time. ``store``: the packed model; ``folder``: where each start gets an empty place."""

    store: Path
    folder: Path
    slots: int
    say: Say
    starts: int = 0
    stops: int = 0
    phases_ms: Mapping[str, float] = field(default_factory=dict)
    _process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        """Where the engine listens."""
        return self.folder / "engine.sock"

    @property
    def running(self) -> bool:
        """Whether there is an engine."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        """Go from nothing to a serving engine. Raises EngineStartFailed, ConfigurationError."""
        self.starts += 1
        await self._put_away()
        place = self.folder / "place"
        place.mkdir(parents=True)
        marks = [time.perf_counter()]
        copied = place / "model.tar.gz"
        await asyncio.to_thread(shutil.copyfile, self.store, copied)
        marks.append(time.perf_counter())
        model = await asyncio.to_thread(unpack, copied, place / "model")
        copied.unlink()
        marks.append(time.perf_counter())
        await self._serve(model)
        marks.append(time.perf_counter())
        names = ("fetched", "unpacked", "loaded")
        self.phases_ms = {
            name: round((later - earlier) * 1000, 1) for name, earlier, later in zip(names, marks, marks[1:], strict=False)
        }
        said = ", ".join(f"{name} in {ms:.0f} ms" for name, ms in self.phases_ms.items())
        self.say(f"start {self.starts}: {said}")

    async def stop(self) -> None:
        """End the engine and throw its files away."""
        if self._process is None:
            return
        began = time.perf_counter()
        self.stops += 1
        await self._put_away()
        self.say(f"stop {self.stops}: took {(time.perf_counter() - began) * 1000:.0f} ms")

    def resident_bytes(self) -> int:
        """Return what the engine holds of memory, shared pages divided among their users; 0 without an engine."""
        if not self.running:
            return 0
        assert self._process is not None
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        return 0

    async def _serve(self, model: Path) -> None:
        log = self.folder / "engine.log"
        before = log.stat().st_size if log.exists() else 0
        command = [sys.executable, "-m", "standby.bench.baseline_engine", str(model), str(self.socket)]
        self._process = await spawn([*command, str(self.slots), SERVED_NAME], environment=os.environ, log=log)
        try:
            async with asyncio.timeout(_START_LIMIT_S):
                while not await self._answers():
                    if self._process.returncode is not None:
                        break
                    await asyncio.sleep(_LOOK_S)
                else:
                    return
        except TimeoutError:
            pass
        tail = log_tail(log, since=before)
        await self._put_away()
        raise EngineStartFailed(f"the plain engine did not come up: {tail}", remedy="name a GGUF model that llama.cpp serves")

    async def _answers(self) -> bool:
        """Whether the engine says that it is well: it listens before it has loaded."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.socket))
        except OSError:
            return False
        try:
            writer.write(b"GET /health HTTP/1.1\r\nhost: engine\r\nconnection: close\r\n\r\n")
            return b" 200 " in await reader.readline()
        except OSError:
            return False
        finally:
            writer.close()

    async def _put_away(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            await stop_group(process, _GRACE_S)
        self.socket.unlink(missing_ok=True)
        await asyncio.to_thread(shutil.rmtree, self.folder / "place", ignore_errors=True)
