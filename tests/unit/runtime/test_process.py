"""Engine processes: own session, few inherited things, watched by event, gone with their whole group."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
from pathlib import Path

import pytest

from standby.domain.errors import EngineStartFailed
from standby.runtime.process import spawn
from standby.runtime.process_group import members
from standby.runtime.procfs import process_stat

# Of these tests alone, also where another run of them is under way on this machine.
MARK = secrets.token_hex(16)
LIMIT_S = 60.0
GRANDCHILD = (
    "import subprocess, sys, time; print(subprocess.Popen([sys.executable, '-c', {!r}]).pid, flush=True); time.sleep(600)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def first_line(log: Path) -> str:
    """The first complete line of the log."""
    async with asyncio.timeout(LIMIT_S):
        while not (text := log.read_text()).endswith("\n"):
            await asyncio.sleep(0.01)
    return text.splitlines()[0]


async def test_the_exit_is_noticed_by_event_and_said_in_words(tmp_path: Path) -> None:
    process = spawn(python("import sys; print('out'); sys.exit(3)"), log=tmp_path / "log", mark=MARK)
    status = await asyncio.wait_for(process.exited, LIMIT_S)
    assert status.words == "exit code 3"
    assert (await process.stop(1)).code == 3
    assert (tmp_path / "log").read_text() == "out\n"
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


async def test_an_engine_sees_neither_the_agents_secrets_nor_its_files_nor_its_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store credentials and tokens of the agent stay with the agent."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.setenv("STANDBY_NATS_PASSWORD", "do-not-leak")
    leaked = os.open(tmp_path, os.O_RDONLY)
    os.set_inheritable(leaked, True)
    code = (
        "import os, sys; print(sorted(os.environ), os.listdir('/proc/self/fd'), os.getsid(0) == os.getpid(),"
        " repr(sys.stdin.read()))"
    )
    process = spawn(python(code), log=tmp_path / "log", mark=MARK)
    try:
        said = await first_line(tmp_path / "log")
    finally:
        await process.stop(1)
        os.close(leaked)
    assert "AWS" not in said
    assert "NATS" not in said
    assert "['0', '1', '2', '3'] True ''" in said  # 3 is the listing's own


async def test_a_grandchild_is_gone_before_stop_returns(tmp_path: Path) -> None:
    process = spawn(python(GRANDCHILD.format("import time; time.sleep(600)")), log=tmp_path / "log", mark=MARK)
    grandchild = int(await first_line(tmp_path / "log"))
    await process.stop(1)
    assert members(MARK) == ()
    stat = process_stat(grandchild)
    assert stat is None or not stat.alive


async def test_a_grandchild_that_outlives_a_killed_leader_is_gone_before_stop_returns(tmp_path: Path) -> None:
    """A helper keeps memory and locks after its engine was killed (field case B30)."""
    process = spawn(python(GRANDCHILD.format("import time; time.sleep(600)")), log=tmp_path / "log", mark=MARK)
    grandchild = int(await first_line(tmp_path / "log"))
    process.send(signal.SIGKILL)
    assert (await asyncio.wait_for(process.exited, LIMIT_S)).words == "killed by signal 9 (SIGKILL)"
    assert [stat.pid for stat in members(MARK)] == [grandchild]
    await process.stop(1)
    assert members(MARK) == ()


async def test_a_grandchild_that_left_the_session_is_found_by_its_mark(tmp_path: Path) -> None:
    code = GRANDCHILD.format("import os, time; os.setsid(); time.sleep(600)")
    process = spawn(python(code), log=tmp_path / "log", mark=MARK)
    await first_line(tmp_path / "log")
    await process.stop(1)
    assert members(MARK) == ()


async def test_an_engine_that_ignores_term_is_killed_at_the_deadline(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    process = spawn(python(code), log=tmp_path / "log", mark=MARK)
    await first_line(tmp_path / "log")
    assert (await process.stop(0.2)).words == "killed by signal 9 (SIGKILL)"


async def test_a_stopped_process_is_continued_so_that_it_can_end(tmp_path: Path) -> None:
    process = spawn(python("import time; print('up', flush=True); time.sleep(600)"), log=tmp_path / "log", mark=MARK)
    await first_line(tmp_path / "log")
    process.send_to_group(signal.SIGSTOP)
    assert (await process.stop(LIMIT_S)).words == "killed by signal 15 (SIGTERM)"


async def test_stop_may_be_cancelled_and_called_again(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    process = spawn(python(code), log=tmp_path / "log", mark=MARK)
    await first_line(tmp_path / "log")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(process.stop(60), 0.05)
    assert (await process.stop(0)).signal_number == signal.SIGKILL
    assert (await process.stop(0)).signal_number == signal.SIGKILL


async def test_a_program_that_does_not_exist_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineStartFailed, match="/no/such/engine cannot be started: No such file"):
        spawn(["/no/such/engine"], log=tmp_path / "log", mark=MARK, guards_itself=True)
