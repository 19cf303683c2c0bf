"""Makes streams where they are missing."""

from __future__ import annotations

from typing import Final

import nats.js.errors
from nats.js import api

from standby.bus.connection import Bus

# The position that a stored message got, on every message that a stream repeats.
SEQUENCE_HEADER: Final = "Nats-Sequence"


async def ensure_stream(bus: Bus, wanted: api.StreamConfig) -> bool:
    """Make the stream unless it exists; return whether it was made. Raises BusUnavailable."""
    assert wanted.name is not None
    async with bus.asking(f"open stream {wanted.name}"):
        try:
            await bus.jetstream.stream_info(wanted.name)
            return False
        except nats.js.errors.NotFoundError:
            await bus.jetstream.add_stream(wanted)
            return True
