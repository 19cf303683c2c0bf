"""The embedded server: keeps its data and address, guards its folder, never outlives its parent."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import sys
from pathlib import Path

import psutil
import pytest

from standby.bus.connection import Bus
from standby.bus.embedded import EmbeddedNats
from standby.bus.tables_set import open_tables
from standby.domain.access import Lease
from standby.domain.errors import BusUnavailable, ConfigurationError
from support.nats_server import NatsServer
from support.waiting import until

PARENT = """
import asyncio, sys
from pathlib import Path
from standby.bus.embedded import EmbeddedNats

async def main() -> None:
    server = EmbeddedNats(Path(sys.argv[1]))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_new_object_on_the_same_folder_keeps_data_credentials_and_address(tmp_path: Path) -> None:
    first = EmbeddedNats(tmp_path / "state")
    await first.start()
    bus = await Bus.connect(first.settings(), name="test")
    await (await open_tables(bus)).leases.put("a", Lease(holder="kept", epoch=1))
    await bus.close()
    await first.stop()
    second = EmbeddedNats(tmp_path / "state")
    await second.start()
    try:
        assert (second.url, second.user, second.password) == (first.url, first.user, first.password)
        bus = await Bus.connect(first.settings(), name="test")
        entry = await (await open_tables(bus)).leases.get("a")
        await bus.close()
    finally:
        await second.stop()
    assert entry is not None
    assert entry.value.holder == "kept"


async def test_nobody_gets_in_without_the_password_and_secrets_are_private_files(server: NatsServer) -> None:
    with pytest.raises(BusUnavailable, match="Authorization"):
        await Bus.connect(server.settings(nats_user=None, nats_password=None), name="test")
    folder = server._embedded.state_dir
    password = server.settings().nats_password
    assert password is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    holding = [path for path in folder.iterdir() if path.is_file() and password.get_secret_value() in path.read_text()]
    assert {path.name for path in holding} == {"credentials.json", "nats-server.conf"}
    assert [stat.S_IMODE(path.stat().st_mode) for path in holding] == [0o600, 0o600]
    command = psutil.Process(server.pid).cmdline()
    assert password.get_secret_value() not in " ".join(command)


async def test_listens_on_loopback_only(server: NatsServer) -> None:
    listening = [item.laddr.ip for item in psutil.Process(server.pid).net_connections() if item.status == psutil.CONN_LISTEN]
    assert set(listening) == {"127.0.0.1"}


async def test_a_kept_port_taken_by_others_is_replaced(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "state")
    await server.start()
    port = int(server.url.rpartition(":")[2])
    await server.stop()
    with socket.create_server(("127.0.0.1", port)):
        await server.start()
        assert server.url != f"nats://127.0.0.1:{port}"
        await server.stop()


async def test_a_demanded_port_taken_by_others_is_an_error_that_names_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedNats(tmp_path / "state", port)
        with pytest.raises(ConfigurationError, match=f"{port}: bind: address already in use"):
            await server.start()
    assert server.pid is None


async def test_two_servers_never_share_a_folder(server: NatsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("standby.bus.embedded.LOCK_LIMIT_S", 0.1)
    with pytest.raises(ConfigurationError, match="another nats-server uses"):
        await EmbeddedNats(server._embedded.state_dir).start()


async def test_without_a_binary_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError) as caught:
        await EmbeddedNats(tmp_path / "state").start()
    assert "standby[embedded]" in caught.value.remedy


async def test_damaged_credentials_are_named(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "credentials.json").write_text(json.dumps({"user": 1}))
    with pytest.raises(ConfigurationError, match=r"credentials\.json is damaged"):
        await EmbeddedNats(state).start()


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
async def test_the_server_dies_with_its_parent_and_the_folder_is_free_again(tmp_path: Path, signal_number: int) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PARENT, str(tmp_path / "state"), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert psutil.pid_exists(pid)
    os.kill(parent.pid, signal_number)
    await parent.wait()
    await until(lambda: not alive(pid), "server gone")
    successor = EmbeddedNats(tmp_path / "state")
    await successor.start()
    await successor.stop()


async def test_a_server_that_ignores_term_is_killed(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path / "state")
    await server.start()
    pid = server.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    await server.stop(grace_s=0.1)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
