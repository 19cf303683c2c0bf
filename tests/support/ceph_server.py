"""A second real S3 server for tests, Ceph's radosgw on a cluster of one: ``async with ceph_server(tmp_path) as s3``.

One monitor, one OSD that stores in memory and the gateway; no manager, which only collects figures.
"""

from __future__ import annotations

import asyncio
import base64
import os
import secrets
import shutil
import struct
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from standby.artifacts.local_s3 import LocalS3, free_ports
from standby.domain.errors import ConfigurationError
from standby.host.group import log_tail, spawn, stop_group

PROGRAMS: Final = ("radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "monmaptool")
INSTALL: Final = "apt-get install --no-install-recommends radosgw ceph-mon ceph-osd ceph-common"
_STEP_LIMIT: Final = 30.0
_STOP_LIMIT: Final = 3.0
# Every new pool waits for a decision of the monitors, by default one a second; the gateway makes seven.
_CONFIG: Final = """
[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{monitor}]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/rgw
run dir = {folder}/run
crash dir = {folder}/run
keyring = {folder}/keyring
log file = {folder}/$name.log
mon cluster log file = {folder}/cluster.log
log to stderr = false
admin socket =
pid file =
ms bind msgr1 = false
paxos propose interval = 0.05
paxos min wait = 0.02
mon allow pool size one = true
osd objectstore = memstore
memstore device bytes = 1073741824
osd crush chooseleaf type = 0
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
"""


def missing_programs() -> tuple[str, ...]:
    """Return the programs of Ceph that are not in PATH; empty when the server can be started."""
    return tuple(name for name in PROGRAMS if shutil.which(name) is None)


class CephServer(LocalS3):
    """Three processes of Ceph below one folder; used like the other server, ``url`` is the gateway's."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._cluster = str(uuid.uuid4())
        self._running: list[asyncio.subprocess.Process] = []

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the monitor, the OSD and the gateway while they run."""
        return tuple(process.pid for process in self._running)

    async def start(self) -> None:
        """Start the cluster and its gateway, and wait until it answers. Raises ConfigurationError with the log's end."""
        if missing := missing_programs():
            raise ConfigurationError(f"Ceph is not installed: no {', '.join(missing)} in PATH", remedy=INSTALL)
        try:
            await self._start_cluster()
            await self._start_gateway()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End gateway, OSD and monitor, in this order, and wait for each."""
        self._process = None
        while self._running:
            await stop_group(self._running.pop(), _STOP_LIMIT)

    async def _start_cluster(self) -> None:
        monitor, gateway = free_ports(2)
        self.url = f"http://127.0.0.1:{gateway}"
        for name in ("mon", "osd", "rgw", "run"):
            (self.data_dir / name).mkdir(parents=True)
        self._config.write_text(_CONFIG.format(cluster=self._cluster, monitor=monitor, folder=self.data_dir))
        (self.data_dir / "keyring").write_text(_keyring("mon.", "osd.0", "client.admin"))
        monmap, disk = str(self.data_dir / "monmap"), str(uuid.uuid4())
        address = f"[v2:127.0.0.1:{monitor}]"
        await self._run("monmaptool", "--create", "--addv", "a", address, "--fsid", self._cluster, monmap)
        await self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", str(self.data_dir / "keyring"))
        await self._keep("ceph-mon", "-f", "-i", "a")
        await self._run("ceph", "osd", "new", disk)
        await self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        await self._keep("ceph-osd", "-f", "-i", "0")

    async def _start_gateway(self) -> None:
        keys = (f"--access-key={self.access_key}", f"--secret-key={self.secret_key}")
        await self._run("radosgw-admin", "user", "create", "--uid=tests", "--display-name=tests", *keys)
        address = self.url.removeprefix("http://")
        self._process = await self._keep("radosgw", "-f", "-n", "client.admin", f"--rgw-frontends=beast endpoint={address}")
        if not await self._answers():
            raise ConfigurationError(
                f"radosgw did not answer at {self.url}: {log_tail(self._output)}", remedy=f"look at {self.data_dir}"
            )

    @property
    def _config(self) -> Path:
        return self.data_dir / "ceph.conf"

    @property
    def _output(self) -> Path:
        return self.data_dir / "output.log"

    async def _spawn_program(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        command = [shutil.which(program) or program, *arguments]
        environment = {"PATH": os.environ["PATH"], "CEPH_CONF": str(self._config), "LC_ALL": "C.UTF-8"}
        return await spawn(command, environment=environment, log=self._output, folder=self.data_dir)

    async def _keep(self, program: str, *arguments: str) -> asyncio.subprocess.Process:
        process = await self._spawn_program(program, *arguments)
        self._running.append(process)
        return process

    async def _run(self, program: str, *arguments: str) -> None:
        """Run a program to its end. Raises ConfigurationError when it fails or takes too long."""
        process = await self._spawn_program(program, *arguments)
        try:
            code = await asyncio.wait_for(process.wait(), _STEP_LIMIT)
        except TimeoutError:
            code = None
        finally:
            if process.returncode is None:
                await stop_group(process, 0.5)
        if code != 0:
            ended = f"ended with {code}" if code is not None else f"did not end within {_STEP_LIMIT:.0f} s"
            raise ConfigurationError(
                f"{program} {arguments[0]} {ended}: {log_tail(self._output)}", remedy=f"look at {self.data_dir}"
            )


def _keyring(*names: str) -> str:
    """One new key, in Ceph's own encoding, for all of these with every right: the gateway takes no cluster without keys."""
    key = base64.b64encode(struct.pack("<HIIH", 1, int(time.time()), 0, 16) + secrets.token_bytes(16)).decode()
    rights = "".join(f'\tcaps {part} = "allow *"\n' for part in ("mon", "osd", "mgr"))
    return "".join(f"[{name}]\n\tkey = {key}\n{rights}" for name in names)


@asynccontextmanager
async def ceph_server(folder: Path, *buckets: str) -> AsyncIterator[CephServer]:
    """Start a cluster that keeps its files below ``folder``, create ``buckets``, end everything at the end."""
    server = CephServer(folder / "ceph")
    await server.start()
    try:
        for bucket in buckets:
            await server.create_bucket(bucket)
        yield server
    finally:
        await server.stop()
