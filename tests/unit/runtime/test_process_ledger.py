"""What a killed agent leaves is ended by the next one, and nobody else is."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from standby.runtime.engines.fake import FakeEngine
from standby.runtime.process import spawn
from standby.runtime.process_group import kill_members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import process_stat
from support import engine_parent
from support.fake_engine_spec import fake_spec
from support.real_model import real_model_path

LIMIT_S = 60.0
SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def alive(pid: int) -> bool:
    stat = process_stat(pid)
    return stat is not None and stat.alive


async def until_dead(pid: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while alive(pid):
            await asyncio.sleep(0.01)


async def killed_agent(run_dir: Path, *arguments: str) -> list[int]:
    """Start an agent with an engine, kill it without warning, and return the engine's processes, the first one first."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable, engine_parent.__file__, str(run_dir), str(run_dir / "ledger"), *arguments, stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    numbers = sorted(int(pid) for pid in (await asyncio.wait_for(parent.stdout.readline(), LIMIT_S)).split())
    parent.kill()
    await parent.wait()
    return numbers


async def test_orphans_of_a_killed_agent_are_reaped_with_their_grandchildren(run_dir: Path, ledger: ProcessLedger) -> None:
    """The kernel ends the engine itself; its helper survives and is found by the record (field case B30)."""
    engine, helper = await killed_agent(run_dir)
    await until_dead(engine)
    assert alive(helper)

    reaped = await ledger.reap_orphans()

    assert [(one.instance, one.epoch, one.killed) for one in reaped] == [("orphan", 3, (helper,))]
    assert not alive(helper)
    assert ledger.records() == ()
    assert await ledger.reap_orphans() == ()


@pytest.mark.real_engine
async def test_a_real_engine_ends_with_its_killed_agent(run_dir: Path, ledger: ProcessLedger) -> None:
    (engine,) = await killed_agent(run_dir, str(real_model_path()))
    await until_dead(engine)
    await ledger.reap_orphans()
    assert ledger.records() == ()


async def test_a_stranger_with_a_recycled_number_is_left_alone(ledger: ProcessLedger) -> None:
    with subprocess.Popen(SLEEPER, start_new_session=True) as stranger:
        stat = process_stat(stranger.pid)
        assert stat is not None
        record = ledger.intend("gone", 1)
        ledger._write(record.model_copy(update={"pid": stranger.pid, "start_ticks": stat.start_ticks - 1}))
        try:
            assert await ledger.reap_orphans() == ()
            assert alive(stranger.pid)
            assert ledger.records() == ()
        finally:
            stranger.kill()


async def test_a_record_of_an_earlier_boot_kills_nobody(ledger: ProcessLedger) -> None:
    with subprocess.Popen(SLEEPER, start_new_session=True) as stranger:
        stat = process_stat(stranger.pid)
        assert stat is not None
        record = ledger.intend("gone", 1)
        ledger._write(record.model_copy(update={"boot_id": "other", "pid": stranger.pid, "start_ticks": stat.start_ticks}))
        try:
            assert await ledger.reap_orphans() == ()
            assert alive(stranger.pid)
        finally:
            stranger.kill()


async def test_an_engine_spawned_right_before_the_agent_died_is_found_by_its_mark(ledger: ProcessLedger, run_dir: Path) -> None:
    record = ledger.intend("early", 1)
    process = spawn(SLEEPER, log=run_dir / "log", mark=record.mark)
    reaped = await ledger.reap_orphans()
    assert [one.killed for one in reaped] == [(process.pid,)]
    assert (await process.stop(0)).signal_number == signal.SIGKILL


async def test_a_started_engine_is_on_record_until_it_is_stopped(
    engine: FakeEngine, ledger: ProcessLedger, run_dir: Path
) -> None:
    handle = await engine.start(fake_spec(run_dir, instance="a"))
    (record,) = ledger.records()
    assert (record.instance, record.pid, record.start_ticks) == ("a", handle.pid, handle.process.start_ticks)
    assert ledger.survivors() == (handle.pid,)
    await engine.stop(handle, 1)
    assert ledger.records() == ()
    assert await kill_members(record.mark) == ()


def test_a_torn_record_is_passed_over(ledger: ProcessLedger, run_dir: Path) -> None:
    (run_dir / "ledger" / "torn.engine.json").write_text('{"mark": ')
    assert ledger.records() == ()
