"""Uvicorn's HTTP protocol with one write for an answer's head and its first body bytes.

ASGI sends them in two messages, and uvicorn writes each at once: two system calls and two packets for every plain answer,
about a tenth of a request's CPU. The head is held for the rest of the present callback; a body in the same callback goes
with it, and a head that stays alone goes out on the loop's next turn.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 "


class _CorkedTransport:
    """A transport that holds an answer's head; everything else passes through, in order."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held = b""

    def write(self, data: bytes) -> None:
        """Write, or hold ``data`` when it is a head."""
        if self._held:
            data = self._held + data
            self._held = b""
        elif data.startswith(_HEAD):
            self._held = data
            self._loop.call_soon(self._flush)
            return
        self._transport.write(data)

    def close(self) -> None:
        """Close after everything written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data, self._held = self._held, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class CorkedHttpProtocol(HttpToolsProtocol):
    """For ``uvicorn.Config(http=…)``."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:  # type: ignore[override] # as uvicorn narrows it
        """Put the cork between uvicorn and the socket."""
        corked = _CorkedTransport(cast("asyncio.Transport", transport), self.loop)
        super().connection_made(cast("asyncio.Transport", corked))
