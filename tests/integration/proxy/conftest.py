"""Every test of the proxy runs on uvloop, as gateways and nodes do, and on asyncio's own loop.

On that one a test of many cases runs with its first and its last.
"""

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    cases: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if item.path.parent == Path(__file__).parent and isinstance(item, pytest.Function) and "[asyncio" in item.name:
            cases.setdefault((item.path, item.originalname), []).append(item)
    left_out = [item for several in cases.values() for item in several[1:-1]]
    config.hook.pytest_deselected(items=left_out)
    dropped = set(left_out)
    items[:] = [item for item in items if item not in dropped]


@pytest.fixture
def socket_path() -> Iterator[Path]:
    # Unix socket paths are short (108 bytes), pytest's own temporary folders are not.
    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        yield Path(folder) / "engine.sock"


@pytest_asyncio.fixture
async def rig(socket_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    async with door_rig(socket_path, getattr(request, "param", None)) as made:
        yield made
