"""Zygotes, forks and agents that are killed, hang or are not fit: nothing is left, and engines are not taken along."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from standby.domain.errors import EngineStartFailed, ForkFailed
from standby.host.tasks import end
from standby.runtime.engines.base import failure_of
from standby.runtime.process_group import members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.procfs import processes
from standby.runtime.zygote.host import Zygote
from support import zygote_parent
from support.waiting import until
from support.zygote_rig import START_LIMIT_S, TESTS, Rig, alive, descriptors, hatched, plan


def stopped_child_of(pid: int) -> int | None:
    """A child of ``pid`` that SIGSTOP holds."""
    return next((stat.pid for stat in processes() if stat.stopped and stat.parent == pid), None)


def children() -> set[int]:
    """The children of this process, whatever their state."""
    return {stat.pid for stat in processes() if stat.parent == os.getpid()}


async def refused(rig: Rig, match: str, number: int = 1) -> None:
    """Fork, and expect an error that says ``match`` and leaves nothing."""
    with pytest.raises(ForkFailed, match=match) as caught:
        await rig.fork(number)
    assert caught.value.remedy.startswith("it can be started without the zygote")
    assert members(f"{number:032x}") == ()


@pytest.mark.parametrize(
    ("preload", "limit_s", "match"),
    [
        ("thread", START_LIMIT_S, "must not fork: 2 threads run in it"),
        ("fail", START_LIMIT_S, "must not fork: ImportError: no module named engine"),
        ("hang", 1.5, r"was not ready within 1\.5 s"),
    ],
)
async def test_a_zygote_that_may_not_fork_does_not_hatch(
    folder: Path, ledger: ProcessLedger, preload: str, limit_s: float, match: str
) -> None:
    before = descriptors(os.getpid())
    zygote = Zygote(plan(preload=preload), ledger=ledger, log=folder / "zygote.log")
    with pytest.raises(EngineStartFailed, match=match):
        await zygote.start(limit_s)
    assert not zygote.usable
    assert ledger.records() == ()
    await until(lambda: descriptors(os.getpid()) == before, "no file is left open")
    with pytest.raises(ForkFailed):
        await zygote.fork(arguments=[], environment={}, log=folder / "log", mark="0" * 32)


async def test_a_zygote_that_ends_while_it_preloads_shows_its_last_words(folder: Path, ledger: ProcessLedger) -> None:
    zygote = Zygote(plan(profile="support.no_such_profile"), ledger=ledger, log=folder / "zygote.log")
    with pytest.raises(EngineStartFailed) as caught:
        await zygote.start(START_LIMIT_S)
    failure = failure_of(caught.value)
    assert failure.code == "zygote_unfit"
    assert "No module named 'support.no_such_profile'" in failure.reason


async def test_an_interpreter_that_does_not_exist_is_named(folder: Path, ledger: ProcessLedger) -> None:
    broken = plan()
    zygote = Zygote(
        type(broken)(kind=broken.kind, python=Path("/no/such/python"), profile=broken.profile),
        ledger=ledger,
        log=folder / "zygote.log",
    )
    with pytest.raises(EngineStartFailed, match="/no/such/python cannot be started"):
        await zygote.start(START_LIMIT_S)
    assert ledger.records() == ()


async def test_a_start_that_is_cancelled_leaves_nothing(folder: Path, ledger: ProcessLedger) -> None:
    zygote = Zygote(plan(preload="hang"), ledger=ledger, log=folder / "zygote.log")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(zygote.start(60), 0.3)
    assert ledger.records() == ()


async def test_a_zygote_that_becomes_unfit_refuses(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger, unfit_after=1) as rig:
        await rig.fork(1)
        await refused(rig, "the stand-in is tired", 2)
        assert not rig.zygote.usable
        assert rig.zygote.failure == "the stand-in is tired"
        assert rig.engines[0].status is None


@pytest.mark.parametrize("place", [1, 2])
async def test_a_fork_that_dies_at_birth_is_said_so(folder: Path, ledger: ProcessLedger, place: int) -> None:
    """1: the process between zygote and engine, 2: the engine before it is on its own."""
    async with hatched(folder, ledger, fork="die", fork_at=place) as rig:
        await refused(rig, "ended with 7" if place == 1 else "ended before it was on its own")
        await until(lambda: rig.zombies() == [], "no zombie is left")
        assert not rig.zygote.usable


@pytest.mark.parametrize("place", [1, 2])
async def test_a_fork_that_hangs_ends_at_the_limit_with_the_zygote(folder: Path, ledger: ProcessLedger, place: int) -> None:
    async with hatched(folder, ledger, fork_limit_s=0.5, fork="hang", fork_at=place) as rig:
        zygote, others = rig.zygote.pid, children()
        await refused(rig, r"did not fork within 0\.5 s")
        assert not alive(zygote)
        await until(lambda: children() <= others, "no child is left")


async def test_a_zygote_that_is_stopped_fails_every_waiting_fork(folder: Path, ledger: ProcessLedger) -> None:
    """Two wait; what the zygote would have given birth to later can never run."""
    async with hatched(folder, ledger, fork_limit_s=4.0) as rig:
        survivor = await rig.fork(1)
        os.kill(rig.zygote.pid, signal.SIGSTOP)
        results = await asyncio.gather(rig.fork(2), rig.fork(3), return_exceptions=True)
        assert [type(result) for result in results] == [ForkFailed, ForkFailed]
        assert not rig.report_file(2).exists()
        assert survivor.status is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_is_killed_during_its_birth(folder: Path, ledger: ProcessLedger, number: signal.Signals) -> None:
    """It is held right after the fork, when its parent is already the agent."""
    async with hatched(folder, ledger, fork="stop", fork_at=2) as rig:
        forking = asyncio.ensure_future(refused(rig, "ended before it was on its own"))
        await until(lambda: stopped_child_of(os.getpid()))
        child = stopped_child_of(os.getpid())
        assert child is not None
        os.kill(child, number)
        os.kill(child, signal.SIGCONT)
        await forking
        await until(lambda: rig.zombies() == [], "no zombie is left")


async def test_a_fork_that_is_cancelled_leaves_no_engine(folder: Path, ledger: ProcessLedger) -> None:
    """However often it is cancelled: given up halfway, an engine would be left that nobody knows of."""
    async with hatched(folder, ledger, fork="stop", fork_at=2) as rig:
        forking = asyncio.ensure_future(rig.fork(1))
        await until(lambda: stopped_child_of(os.getpid()))
        await end([forking])  # cancels it again and again
        assert forking.cancelled()
        assert members(f"{1:032x}") == ()
        await until(lambda: rig.zombies() == [], "no zombie is left")
        assert rig.zygote.usable  # the caller changed its mind: nothing is known against the zygote


async def test_a_zygote_killed_over_a_birth_leaves_no_engine_and_no_zombie(folder: Path, ledger: ProcessLedger) -> None:
    """The process between is held; the agent inherits it when the zygote is killed, and the engine is born all the same."""
    async with hatched(folder, ledger, fork="stop", fork_at=1) as rig:
        forking = asyncio.ensure_future(rig.fork(1))
        await until(lambda: stopped_child_of(rig.zygote.pid))
        midwife = stopped_child_of(rig.zygote.pid)
        assert midwife is not None
        os.kill(rig.zygote.pid, signal.SIGKILL)
        await rig.zygote.exited
        os.kill(midwife, signal.SIGCONT)
        process = await forking
        assert rig.report(1)["parent"] == os.getpid()
        assert rig.zygote.failure == "zygote ended: killed by signal 9 (SIGKILL)"
        await process.stop(0)
        await until(lambda: not rig.zombies() or rig.zombies() == [rig.zygote.pid])


async def test_a_killed_zygote_takes_no_engine_with_it(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger) as rig:
        process = await rig.fork(1, helpers=True)
        os.kill(rig.zygote.pid, signal.SIGKILL)
        assert (await asyncio.wait_for(rig.zygote.spent, 60)) == "zygote ended: killed by signal 9 (SIGKILL)"
        await rig.zygote.stop()
        with pytest.raises(ForkFailed, match="killed by signal 9"):
            await rig.fork(2)
        assert process.status is None
        assert len(members(process.mark)) == 3
        assert (await process.stop(5)).signal_number == signal.SIGTERM
        assert members(process.mark) == ()


async def killed_agent(folder: Path) -> list[int]:
    """Start an agent with a zygote and engines, kill it without warning, and return the processes that it had."""
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        zygote_parent.__file__,
        str(folder),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert parent.stdout is not None
    numbers: list[int] = json.loads(await asyncio.wait_for(parent.stdout.readline(), START_LIMIT_S))
    parent.kill()
    await parent.wait()
    return numbers


async def test_a_killed_agent_takes_zygote_and_engines_with_it(folder: Path, ledger: ProcessLedger) -> None:
    """What left its engine's session is ended by the next agent, by the marks on record (field case B30)."""
    zygote, first, second, *helpers = await killed_agent(folder)
    await until(lambda: not any(alive(pid) for pid in (zygote, first, second)))
    assert all(alive(pid) for pid in helpers)
    reaped = await ledger.reap_orphans()
    assert [(one.instance, sorted(one.killed)) for one in reaped] == [("engine1", sorted(helpers))]
    assert ledger.records() == ()


async def test_the_next_agent_ends_a_zygote_that_is_on_record(folder: Path, ledger: ProcessLedger) -> None:
    """And nothing else of it: its engines carry marks of their own."""
    async with hatched(folder, ledger) as rig:
        engine = await rig.fork(1)
        reaped = await ProcessLedger(folder / "ledger").reap_orphans()
        assert [(one.instance, one.killed) for one in reaped] == [("zygote-fake", (rig.zygote.pid,))]
        assert engine.status is None


async def test_a_request_that_is_too_large_is_refused_and_breaks_nothing(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger) as rig:
        before = descriptors(os.getpid())
        big: dict[str, Any] = {"environment": {"BIG": "x" * 200_000}, "arguments": [], "log": rig.log(), "mark": "0" * 32}
        with pytest.raises(ForkFailed, match="the limit is 163840"):
            await rig.zygote.fork(**big)
        with pytest.raises(ForkFailed, match="the limit is 14"):
            await rig.zygote.fork(**{**big, "environment": {}}, descriptors={f"FD{number}": 0 for number in range(15)})
        await until(lambda: descriptors(os.getpid()) == before, "no file is left open")
        await rig.fork(1)


async def test_growth_is_seen_from_outside(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger, grow_mib=32) as rig:
        await rig.fork(1)
        assert rig.zygote.resident_whole() >= rig.zygote.resident_at_start + 32 * 2**20
        assert 0 < rig.zygote.resident_bytes() <= rig.zygote.resident_whole()
