"""What records a profile: py-spy for Python's stacks, torch's own profiler for an engine that was started with it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standby.domain.profiles import LeftOut
from standby.host.guard import guarded
from standby.runtime.engine_http import request
from standby.runtime.engines.base import EngineHandle
from standby.runtime.engines.vllm_arguments import traces_folder
from standby.runtime.log_words import mask
from standby.warm_pool.flame import frames_of, svg

RATE: Final = 100
"""Samples a second."""
# Reading a process's memory takes py-spy a moment before the first sample, and writing another one after the last.
_MARGIN_S: Final = 30.0
_TORCH_LIMIT_S: Final = 120.0
TORCH_STEPS: Final = 32
"""Steps of the engine in a trace: it serves nobody while it writes one, and each step has thousands of operators."""
_LARGEST: Final = 512 * 2**20
_SAMPLES: Final = re.compile(r"Samples: (\d+)")

PY_SPY_MISSING: Final = LeftOut(
    what="stacks", reason="py-spy is not installed on the node", remedy="install it there: pip install 'standby[profile]'"
)


def find_py_spy() -> str | None:
    """Return where py-spy is: beside our interpreter, else on the path."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


@dataclass(frozen=True, slots=True)
class Stacks:
    """One recording by py-spy of a process and what it has started; ``name`` is how its files are called."""

    py_spy: str
    name: str
    pid: int
    what: str
    native: bool = False

    async def record(self, folder: Path, seconds: int, stop: asyncio.Event) -> list[LeftOut]:
        """Record until ``seconds`` are over or ``stop`` is set; both files are of the same samples."""
        output = folder / f"{self.name}.speedscope.json"
        command = [
            self.py_spy, "record", "--pid", str(self.pid), "--subprocesses", "--duration", str(seconds), "--rate", str(RATE),
            "--format", "speedscope", "--output", str(output), *(["--native"] if self.native else []),
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *guarded(command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "RUST_BACKTRACE": "0"},
        )
        try:
            said = await _said(process, seconds, stop)
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode or not output.exists():
            return [LeftOut(what=f"stacks of {self.what}", **_why(said))]
        return await asyncio.to_thread(self._draw, output, said)

    def _draw(self, output: Path, said: str) -> list[LeftOut]:
        left: list[LeftOut] = []
        found = _SAMPLES.search(said)
        if found and not int(found[1]):
            left.append(LeftOut(what=f"stacks of {self.what}", reason="no sample: it ran nothing on a processor in this time"))
        try:
            root = frames_of(json.loads(output.read_bytes()))
        except ValueError as error:
            return [*left, LeftOut(what=f"flame graph of {self.what}", reason=str(error))]
        output.with_name(f"{self.name}.flame.svg").write_text(svg(root, f"{self.what}: {root.weight:.2f} s on processors"))
        return left


@dataclass(frozen=True, slots=True)
class TorchTrace:
    """torch's profiler inside vLLM, which has its routes only where it was started with the option ``profile``."""

    name: str
    handle: EngineHandle

    async def record(self, folder: Path, seconds: int, stop: asyncio.Event) -> list[LeftOut]:
        """Trace until ``seconds`` are over or ``stop`` is set; the traces are moved into ``folder``."""
        written = traces_folder(self.handle.folder)
        try:
            await self._tell("/start_profile", max_iterations=TORCH_STEPS)
        except (OSError, ValueError) as error:
            return [self._left(f"the engine did not begin to trace: {error or type(error).__name__}")]
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await stop.wait()
        finally:
            # Also when this is cancelled: an engine that goes on tracing fills its memory.
            stopped = await self._stopped()
        if stopped:
            return [self._left(stopped)]
        return await asyncio.to_thread(self._collect, written, folder)

    async def _stopped(self) -> str:
        try:
            await self._tell("/stop_profile")
        except (OSError, ValueError) as error:
            return f"the engine did not end its trace: {error or type(error).__name__}"
        return ""

    async def _tell(self, path: str, **wishes: int) -> None:
        async with asyncio.timeout(_TORCH_LIMIT_S):
            answer = await request(self.handle.address, "POST", path, wishes)
        if answer.status != 200:
            raise ValueError(f"{path} was answered with {answer.status}: {mask(answer.body[:200].decode(errors='replace'))}")

    def _collect(self, written: Path, folder: Path) -> list[LeftOut]:
        found = sorted(path for path in written.rglob("*") if path.is_file())
        if not found:
            return [self._left("the engine has written no trace")]
        left = []
        for path in found:
            size = path.stat().st_size
            if size > _LARGEST:
                path.unlink()
                left.append(self._left(f"{path.name} has {size} bytes, the limit is {_LARGEST}"))
            else:
                shutil.move(path, folder / f"{self.name}.torch.{path.name}")
        return left

    def _left(self, reason: str) -> LeftOut:
        return LeftOut(what=f"torch trace of {self.name}", reason=reason, remedy="see `standby logs`")


Recorder = Stacks | TorchTrace


async def _said(process: asyncio.subprocess.Process, seconds: int, stop: asyncio.Event) -> str:
    """Return all that it prints, once it has ended; told to ``stop``, it writes what it has so far."""
    talking = asyncio.ensure_future(process.communicate())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({talking, stopping}, timeout=seconds + _MARGIN_S, return_when=asyncio.FIRST_COMPLETED)
        if not talking.done():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await asyncio.wait({talking}, timeout=_MARGIN_S)
    finally:
        stopping.cancel()
        if not talking.done():
            talking.cancel()
    return talking.result()[0].decode(errors="replace") if talking.done() and not talking.cancelled() else ""


def _why(said: str) -> dict[str, str]:
    """Return why py-spy has recorded nothing: its own first word of an error, and what helps."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.startswith("py-spy>")]
    reason = mask(lines[0].removeprefix("Error: "))[:300] if lines else "py-spy has recorded nothing, and did not say why"
    if re.search(r"(?i)permission denied|operation not permitted", said):
        return {
            "reason": f"ptrace is not permitted: {reason}",
            "remedy": "run the node with CAP_SYS_PTRACE, or set kernel.yama.ptrace_scope=0 there",
        }
    if "Failed to find python version" in said:
        return {"reason": "it is no Python process", "remedy": "use perf(1) on the node"}
    return {"reason": reason}


def names_of(paths: Sequence[Path]) -> dict[str, str]:
    """Return what each file of a profile is, by its ending."""
    kinds = {
        ".speedscope.json": "stacks over time, for https://www.speedscope.app (works offline) or any viewer of its format",
        ".flame.svg": "the same samples as a flame graph, for a browser",
        ".profiler_out.txt": "torch's table of operators by time",
        ".sh": "command lines of NVIDIA's profilers; never run",
    }
    told = {}
    for path in paths:
        known = next((what for ending, what in kinds.items() if path.name.endswith(ending)), "")
        told[path.name] = known or f"torch's trace of up to {TORCH_STEPS} steps, for https://ui.perfetto.dev"
    return told
