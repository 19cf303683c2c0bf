"""Keep-alive connections to one address, newest first."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final

from standby.wire.connection import WireConnection

Address = Path | tuple[str, int]

IDLE_LIMIT: Final = 256
CONNECT_LIMIT_S: Final = 5.0
# A kept connection that is lost later may have carried the request to somebody who was at work on it.
STALE_WITHIN_S: Final = 1.0


class ConnectionPool:
    """Idle connections to one unix socket (a path) or one (host, port).

    An idle connection that its peer closed is dropped when the loop learns of it; one that was closed in the same
    instant shows itself as ``reused and not heard`` when the exchange is lost, and the caller may then retry once.
    """

    def __init__(
        self,
        address: Address,
        *,
        reuse_chunked: bool,
        idle_limit: int = IDLE_LIMIT,
        connect_limit_s: float = CONNECT_LIMIT_S,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls``: speak TLS to a (host, port), and expect a certificate for that host; else plain."""
        self.address = address
        self._tls = tls
        self._reuse_chunked = reuse_chunked
        self._idle_limit = idle_limit
        self._connect_limit_s = connect_limit_s
        self._idle: list[WireConnection] = []
        self._closed = False

    @property
    def idle(self) -> int:
        """How many connections wait for work."""
        return len(self._idle)

    def take(self) -> WireConnection | None:
        """Return the most recently used idle connection, or None when a new one is needed."""
        while self._idle:
            connection = self._idle.pop()
            connection.on_idle_close = None
            if not connection.transport.is_closing():
                connection.reused = True
                return connection
        return None

    async def connect(self) -> WireConnection:
        """Open a connection. Raises OSError (TimeoutError after the connect limit)."""
        loop = asyncio.get_running_loop()
        connection = WireConnection(reuse_chunked=self._reuse_chunked)
        try:
            async with asyncio.timeout(self._connect_limit_s):
                if isinstance(self.address, Path):
                    await loop.create_unix_connection(lambda: connection, str(self.address))
                else:
                    await loop.create_connection(lambda: connection, *self.address, ssl=self._tls)
        except BaseException:
            # A cancellation can meet a connection that has just been made: it must not stay open without an owner.
            connection.abort()
            raise
        return connection

    def give_back(self, connection: WireConnection) -> None:
        """Keep the connection for the next exchange, or close it when it is not fit for one."""
        if self._closed or not connection.reusable or len(self._idle) >= self._idle_limit:
            connection.abort()
            return
        # An exchange may have ended while its consumer was full; an idle connection must be read to notice its end.
        connection.resume()
        connection.on_idle_close = self._forget
        self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections; those in use are closed when they come back."""
        self._closed = True
        for connection in self._idle:
            connection.on_idle_close = None
            connection.abort()
        self._idle.clear()

    def _forget(self, connection: WireConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
