"""What adapters make of engines that misbehave; the fake engine does so on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from standby.domain.errors import ConfigurationError, EngineStartFailed, ProbeFailed
from standby.runtime.engines.base import EngineSpec, failure_of
from standby.runtime.engines.fake import FakeEngine
from standby.runtime.process import EngineProcess
from standby.runtime.process_ledger import ProcessLedger, ProcessRecord
from standby.runtime.procfs import process_stat, resident
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, fake_spec, running

LIMIT_S = 60.0


async def test_health_that_lies_is_caught_by_the_probe(engine: FakeEngine, run_dir: Path) -> None:
    """Listening is not loaded, and 200 on health is not able to generate (field case B10)."""
    async with running(engine, fake_spec(run_dir, health_lies=True, ready_after_s=60)) as handle:
        with pytest.raises(ProbeFailed, match=r"generated no token within 0\.5 s"):
            await engine.probe(handle, 0.5)


async def test_an_engine_that_listens_before_it_is_ready_is_waited_for(engine: FakeEngine, run_dir: Path) -> None:
    async with running(engine, fake_spec(run_dir, start_delay_s=0.1, ready_after_s=0.5)) as handle:
        assert (await engine.probe(handle, LIMIT_S)).pieces == ("The",)


async def test_an_engine_that_is_never_ready_runs_into_the_limit(engine: FakeEngine, run_dir: Path) -> None:
    async with running(engine, fake_spec(run_dir, ready_after_s=600), loaded=False) as handle:
        with pytest.raises(EngineStartFailed, match=r"did not load within 0\.3 s") as caught:
            await engine.wait_loaded(handle, 0.3)
    assert failure_of(caught.value).code == "engine_load_timeout"


async def test_a_failing_first_completion_fails_the_probe_and_the_second_passes(engine: FakeEngine, run_dir: Path) -> None:
    async with running(engine, fake_spec(run_dir, first_completion_500=True)) as handle:
        with pytest.raises(ProbeFailed, match="with 500"):
            await engine.probe(handle, LIMIT_S)
        await engine.probe(handle, LIMIT_S)


async def test_an_engine_that_stalls_fails_the_probe_at_its_limit(engine: FakeEngine, run_dir: Path) -> None:
    """Alive, healthy, and generating nothing (field case B31)."""
    async with running(engine, fake_spec(run_dir, stall=True)) as handle:
        with pytest.raises(ProbeFailed, match=r"no token within 0\.2 s"):
            await engine.probe(handle, 0.2)


async def test_an_engine_that_dies_on_its_first_token_fails_the_probe(engine: FakeEngine, run_dir: Path) -> None:
    async with running(engine, fake_spec(run_dir, die_after_tokens=0)) as handle:
        with pytest.raises(ProbeFailed, match=r"closed the connection|reset"):
            await engine.probe(handle, LIMIT_S)
        assert (await asyncio.wait_for(handle.exited, LIMIT_S)).words == "killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "exit code 3"),
        (137, "exit code 137 (a process of the engine was killed by SIGKILL): usually out of memory"),
        (-7, "killed by signal 7 (SIGBUS): weights file vanished under the engine"),
    ],
)
async def test_a_failed_start_says_how_it_ended(engine: FakeEngine, run_dir: Path, code: int, words: str) -> None:
    async with running(engine, fake_spec(run_dir, fail_start=code), loaded=False) as handle:
        with pytest.raises(EngineStartFailed) as caught:
            await engine.wait_loaded(handle, LIMIT_S)
    failure = failure_of(caught.value)
    assert failure.reason == f"engine ended while it loaded: {words}"
    assert failure.first_error == "error: the fake engine was told to fail"


async def test_an_engine_that_ignores_term_is_killed_at_the_deadline(engine: FakeEngine, run_dir: Path) -> None:
    async with running(engine, fake_spec(run_dir, ignore_term=True, spawn_child=True)) as handle:
        assert (await engine.stop(handle, 0.2)).words == "killed by signal 9 (SIGKILL)"


async def test_memory_that_an_engine_holds_is_measured_and_sleep_is_not_claimed_to_free_it(
    engine: FakeEngine, run_dir: Path
) -> None:
    async with running(engine, fake_spec(run_dir, allocate_mib=64)) as handle:
        result = await engine.suspend(handle)
        assert result.resident_before >= 64 * 2**20
        assert result.resident_after == pytest.approx(result.resident_before, rel=0.05)
    assert resident(handle.pid).total == 0


async def test_the_log_of_the_life_before_is_kept(engine: FakeEngine, run_dir: Path) -> None:
    for epoch in (1, 2):
        spec = fake_spec(run_dir, epoch=epoch, fail_start=1, fail_message=f"life {epoch}")
        async with running(engine, spec, loaded=False) as handle:
            await asyncio.wait_for(handle.exited, LIMIT_S)
    assert handle.log.read_text() == "life 2\n"
    assert handle.log.with_name("fake1.previous.log").read_text() == "life 1\n"


async def test_an_engine_whose_number_cannot_be_written_down_is_ended(run_dir: Path) -> None:
    """The disk is full right after the spawn: no handle is returned, so nobody else would ever end it."""

    class FullDisk(ProcessLedger):
        seen: EngineProcess

        def confirm(self, record: ProcessRecord, process: EngineProcess) -> None:
            self.seen = process
            raise OSError(28, "No space left on device")

    ledger = FullDisk(run_dir / "ledger")
    with pytest.raises(OSError, match="No space left"):
        await FakeEngine(ledger, FAKE_ENGINE_PROGRAM).start(fake_spec(run_dir))
    assert process_stat(ledger.seen.pid) is None
    assert ledger.records() == ()


@pytest.mark.parametrize("fault", ["refused options", "too deep a folder"])
async def test_a_start_that_is_refused_leaves_no_folder_behind(run_dir: Path, fault: str) -> None:
    """Each try would leave two more, for ever."""

    class Refusing(FakeEngine):
        def command(self, spec: EngineSpec, socket: Path, folder: Path) -> Sequence[str]:
            raise ConfigurationError("model folder has no config.json")

    sockets = run_dir / ("s" * 100 if fault == "too deep a folder" else "s")
    adapter = Refusing(ProcessLedger(run_dir / "ledger"), FAKE_ENGINE_PROGRAM)
    with pytest.raises(ConfigurationError):
        await adapter.start(fake_spec(sockets))
    assert [path.name for path in sockets.iterdir()] == ["logs"]
