"""One deployment and one Prometheus for all alerts: starting both for each of them would take minutes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from support.watched import Watched, watched

# Little enough that a single engine can fill it.
ENVIRONMENT = {"STANDBY_MEMORY_BYTES": str(640 * 2**20)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """A running deployment, and who watches it."""
    async with watched(tmp_path_factory.mktemp("watched"), ENVIRONMENT) as running:
        yield running
