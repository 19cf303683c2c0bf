"""What holds for every test."""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

_PR_SET_CHILD_SUBREAPER = 36
_HERE = Path(__file__).parent
_DRILLS = (_HERE / "e2e" / "faults", _HERE / "e2e" / "alerts", _HERE / "integration" / "health")

# A shell starts what it puts into the background with this signal ignored, and so would every command that tests start and
# interrupt be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent in _DRILLS:
            item.add_marker(pytest.mark.drill)


@pytest.fixture(autouse=True, scope="module")
def _no_subreaper_afterwards() -> Iterator[None]:
    """A zygote makes the tests' process the parent of all orphans below it; other modules expect process 1 to bury theirs."""
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
