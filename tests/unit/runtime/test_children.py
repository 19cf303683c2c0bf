"""Strays that a subreaper inherits are buried, and nobody else's children are."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from pathlib import Path

from standby.runtime.children import StraySweep, become_subreaper
from standby.runtime.process import spawn
from standby.runtime.process_group import members
from standby.runtime.procfs import process_stat
from support.waiting import until

# Of these tests alone, also where another run of them is under way on this machine.
MARK = secrets.token_hex(16)
LIMIT_S = 60.0
# Starts a helper that ends when its parent has ended, says its number, and ends.
PARENT = (
    "import os, subprocess, sys; helper = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.read()'],"
    " stdin=subprocess.PIPE, start_new_session={}); print(helper.pid, flush=True); os._exit(0)"
)

# Starts a helper of which only the main thread ends, and ends itself: the kernel shows the helper as ended from then on.
HALF_ENDED = """
import ctypes, os, platform, threading, time
read_end, write_end = os.pipe()
if os.fork() == 0:
    threading.Thread(target=time.sleep, args=(600,)).start()
    os.write(write_end, f"{os.getpid()}\\n".encode())
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
print(os.read(read_end, 64).decode(), flush=True)
os._exit(0)
"""


def zombie(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and not stat.alive and stat.parent == os.getpid()


def half_ended(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and stat.state == "Z" and stat.threads > 1 and stat.parent == os.getpid()


async def test_a_helper_that_ended_in_the_group_of_its_dead_engine_is_buried_at_stop(tmp_path: Path) -> None:
    become_subreaper()
    process = spawn([sys.executable, "-c", PARENT.format(False)], log=tmp_path / "log", mark=MARK)
    await asyncio.wait_for(process.exited, LIMIT_S)
    helper = int((tmp_path / "log").read_text())
    await until(lambda: zombie(helper))
    await process.stop(0)
    assert process_stat(helper) is None


async def test_a_helper_whose_threads_outlive_its_main_thread_is_ended_and_buried_at_stop(tmp_path: Path) -> None:
    """It looks like a zombie, holds all its memory, and cannot be waited for."""
    become_subreaper()
    process = spawn([sys.executable, "-c", HALF_ENDED], log=tmp_path / "log", mark=MARK)
    await asyncio.wait_for(process.exited, LIMIT_S)
    helper = int((tmp_path / "log").read_text())
    await until(lambda: (stat := process_stat(helper)) is not None and stat.state == "Z")
    assert helper in {stat.pid for stat in members(MARK, group=process.pid)}, "a thread of it still runs"
    await process.stop(0)
    assert process_stat(helper) is None


async def test_a_stray_of_a_session_of_its_own_is_buried_at_the_second_look(tmp_path: Path) -> None:
    """At the first one it might still be a child that its owner is about to wait for."""
    become_subreaper()
    process = spawn([sys.executable, "-c", PARENT.format(True)], log=tmp_path / "log", mark=MARK)
    await asyncio.wait_for(process.exited, LIMIT_S)
    helper = int((tmp_path / "log").read_text())
    await until(lambda: zombie(helper))
    sweep = StraySweep()
    sweep.look()
    assert zombie(helper)
    sweep.look()
    assert process_stat(helper) is None
    assert zombie(process.pid)  # somebody's: its end is still to be asked for
    assert (await process.stop(0)).ok


async def test_children_of_others_are_left_to_them(tmp_path: Path) -> None:
    become_subreaper()
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"]) as foreign:
        await until(lambda: zombie(foreign.pid))
        process = spawn([sys.executable, "-c", "print(1)"], log=tmp_path / "log", mark=MARK)
        await process.stop(5)
        StraySweep().look()
        assert foreign.wait() == 5
