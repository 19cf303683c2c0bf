"""Ways in which an engine of the failover rig fails a request, and what is read off an answer."""

from __future__ import annotations

import json

from support.failover_rig import BOOM, FailoverRig, Replica, answers, token_event
from support.upstream import Call


async def never(_replica: Replica, _call: Call) -> None:
    """Nobody asks it."""
    raise AssertionError


async def dies(replica: Replica, call: Call) -> None:
    """Ends before it has answered anything."""
    replica.die()
    await call.gone.wait()


async def dies_after_headers(replica: Replica, call: Call) -> None:
    await call.begin_stream()
    replica.die()
    await call.gone.wait()


async def dies_after_ten(replica: Replica, call: Call) -> None:
    await ten_tokens(replica, call)
    replica.die()
    await call.gone.wait()


async def stalls(replica: Replica, call: Call) -> None:
    """Says nothing until the door has lost its patience."""
    await replica.outlast(call)


async def stalls_after_headers(replica: Replica, call: Call) -> None:
    await call.begin_stream()
    await replica.outlast(call)


async def stalls_after_ten(replica: Replica, call: Call) -> None:
    await ten_tokens(replica, call)
    await replica.outlast(call)


async def ten_tokens(replica: Replica, call: Call) -> None:
    await call.begin_stream()
    for _ in range(10):
        await call.chunk(token_event(replica.name))


async def resets(_replica: Replica, call: Call) -> None:
    """Breaks one connection and lives on."""
    call.reset()


async def declines(_replica: Replica, call: Call) -> None:
    await call.json(503, b'{"error": "busy"}')


async def fails(_replica: Replica, call: Call) -> None:
    await call.json(500, b'{"error": "bug"}')


async def dies_of_boom(replica: Replica, call: Call) -> None:
    if BOOM in call.body:
        await dies(replica, call)
    else:
        await answers(replica, call)


def texts(body: bytes) -> set[str]:
    """Whose tokens are in a stream of completions."""
    found = set()
    for line in body.splitlines():
        if line.startswith(b"data: {"):
            for choice in json.loads(line[6:]).get("choices") or ():
                found.add(choice["text"])
    return found - {"!"}


def text_of(body: bytes) -> str:
    """Whose text a whole completion has."""
    return str(json.loads(body)["choices"][0]["text"])


def went(rig: FailoverRig) -> list[str]:
    """Where the last request went, in order."""
    return [attempt.instance for attempt in rig.last.attempts]
