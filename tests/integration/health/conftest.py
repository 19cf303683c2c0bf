"""These tests run on uvloop, as the node agent does.

asyncio's own loop takes a unix socket whose queue is full for connected (it waits for a connection that was never begun).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}
