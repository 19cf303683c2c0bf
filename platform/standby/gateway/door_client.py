"""The doors as a gateway sees them: pools of connections, what a request to a door is, how an attempt can end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

from standby.wire.headers import EPOCH, INSTANCE, PREFIX, REQUEST_ID, REWRITTEN, TOKEN
from standby.wire.pool import CONNECT_LIMIT_S, IDLE_LIMIT, ConnectionPool

# A tenant's credentials are the gateway's business: no engine ever sees them.
NEVER_FORWARDED: Final = REWRITTEN | {b"authorization", b"cookie", b"x-api-key", REQUEST_ID}
# Larger bodies are not copied behind their head, but written after it.
COPY_LIMIT: Final = 64 * 1024
# Longer than any path of a data route without a query.
_LONGEST_REMEMBERED: Final = 256


class RelayRequest(NamedTuple):
    """One attempt at one instance: ``door`` is (host, port), ``path`` includes the query, header names are lower case.

    ``declinable``: an engine's 503 ends the attempt (DECLINED) and is not passed on, so that another one may be asked.
    """

    door: tuple[str, int]
    instance: str
    epoch: int
    token: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes
    request_id: str
    method: str = "POST"
    declinable: bool = False

    def head(self) -> bytes:
        """Return the request's head; hop-by-hop headers, credentials and foreign x-standby-* headers are left out."""
        _, instance, epoch, token, path, headers, body, request_id, method, _ = self
        lines = [
            b"%b: %b\r\n" % (name, value)
            for name, value in headers
            if name not in NEVER_FORWARDED and not name.startswith(PREFIX)
        ]
        begin = _remembered if len(path) <= _LONGEST_REMEMBERED else _beginning
        return b"%b%b: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            begin(method, path, token, instance, epoch),
            REQUEST_ID,
            request_id.encode(),
            b"".join(lines),
            len(body),
        )


def _beginning(method: str, path: str, token: str, instance: str, epoch: int) -> bytes:
    """Return the lines of a head that are the same for all requests to an instance by one path."""
    return b"%b %b HTTP/1.1\r\nhost: door\r\n%b: %b\r\n%b: %b\r\n%b: %d\r\n" % (
        method.encode(),
        path.encode(),
        TOKEN,
        token.encode(),
        INSTANCE,
        instance.encode(),
        EPOCH,
        epoch,
    )


_remembered: Final = lru_cache(maxsize=1024)(_beginning)


class OutcomeKind(Enum):
    """How an attempt ended."""

    DONE = "done"
    REFUSED = "refused"
    CONNECT_FAILED = "connect-failed"
    DECLINED = "declined"  # the engine said 503; only of a request that is ``declinable``
    ENGINE_FAILED = "engine-failed"  # before the first byte
    BROKEN_MID_STREAM = "broken-mid-stream"
    CLIENT_GONE = "client-gone"


class RelayOutcome(NamedTuple):
    """How an attempt ended; ``first_byte_at`` in monotonic seconds, None: there was none.

    ``reason`` is the refusal, the engine fault or the error in words; ``saw`` says whether the engine may have seen the
    request, ``read`` whether it certainly had read all of it; ``bytes`` counts body bytes towards the client; ``status`` is 0
    when there was no answer. ``fault`` is what the door said of the engine (``standby.wire.headers.EngineFault``), empty
    where the door itself was lost or said nothing; ``gone``: the engine is no more, and had that many requests in flight.
    """

    kind: OutcomeKind
    status: int = 0
    bytes: int = 0
    first_byte_at: float | None = None
    reason: str = ""
    saw: bool = False
    fault: str = ""
    gone: int = 0
    read: bool = False


class DoorPools:
    """Pools of keep-alive connections, one for each door. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        *,
        idle_limit: int = IDLE_LIMIT,
        connect_limit_s: float = CONNECT_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._idle_limit = idle_limit
        self._connect_limit_s = connect_limit_s
        self._pools: dict[tuple[str, int], ConnectionPool] = {}

    @cached_property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all this runs in, asked for once: up to Python 3.11 each question is a system call."""
        return asyncio.get_running_loop()

    def of(self, door: tuple[str, int]) -> ConnectionPool:
        """Return the pool of a door, made at its first use."""
        pool = self._pools.get(door)
        if pool is None:
            pool = ConnectionPool(door, reuse_chunked=True, idle_limit=self._idle_limit, connect_limit_s=self._connect_limit_s)
            self._pools[door] = pool
        return pool

    async def close(self) -> None:
        """Close every idle connection; those in use are closed when their exchange ends."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
