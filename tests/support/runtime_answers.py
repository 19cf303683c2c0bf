"""What a model answers in the tests of the runtime, and how often a client has asked."""

from __future__ import annotations

import asyncio
import json

from botocore.exceptions import ClientError

from support.upstream import Call

ANSWER = b'{"choices": [{"message": {"content": "Paris"}}]}'
MIB = 2**20


async def good(call: Call) -> None:
    await call.json(200, ANSWER)


async def streaming(call: Call) -> None:
    await call.begin_stream()
    for number in range(3):
        await call.chunk(b"data: %d\n\n" % number)
    await call.chunk(b"data: [DONE]\n\n")
    await call.end_stream()


async def words(call: Call) -> None:
    """Answer a completion: as a stream if it was asked for one."""
    if not json.loads(call.body).get("stream"):
        await call.json(200, b'{"choices": [{"text": " upon", "finish_reason": "stop"}]}')
        return
    await call.begin_stream()
    for text, reason in ((" upon", None), (" a time", None), ("", "stop")):
        event = {"choices": [{"text": text, "finish_reason": reason}]}
        await call.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
    await call.chunk(b"data: [DONE]\n\n")
    await call.end_stream()


async def dies(call: Call) -> None:
    """Stream three events, then go."""
    await call.begin_stream()
    for number in range(3):
        await call.chunk(b"data: %d\n\n" % number)
        await asyncio.sleep(0.02)
    call.close()


def attempts(error: ClientError) -> int:
    return int(error.response["ResponseMetadata"]["RetryAttempts"]) + 1
