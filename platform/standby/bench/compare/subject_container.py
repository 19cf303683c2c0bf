"""The container-style baseline in a comparison: a program of ours that is started for it, stopped by hand to be cold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from standby.bench.baseline_proxy import STATUS_PATH, STOP_PATH
from standby.bench.compare.held import GB
from standby.bench.compare.subject import Phases, looked_until
from standby.bench.compare.values import Holding, Reached
from standby.bench.load import Target
from standby.bench.values import Sample
from standby.domain.errors import ConfigurationError
from standby.host.group import stop_group
from standby.host.tasks import end

PREFIX: Final = "container:"
_UP_LIMIT_S: Final = 120.0
_FALL_S: Final = 0.02
_STOP_S: Final = 10.0


@dataclass
class Baseline:
    """The running program; ``url`` is where it takes requests."""

    process: asyncio.subprocess.Process
    url: str
    api: httpx.AsyncClient

    async def status(self) -> dict[str, Any]:
        """Return what it says of itself. Raises httpx.HTTPError where it is gone."""
        answer = await self.api.get(STATUS_PATH)
        status: dict[str, Any] = answer.json()
        return status

    async def stop_container(self) -> bool:
        """Stop the engine; False where it is busy."""
        return (await self.api.post(STOP_PATH)).status_code == 200


@asynccontextmanager
async def baseline(model: Path, *, keep: str, slots: int, say: Callable[[str], None]) -> AsyncIterator[Baseline]:
    """Run the program; ``say`` hears each line of what it does. Raises ConfigurationError where it does not come up."""
    if not model.is_file():
        raise ConfigurationError(f"there is no file {model}", remedy="give container:MODEL.gguf")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "standby.bench.baseline", "--model", str(model), "--keep", keep, "--slots", str(slots),
        "--parent", str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        url = await _address(process.stdout)
        telling = asyncio.create_task(_tell(process.stdout, say))
        # Proxies of the environment cannot reach this machine's loopback.
        async with httpx.AsyncClient(base_url=url, timeout=10.0, trust_env=False) as api:
            try:
                yield Baseline(process, url, api)
            finally:
                await end([telling])
    finally:
        if process.returncode is None:
            await stop_group(process, _STOP_S)  # it ends its engine first


@dataclass
class ContainerSubject:
    """``model`` as the report names it."""

    target: Target
    program: Baseline
    model: str
    keep: str
    limit_s: float
    _began: float = field(default_factory=time.monotonic)
    _awake: int = 0

    @property
    def kind(self) -> str:
        """What it is."""
        return (
            f"a plain llama.cpp of {self.model}, started anew for each cold start and kept {self.keep} after the last request"
        )

    async def to_zero(self) -> Reached:
        """Stop it."""
        try:
            await self._note()
            stopped = await looked_until(self.program.stop_container, self.limit_s, _FALL_S)
        except httpx.HTTPError as error:
            return Reached(ok=False, words=f"the baseline does not answer: {error!r}", lost=True)
        if not stopped:
            return Reached(ok=False, words=f"busy for {self.limit_s:g} s: it could not be stopped")
        return Reached(ok=True, words="stopped by hand: no process, no files")

    async def falling(self) -> Reached:
        """Wait until its time is over."""

        async def stopped() -> bool:
            return not (await self._note())["running"]

        try:
            fell = await looked_until(stopped, self.limit_s, _FALL_S)
        except httpx.HTTPError as error:
            return Reached(ok=False, words=f"the baseline does not answer: {error!r}", lost=True)
        if not fell:
            return Reached(ok=False, words=f"still running after {self.limit_s:g} s without a request")
        return Reached(ok=True, words="its time was over: stopped")

    async def phases(self, sample: Sample) -> Phases:
        """Return those of its last start, which has steps that standby's starts have not."""
        if not sample.ok:
            return ()
        try:
            status = await self._note()
        except httpx.HTTPError:
            return sample.phases_ms
        return tuple((str(name), float(ms)) for name, ms in status["phases_ms"].items())

    async def ended(self) -> str:
        """Return how its program ended."""
        # Its end may still be on the way to us.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await self.program.process.wait()
        code = self.program.process.returncode
        return "" if code is None else f"the baseline's program ended with exit code {code}"

    async def holding(self) -> Holding:
        """Return what its engine held, as the program itself counted four times a second."""
        try:
            status = await self._note()
        except httpx.HTTPError:
            return Holding(words="the baseline is gone, and its count with it")
        return Holding(
            gb_s=float(status["byte_seconds"]) / GB,
            seconds=time.monotonic() - self._began,
            awake_bytes=self._awake or None,
            words="its engine's proportional memory, looked at four times a second",
        )

    async def _note(self) -> dict[str, Any]:
        status = await self.program.status()
        self._awake = max(self._awake, int(status["resident_bytes"]))
        return status


async def _address(stream: asyncio.StreamReader) -> str:
    """Read the program's first line. Raises ConfigurationError with what it says instead."""
    async with asyncio.timeout(_UP_LIMIT_S):
        first = await stream.readline()
        try:
            return str(json.loads(first)["url"])
        except (ValueError, KeyError, TypeError):
            said = (first + await stream.read()).decode(errors="replace").strip()
    raise ConfigurationError(f"the baseline did not start: {said[-500:]}", remedy="see python -m standby.bench.baseline --help")


async def _tell(stream: asyncio.StreamReader, say: Callable[[str], None]) -> None:
    while line := await stream.readline():
        say(f"baseline {line.decode(errors='replace').strip()}")
