"""What every engine that is one process tree behind a unix socket has in common."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from standby.domain.errors import ConfigurationError, EngineError, ProbeFailed
from standby.runtime.engine_http import Answer, request
from standby.runtime.engines.base import (
    DEFAULT_PROMPT,
    EngineHandle,
    EngineLoad,
    EngineSpec,
    Options,
    ProbeResult,
    StartFailure,
    describe,
    describe_exit,
)
from standby.runtime.engines.child_protocol import READY_FD_VARIABLE, READY_LINE
from standby.runtime.engines.metrics_text import figures_of
from standby.runtime.engines.probe_answer import generated
from standby.runtime.exit_status import ExitStatus
from standby.runtime.process import EngineProcess, spawn
from standby.runtime.process_ledger import ProcessLedger, ProcessRecord
from standby.wire.pool import Address

_SOCKET_NAME: Final = "engine.sock"
_SOCKET_PATH_LIMIT: Final = 107  # sockaddr_un holds 108 bytes with the closing zero, see unix(7)
_LOGS_KEPT: Final = 100
_SCRATCH_DIGITS: Final = 8
# What an engine leaves in a shared temporary folder is never removed: vLLM leaves its sockets at every end. The second
# one is vLLM's own word for the folder of its sockets.
_TEMPORARY: Final = ("TMPDIR", "VLLM_RPC_BASE_PATH")
_HEALTH_FIRST_WAIT_S: Final = 0.01
_HEALTH_LONGEST_WAIT_S: Final = 0.25
_HEALTH_LIMIT_S: Final = 5.0


class ProcessEngine(ABC):
    """Spawns, waits, probes and stops; a subclass says which program and how it sleeps."""

    guards_itself = False
    says_ready = False
    """The program writes ``ready`` to the descriptor in STANDBY_READY_FD once it has loaded."""

    def __init__(self, ledger: ProcessLedger) -> None:
        self._ledger = ledger

    @abstractmethod
    def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:
        """Return the program and its arguments; files for it may be written to ``folder`` (0700, of this epoch)."""

    def uses_compile_cache(self, options: Options) -> bool:
        """Compiles nothing; an engine that does says so."""
        del options
        return False

    async def start(self, spec: EngineSpec) -> EngineHandle:
        """Spawn the engine in a fresh 0700 folder; its record is on disk before it runs."""
        folder, log = _prepare(spec)
        socket = folder / _SOCKET_NAME
        try:
            _check_socket_path(socket)
            arguments = self.command(spec, socket, folder)
            record, process, read_end = await self._brought_up(spec, arguments, log)
        except BaseException:
            _remove_folders(folder, spec)
            raise
        try:
            self._ledger.confirm(record, process)
        except OSError:
            # Nobody else knows of it: without this a full disk would leave an engine that nobody ends.
            os.close(read_end)
            await process.stop(0.0)
            _remove_folders(folder, spec)
            self._ledger.forget(record.mark)
            raise
        return EngineHandle(
            spec=spec,
            process=process,
            address=socket,
            folder=folder,
            log=log,
            started_at=time.time(),
            ready=_watch_ready_line(read_end),
        )

    async def _brought_up(
        self, spec: EngineSpec, arguments: Sequence[str], log: Path
    ) -> tuple[ProcessRecord, EngineProcess, int]:
        """Return the record, the process, and the descriptor at which its word that it is ready is read."""
        record = self._ledger.intend(spec.instance, spec.epoch)
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            extra = {**spec.environment, **dict.fromkeys(_TEMPORARY, str(_scratch(spec)))}
            process = await self.bring_up(spec, arguments, log=log, mark=record.mark, extra=extra, ready=write_end)
        except BaseException:
            os.close(read_end)
            self._ledger.forget(record.mark)
            raise
        finally:
            os.close(write_end)
        return record, process, read_end

    async def bring_up(
        self, spec: EngineSpec, arguments: Sequence[str], *, log: Path, mark: str, extra: Mapping[str, str], ready: int
    ) -> EngineProcess:
        """Spawn ``arguments``. ``extra`` is added to its environment; ``ready`` is the descriptor for its word that it is."""
        del spec
        return spawn(
            arguments,
            log=log,
            mark=mark,
            extra_environment={**extra, READY_FD_VARIABLE: str(ready)} if self.says_ready else extra,
            keep_descriptors=(ready,) if self.says_ready else (),
            guards_itself=self.guards_itself,
        )

    async def wait_loaded(self, handle: EngineHandle, deadline_s: float) -> None:
        """Wait for the engine's own word, or ask its health; fail at once when the process ends."""
        loaded = asyncio.ensure_future(self._until_healthy(handle))
        try:
            either: set[asyncio.Future[Any]] = {loaded, handle.exited}
            await asyncio.wait(either, timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loaded.cancel()
        if (status := handle.process.status) is not None:
            raise StartFailure(describe_exit(handle, status, "while it loaded"))
        if not loaded.done():
            reason = f"engine did not load within {deadline_s:g} s"
            raise StartFailure(describe(handle, reason, code="engine_load_timeout"), remedy="raise activation_limit")
        loaded.result()

    async def probe(
        self, handle: EngineHandle, deadline_s: float, *, prompt: str = DEFAULT_PROMPT, tokens: int = 1, margins: bool = False
    ) -> ProbeResult:
        """Generate greedily. Health alone proves nothing: engines lie (field case B10)."""
        began = time.perf_counter()
        payload = self.probe_payload(handle, prompt, tokens, margins=margins)
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._completion(handle, payload)
        except TimeoutError as error:
            raise ProbeFailed(f"engine generated no token within {deadline_s:g} s", remedy="see its log") from error
        except (OSError, ValueError) as error:
            raise ProbeFailed(f"engine did not answer the probe: {error}", remedy="see its log") from error
        pieces, found = generated(answer, handle.spec.served_name)
        ms = (time.perf_counter() - began) * 1000
        return ProbeResult(ms=ms, prompt=prompt, pieces=pieces, margins=found)

    def probe_payload(self, handle: EngineHandle, prompt: str, tokens: int, *, margins: bool) -> dict[str, object]:
        """Return the body of the probe's completion request; an engine with words of its own adds or renames some."""
        payload: dict[str, object] = {
            "model": handle.spec.served_name, "prompt": prompt, "max_tokens": tokens, "temperature": 0,
        }  # fmt: skip
        # The alternatives of each token cost a little: asked for only when a canary is chosen or compared piece by piece.
        return {**payload, "logprobs": 2} if margins or tokens > 1 else payload

    async def load(self, handle: EngineHandle, deadline_s: float) -> EngineLoad:
        """Nothing is known of its work; engines with metrics say more."""
        del handle, deadline_s
        return EngineLoad()

    def prioritised(self, options: Options) -> bool:
        """It knows no priorities; an engine that does says so."""
        del options
        return False

    async def adapters(self, handle: EngineHandle, deadline_s: float) -> tuple[str, ...]:
        """It has none; an engine that can have some asks."""
        del handle, deadline_s
        return ()

    async def metrics(self, handle: EngineHandle, deadline_s: float) -> dict[str, float]:
        """Return the engine's own Prometheus figures, the series of one name added up. Raises EngineError."""
        try:
            async with asyncio.timeout(deadline_s):
                answer = await request(handle.address, "GET", "/metrics")
        except (OSError, ValueError) as error:  # TimeoutError is an OSError
            raise EngineError(f"engine did not tell its metrics within {deadline_s:g} s: {error!r}") from error
        return figures_of(answer)

    async def resume(self, handle: EngineHandle) -> None:
        """Continue the whole group."""
        if (status := handle.process.status) is not None:
            raise EngineError(f"engine ended while it slept: {status.words}")
        handle.process.send_to_group(signal.SIGCONT)

    async def stop(self, handle: EngineHandle, grace_s: float) -> ExitStatus:
        """End the group and remove its folder and record; the log stays."""
        status = await handle.process.stop(grace_s)
        handle.ready.cancel()
        await asyncio.to_thread(_remove_folders, handle.folder, handle.spec)
        self._ledger.forget(handle.process.mark)
        return status

    async def _completion(self, handle: EngineHandle, payload: Mapping[str, object]) -> Answer:
        """Ask until the engine no longer says that it is not ready: healthy is not loaded (field case B10)."""
        wait = _HEALTH_FIRST_WAIT_S
        while (
            answer := await request(handle.address, "POST", "/v1/completions", payload)
        ).status == HTTPStatus.SERVICE_UNAVAILABLE:
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _HEALTH_LONGEST_WAIT_S)
        return answer

    async def _until_healthy(self, handle: EngineHandle) -> None:
        if self.says_ready:
            await asyncio.shield(handle.ready)
        wait = _HEALTH_FIRST_WAIT_S
        while not await _healthy(handle.address):
            await asyncio.sleep(wait)
            wait = min(wait * 1.5, _HEALTH_LONGEST_WAIT_S)


def write_spec(folder: Path, name: str, content: object) -> Path:
    """Write ``content`` as JSON that only this user can read; keeps it out of the process list."""
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        json.dump(content, stream)
    return path


def run_folder(spec: EngineSpec) -> Path:
    """Return the folder that is private to this run."""
    return spec.run_dir / f"{spec.instance}-{spec.epoch}"


def log_file(folder: Path, instance: str, *, previous: bool = False) -> Path:
    """Return where the log of an instance's engine is, or that of the life before."""
    return folder / f"{instance}{'.previous' if previous else ''}.log"


def _prepare(spec: EngineSpec) -> tuple[Path, Path]:
    """Make the empty folder of this epoch, and keep the log of the life before this one under another name."""
    folder = run_folder(spec)
    shutil.rmtree(folder, ignore_errors=True)
    spec.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(mode=0o700)
    scratch = _scratch(spec)
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o700)
    logs = spec.log_dir or spec.run_dir / "logs"
    logs.mkdir(parents=True, exist_ok=True, mode=0o700)
    _drop_old_logs(logs)
    log = log_file(logs, spec.instance)
    if log.exists():
        log.replace(log_file(logs, spec.instance, previous=True))
    return folder, log


def _scratch(spec: EngineSpec) -> Path:
    """Return the engine's own temporary folder. Its name is short: engines make sockets there, named by long numbers."""
    name = hashlib.sha256(f"{spec.instance}-{spec.epoch}".encode()).hexdigest()[:_SCRATCH_DIGITS]
    return spec.run_dir / name


def _remove_folders(folder: Path, spec: EngineSpec) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(_scratch(spec), ignore_errors=True)


def _drop_old_logs(folder: Path) -> None:
    """Keep the newest logs: every start from cold has a new instance, and nobody reads last month's."""
    logs = sorted(folder.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in logs[_LOGS_KEPT:]:
        path.unlink(missing_ok=True)


def _check_socket_path(socket: Path) -> None:
    length = len(os.fsencode(socket))
    if length > _SOCKET_PATH_LIMIT:
        raise ConfigurationError(
            f"unix socket path {socket} has {length} bytes, the limit is {_SOCKET_PATH_LIMIT}",
            remedy="set a shorter STANDBY_STATE_DIR",
        )


def _watch_ready_line(read_end: int) -> asyncio.Future[None]:
    """Return a future that is set when the engine writes its word; it owns and closes ``read_end``.

    An end without the word sets nothing: that the process ended is seen by its exit, with better words.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    still_open = [read_end]  # closed once: the number may be another file's a moment later

    def close() -> None:
        for descriptor in still_open:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        still_open.clear()

    def read() -> None:
        word = os.read(read_end, 64)
        close()
        if word == READY_LINE and not ready.done():
            ready.set_result(None)

    loop.add_reader(read_end, read)
    ready.add_done_callback(lambda _: close())
    return ready


async def _healthy(address: Address) -> bool:
    try:
        async with asyncio.timeout(_HEALTH_LIMIT_S):
            return (await request(address, "GET", "/health")).status == 200
    except (OSError, ValueError):  # TimeoutError is an OSError
        return False
