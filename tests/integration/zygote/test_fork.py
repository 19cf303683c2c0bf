"""An engine that was forked is like one that was spawned."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from standby.runtime.engines.child_protocol import READY_FD_VARIABLE, READY_LINE
from standby.runtime.process_group import members
from standby.runtime.process_ledger import ProcessLedger
from standby.runtime.zygote.mark import shown_mark
from support.waiting import until
from support.zygote_rig import alive, descriptors, hatched


async def test_a_fork_is_a_child_of_the_agent_in_a_session_of_its_own(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger) as rig:
        process = await rig.fork(1)
        seen = rig.report(1)
    assert (seen["pid"], seen["parent"]) == (process.pid, os.getpid())
    assert seen["session"] == seen["group"] == process.pid
    assert rig.log(1).read_text() == "serving\n"
    assert rig.log(1).stat().st_mode & 0o777 == 0o600
    assert "serving" not in rig.zygote.log.read_text()
    assert rig.zygote.version.startswith("stand-in 1 python 3.")


async def test_its_environment_is_that_of_a_spawned_engine(
    folder: Path, ledger: ProcessLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the zygote's or the agent's own is left in it."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-leak")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    async with hatched(folder, ledger) as rig:
        await rig.fork(1)
        environment = rig.report(1)["environment"]
    allowed = {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "LC_ALL"}
    added = {name: value for name, value in environment.items() if name not in allowed and not name.startswith("LC_")}
    assert added == {
        "GIVEN": "yes",
        "PYTHONPATH": rig.zygote.plan.environment["PYTHONPATH"],
        "SPT_NOENV": "1",
        "STANDBY_ENGINE_MARK": f"{1:032x}",
        "STANDBY_ENGINE_PARENT": str(os.getpid()),
    }
    assert environment["LC_ALL"] == "C.UTF-8"


async def test_its_temporary_files_lie_where_its_own_environment_says(folder: Path, ledger: ProcessLedger) -> None:
    """Python had looked before the fork: what vLLM leaves behind lay in the machine's /tmp, and nobody removed it."""
    own = folder / "scratch"
    own.mkdir()
    async with hatched(folder, ledger) as rig:
        process = await rig.zygote.fork(
            arguments=[f'{{"report": "{rig.report_file()}"}}'],
            environment={"TMPDIR": str(own)},
            log=rig.log(),
            mark=f"{1:032x}",
        )
        rig.engines.append(process)
        await until(rig.report_file().exists)
        assert rig.report()["temporary"] == str(own)


async def test_only_what_it_was_given_is_open(folder: Path, ledger: ProcessLedger) -> None:
    """What the zygote's imports left open leads nowhere in the fork, and its number stays taken."""
    async with hatched(folder, ledger, preload="open") as rig:
        await rig.fork(1)
        opened = rig.report(1)["descriptors"]
        left_open = descriptors(rig.zygote.pid)
    log = str(rig.log(1))
    assert {number: opened.pop(number) for number in ("0", "1", "2")} == {"0": "/dev/null", "1": log, "2": log}
    assert list(opened.values()) == ["/dev/null"] * 3
    assert left_open == 7  # three standard ones, the control socket, and three that the stand-in left


async def test_the_ready_descriptor_is_passed_on(folder: Path, ledger: ProcessLedger) -> None:
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    try:
        async with hatched(folder, ledger) as rig:
            process = await rig.zygote.fork(
                arguments=["{}"],
                environment={},
                log=rig.log(),
                mark=f"{1:032x}",
                descriptors={READY_FD_VARIABLE: write_end},
            )
            rig.engines.append(process)
            assert await asyncio.to_thread(os.read, read_end, 64) == READY_LINE
    finally:
        os.close(read_end)
        os.close(write_end)


async def test_signals_are_as_in_a_fresh_process_whatever_an_import_did(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger, preload="signals") as rig:
        process = await rig.fork(1)
        seen = rig.report(1)
        assert (await process.stop(10)).signal_number == signal.SIGTERM
    assert (seen["blocked"], seen["term"]) == ([], str(signal.SIG_DFL))


async def test_a_fork_runs_on_the_processors_that_it_was_given(folder: Path, ledger: ProcessLedger) -> None:
    core = min(os.sched_getaffinity(0))
    async with hatched(folder, ledger) as rig:
        process = await rig.zygote.fork(
            arguments=[f'{{"report": "{rig.report_file()}"}}'],
            environment={},
            log=rig.log(),
            mark=f"{1:032x}",
            cores=[core],
        )
        rig.engines.append(process)
        await until(rig.report_file().exists)
        assert rig.report()["cores"] == [core]


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ({"exit": 3}, "exit code 3"),
        ({"exit": 0}, "exit code 0"),
        ({"signal": signal.SIGILL}, "killed by signal 4 (SIGILL)"),
        ({"signal": signal.SIGBUS}, "killed by signal 7 (SIGBUS)"),
        ({"signal": signal.SIGKILL}, "killed by signal 9 (SIGKILL)"),
        ({"signal": signal.SIGSEGV}, "killed by signal 11 (SIGSEGV)"),
        ({"raise": "no such weights"}, "exit code 1"),
    ],
)
async def test_the_agent_sees_how_a_fork_ended(folder: Path, ledger: ProcessLedger, ending: dict[str, Any], words: str) -> None:
    async with hatched(folder, ledger) as rig:
        process = await rig.fork(1, wait=False, **ending)
        status = await asyncio.wait_for(process.exited, 60)
        assert status.words.startswith(words)
        assert await process.stop(0) == status
        assert rig.zygote.usable
    if "raise" in ending:
        assert rig.log(1).read_text().endswith("ValueError: no such weights\n")


async def test_helpers_of_a_fork_are_found_by_its_mark_and_gone_with_it(folder: Path, ledger: ProcessLedger) -> None:
    """They left its session; one of them is itself a fork, so that its environment is the zygote's memory."""
    async with hatched(folder, ledger) as rig:
        process = await rig.fork(1, helpers=True)
        bystander = await rig.fork(2)
        helpers = rig.report(1)["helpers"]
        assert {stat.pid for stat in members(process.mark)} == {process.pid, *helpers}
        await process.stop(1)
        assert not any(alive(pid) for pid in helpers)
        await until(lambda: rig.zombies() == [], "no zombie is left")
        assert bystander.status is None
        assert rig.zygote.usable


async def test_many_forks_leave_no_zombie_and_no_descriptor(folder: Path, ledger: ProcessLedger) -> None:
    """Neither in the agent nor in the zygote; and no two draw the same random numbers."""
    async with hatched(folder, ledger) as rig:
        await (await rig.fork(0)).stop(0)
        before = descriptors(os.getpid()), descriptors(rig.zygote.pid)
        for number in range(1, 21):
            await (await rig.fork(number)).stop(0)
        await until(lambda: (descriptors(os.getpid()), descriptors(rig.zygote.pid)) == before, "no file is left open")
        await until(lambda: rig.zombies() == [], "no zombie is left")
        assert len({rig.report(number)["drawn"] for number in range(21)}) == 21
        assert rig.zygote.forks == 21


async def test_two_forks_at_once_are_not_mistaken_for_each_other(folder: Path, ledger: ProcessLedger) -> None:
    async with hatched(folder, ledger) as rig:
        processes = await asyncio.gather(*(rig.fork(number) for number in range(4)))
        assert [rig.report(number)["pid"] for number in range(4)] == [process.pid for process in processes]
        assert [process.mark for process in processes] == [f"{number:032x}" for number in range(4)]


def test_a_process_without_a_mark_shows_none() -> None:
    assert shown_mark() == ""
