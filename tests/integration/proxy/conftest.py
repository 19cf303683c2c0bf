"""Every test of the proxy runs on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from support.door_rig import Rig, door_rig


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
def socket_path() -> Iterator[Path]:
    # Unix socket paths are short (108 bytes), pytest's own temporary folders are not.
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        yield Path(folder) / "engine.sock"


@pytest_asyncio.fixture
async def rig(socket_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with door_rig(socket_path, getattr(request, "param", None)) as made:
        yield made
