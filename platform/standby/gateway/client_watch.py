"""Notices that a client has left, without a task that waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from standby.gateway.inline import Inline
from standby.gateway.public_cycle import PublicCycle


class ClientWatch:
    """Calls ``on_gone`` once when ASGI's ``receive`` says ``http.disconnect``; begins at once, ends at ``stop``.

    A ``receive`` of our own connections is asked to call back itself, which is cheaper.

    The request's body must have been read. ``on_gone`` may be called from the constructor, when the client has already
    left. An error of ``receive`` counts as a client that has left.
    """

    __slots__ = ("_cycle", "_on_gone", "_receive", "_waiting")

    def __init__(self, receive: Callable[[], Awaitable[MutableMapping[str, Any]]], on_gone: Callable[[], object]) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._waiting: Inline | None = None
        owner = getattr(receive, "__self__", None)
        self._cycle = owner if isinstance(owner, PublicCycle) and owner.on_gone is None else None
        if self._cycle is None:
            self._next()
        else:
            self._cycle.watch(on_gone)

    def stop(self) -> None:
        """Watch no longer; the second call does nothing."""
        if self._cycle is not None:
            self._cycle.on_gone = None
            self._cycle = None
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.cancel()

    def _next(self) -> None:
        while True:
            finished, message, self._waiting = Inline.run(self._receive(), self._received)
            if not finished:
                return
            if message["type"] == "http.disconnect":
                self._on_gone()
                return

    def _received(self, message: MutableMapping[str, Any] | None, error: Exception | None) -> None:
        self._waiting = None
        if error is not None or message is None or message["type"] == "http.disconnect":
            self._on_gone()
        else:
            self._next()
