"""How the children of ``standby up`` are told to end, and what is said of those that end by themselves."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

import pytest

from standby.cli.supervisor import Child, in_words, restart_pause
from standby.domain.errors import ConfigurationError


@pytest.mark.decision
def test_pauses_grow_to_a_limit() -> None:
    assert [restart_pause(failures) for failures in (0, 1, 2, 3, 6, 100)] == [1, 1, 2, 4, 30, 30]


@pytest.mark.decision
def test_ends_in_words() -> None:
    assert in_words(3) == "ended with exit code 3"
    assert in_words(-9) == "was ended by SIGKILL"


async def test_a_child_that_ends_is_told_with_its_own_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Only with what this start wrote: the log is appended to from start to start."""
    log = tmp_path / "c.log"
    log.write_text("of an earlier start\n")
    child = Child("gateway", ["--no-such-option"], dict(os.environ), log)
    await child.start()
    try:
        child.require_alive()
        async with asyncio.timeout(60):
            while not child.ends:
                await asyncio.sleep(0.02)
        with pytest.raises(ConfigurationError) as told:
            child.require_alive()
    finally:
        await child.stop()

    assert told.value.message.startswith("gateway ended with exit code 2 while starting; its log ends:\n")
    assert "--no-such-option" in told.value.message
    assert "earlier" not in told.value.message
    assert "gateway ended with exit code 2; again in 1 s" in caplog.text


async def test_a_restart_that_was_asked_for_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process ends with 0 and the next one starts at once."""
    script = "import signal; signal.signal(signal.SIGTERM, lambda *_: exit(0)); print('up', flush=True); signal.pause()"
    child = Child("node", [], dict(os.environ), tmp_path / "n.log", program=(sys.executable, "-c", script))
    await child.start()
    try:
        for ups in (1, 2):
            async with asyncio.timeout(60):
                while child.log.read_text().count("up") < ups:
                    await asyncio.sleep(0.02)
            if ups == 1:
                child.restart()
    finally:
        await child.stop()

    assert child.restarts == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_hurry_sends_a_second_signal_to_who_takes_his_time(tmp_path: Path) -> None:
    """What Ctrl-C twice does: the process is not killed, it is told again."""
    script = (
        "import signal, sys; told = []\n"
        "def heard(*_):\n    told.append(1); print('told', flush=True)\n    len(told) > 1 and sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, heard); print('up', flush=True)\nwhile True: signal.pause()"
    )
    program = (sys.executable, "-c", script)
    child = Child("gateway", [], dict(os.environ), tmp_path / "g.log", grace_s=600.0, program=program)
    await child.start()
    async with asyncio.timeout(60):
        while "up" not in child.log.read_text():
            await asyncio.sleep(0.02)
        stopping = asyncio.create_task(child.stop())
        while "told" not in child.log.read_text():
            await asyncio.sleep(0.02)
        assert not stopping.done()
        child.hurry.set()
        assert await stopping == 0
    assert child.log.read_text().count("told") == 2
