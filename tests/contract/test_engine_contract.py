"""What every adapter promises of an engine's life: starts, ends, and what is left of them: nothing."""

from __future__ import annotations

import asyncio
import signal
import socket
from contextlib import closing
from pathlib import Path

import pytest

from standby.domain.errors import EngineError, EngineStartFailed, ProbeFailed
from standby.runtime.engines.base import EngineHandle, failure_of
from standby.runtime.process_group import members
from support.engine_case import Case, refuses_to_sleep
from support.engine_client import ANSWER, ask, text_of
from support.fake_engine_spec import running
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="session")


def nothing_left(handle: EngineHandle) -> None:
    """No process, no socket, no port, no folder; the log stays for whoever wants to know why."""
    assert members(handle.process.mark) == ()
    assert not handle.folder.exists()
    if not isinstance(handle.address, Path):
        with closing(socket.socket()) as probe:
            assert probe.connect_ex(handle.address) != 0
    assert handle.log.exists()


async def test_two_engines_run_at_once_where_an_earlier_life_has_left_its_socket(case: Case) -> None:
    """A killed agent leaves the file; binding it again would fail (field: stale socket files, port races)."""
    specs = [case.spec(instance=name) for name in ("one", "two")]
    for spec in specs:
        folder = case.run_dir / f"{spec.instance}-{spec.epoch}"
        folder.mkdir(mode=0o700)
        with closing(socket.socket(socket.AF_UNIX)) as left:
            left.bind(str(folder / "engine.sock"))
    handles = [await case.adapter.start(spec) for spec in specs]
    try:
        await asyncio.gather(*(case.adapter.wait_loaded(handle, 180) for handle in handles))
        assert handles[0].address != handles[1].address
        assert all([ANSWER in text_of(await ask(handle)) for handle in handles])
    finally:
        ended = [await case.adapter.stop(handle, 60) for handle in handles]
    assert all(status.ok or status.signal_number == signal.SIGTERM for status in ended)
    for handle in handles:
        nothing_left(handle)


async def test_an_engine_that_hangs_fails_its_probe_in_time_and_one_that_was_killed_is_noticed(case: Case) -> None:
    """SIGSTOP: connections are accepted by the kernel, and nobody answers (field case B31)."""
    async with running(case.adapter, case.spec(instance="hangs")) as handle:
        handle.process.send_to_group(signal.SIGSTOP)
        with pytest.raises(ProbeFailed, match=r"no token within 0\.5 s"):
            await case.adapter.probe(handle, 0.5)
        with pytest.raises(EngineError):
            await case.adapter.load(handle, 0.5)
        handle.process.send(signal.SIGKILL)
        assert (await asyncio.wait_for(handle.exited, 60)).words == "killed by signal 9 (SIGKILL)"
    nothing_left(handle)


async def test_a_sleeping_engine_can_be_stopped(case: Case) -> None:
    async with running(case.adapter, case.spec(instance="asleep")) as handle:
        if not case.adapter.capabilities.sleep:
            await refuses_to_sleep(case.adapter, handle)
            return
        await case.adapter.suspend(handle)
        status = await case.adapter.stop(handle, 60)
        assert status.ok or status.signal_number == signal.SIGTERM
    nothing_left(handle)


async def test_a_sleeping_engine_that_was_killed_cannot_be_resumed(case: Case) -> None:
    """The kernel takes memory from sleepers first: an engine may be gone when it is wanted."""
    async with running(case.adapter, case.spec(instance="taken")) as handle:
        if not case.adapter.capabilities.sleep:
            await refuses_to_sleep(case.adapter, handle)
            return
        await case.adapter.suspend(handle)
        handle.process.send(signal.SIGKILL)
        await asyncio.wait_for(handle.exited, 60)
        with pytest.raises(EngineError, match=r"ended while it slept: killed by signal 9"):
            await case.adapter.resume(handle)
    nothing_left(handle)


async def test_an_engine_can_be_stopped_before_it_has_loaded(case: Case) -> None:
    async with running(case.adapter, case.spec(instance="early"), loaded=False) as handle:
        await case.adapter.stop(handle, 5)
        nothing_left(handle)


@pytest.mark.parametrize(
    "number", [signal.SIGILL, signal.SIGBUS, signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM], ids=lambda number: number.name
)
async def test_an_end_during_the_start_is_told_in_words_and_leaves_nothing(case: Case, number: signal.Signals) -> None:
    """By a bad instruction, weights that vanished, the kernel, a crash, or an operator (field case B30)."""
    async with running(case.adapter, case.spec(instance=f"ended{number}"), loaded=False) as handle:
        waiting = asyncio.ensure_future(case.adapter.wait_loaded(handle, 60))
        await until(handle.log.exists, "it was spawned")
        handle.process.send(number)
        with pytest.raises(EngineStartFailed, match=rf"while it loaded: .*{number.value}.*{number.name}") as caught:
            await waiting
        assert failure_of(caught.value).code.startswith("engine")
    nothing_left(handle)


async def test_an_engine_that_cannot_load_says_why(case: Case) -> None:
    """The exit in words, the first error line and the log's tail (field case B60)."""
    async with running(case.adapter, case.broken_spec(instance="broken"), loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match="engine ended while it loaded: exit code") as caught:
            await case.adapter.wait_loaded(handle, 60)
    failure = failure_of(caught.value)
    assert failure.code.startswith("engine")
    assert failure.first_error
    assert failure.first_error in str(caught.value)
    assert failure.log_tail
    assert "abcdef123" not in str(failure)
    nothing_left(handle)
