"""A server, and a bus connected to it, for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standby.bus.connection import Bus
from support.nats_server import NatsServer, nats_server


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with nats_server(tmp_path) as running:
        yield running


@pytest.fixture
async def bus(server: NatsServer) -> AsyncIterator[Bus]:
    async with server.bus() as connected:
        yield connected
