"""A running control API for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.control_api import Control, control_api


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Control]:
    """A control API for one test."""
    async with control_api(tmp_path) as running:
        yield running
