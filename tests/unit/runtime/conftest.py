"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from standby.runtime.engines.fake import FakeEngine
from standby.runtime.process_ledger import ProcessLedger
from support.fake_engine_spec import FAKE_ENGINE_PROGRAM, short_dir


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A folder whose path is short enough for unix sockets."""
    with short_dir() as folder:
        yield folder


@pytest.fixture
def ledger(run_dir: Path) -> Iterator[ProcessLedger]:
    """A ledger in which nothing may be left alive at the end."""
    ledger = ProcessLedger(run_dir / "ledger")
    yield ledger
    assert ledger.survivors() == ()


@pytest.fixture
def engine(ledger: ProcessLedger) -> FakeEngine:
    """The fake engine's adapter."""
    return FakeEngine(ledger, FAKE_ENGINE_PROGRAM)
