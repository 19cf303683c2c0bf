"""Whatever the engine's chunking and however its bytes are cut on the way, the client gets exactly the engine's body."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from standby.gateway.relay import OutcomeKind
from support.door_rig import door_rig
from support.upstream import Call

chunks = st.lists(st.binary(min_size=1, max_size=400), min_size=0, max_size=30)
cuts = st.lists(st.integers(min_value=1, max_value=300), min_size=1, max_size=12)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chunks=chunks, cuts=cuts)
def test_stream_is_the_same_behind_both_hops(chunks: list[bytes], cuts: list[int]) -> None:
    assert uvloop.run(_through(chunks, cuts)) == b"".join(chunks)


async def _through(chunks: list[bytes], cuts: list[int]) -> bytes:
    wire = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    wire += b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    received = bytearray()

    async def serve(call: Call) -> None:
        position = turn = 0
        while position < len(wire):
            size = cuts[turn % len(cuts)]
            await call.write(wire[position : position + size])
            await asyncio.sleep(0)
            position, turn = position + size, turn + 1

    async def send(message: MutableMapping[str, Any]) -> None:
        received.extend(message.get("body", b""))
        # Sometimes a client is slow: then the rest waits its turn.
        if len(received) % 3 == 0:
            await asyncio.sleep(0)

    with tempfile.TemporaryDirectory(prefix="door-") as folder:
        async with door_rig(Path(folder) / "engine.sock") as rig:
            rig.engine.handler = serve
            outcome = await rig.client.relay(rig.request(), send)
    assert outcome.kind is OutcomeKind.DONE
    assert outcome.bytes == len(received)
    return bytes(received)
