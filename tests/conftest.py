"""What holds for every test."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest

_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(autouse=True, scope="module")
def _no_subreaper_afterwards() -> Iterator[None]:
    """A zygote makes the tests' process the parent of all orphans below it; other modules expect process 1 to bury theirs."""
    yield
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
