"""Fixtures of the zygote's tests: nothing of them may be left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from standby.runtime.children import become_subreaper
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import short_dir
from support.waiting import until
from support.zygote_rig import zombies


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder of the test."""
    with short_dir() as found:
        yield found


@pytest.fixture
async def ledger(folder: Path) -> AsyncIterator[ProcessLedger]:
    """A ledger in which nothing may be left alive, in a process that may have no zombie."""
    become_subreaper()
    before = set(zombies())
    found = ProcessLedger(folder / "ledger")
    yield found
    assert found.survivors() == ()
    await until(lambda: set(zombies()) <= before, "no zombie is left")
