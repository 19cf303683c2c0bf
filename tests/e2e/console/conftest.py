"""Chromium, started once for each module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from support.console_browser import ABSENT, CHROMIUM, chromium


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    """A real browser; without one the console's tests are skipped."""
    if CHROMIUM is None:
        pytest.skip(ABSENT)
    async with chromium() as found:
        yield found
