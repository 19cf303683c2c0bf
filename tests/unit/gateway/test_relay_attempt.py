"""One attempt at a door, where what happens to it meets in one turn of the loop."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

from standby.gateway.door_client import DoorPools, RelayRequest
from standby.gateway.relay_attempt import Attempt
from standby.wire.connection import WireConnection


async def test_a_kept_connection_that_is_lost_as_the_request_is_cancelled_is_no_fault() -> None:
    """The task is not told of its cancellation before the next turn; until then the attempt is still the sink."""

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is to be told")

    pools, door = DoorPools(), ("127.0.0.1", 1)
    connection = WireConnection(reuse_chunked=True)
    connection.connection_made(
        Mock(spec=asyncio.Transport, **{"is_closing.return_value": False, "get_extra_info.return_value": None})
    )
    connection._keep_alive = True
    connection.transport.get_write_buffer_size.return_value = 0  # type: ignore[attr-defined] # a mock
    pools.of(door).give_back(connection)
    attempt = Attempt(pools, RelayRequest(door, "i1", 1, "t", "/", [], b"{}", "r1"), send, ())
    turn = attempt.begin()
    assert turn is not None
    turn.cancel()
    connection.connection_lost(None)
    assert not attempt.cut_off("the gateway ended the request")
    attempt.close()
