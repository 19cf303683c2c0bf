"""Opening a connection to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from standby.wire.connection import WireConnection
from standby.wire.pool import ConnectionPool

_QUEUE_FULL_LIMIT_S: Final = 5.0
_QUEUE_FULL_PAUSE_S: Final = 0.002
_QUEUE_FULL_LONGEST_PAUSE_S: Final = 0.1


async def dial(pool: ConnectionPool, wanted: Callable[[], bool], clock: Callable[[], float]) -> WireConnection:
    """Connect, again while the engine's queue of connections is full: a unix socket says so at once, and that is busy.

    ``wanted`` says whether anybody still waits for it; ``clock`` is monotonic seconds. Raises OSError.
    """
    deadline, pause = clock() + _QUEUE_FULL_LIMIT_S, _QUEUE_FULL_PAUSE_S
    while True:
        try:
            return await pool.connect()
        except BlockingIOError:
            if not wanted() or clock() >= deadline:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, _QUEUE_FULL_LONGEST_PAUSE_S)
