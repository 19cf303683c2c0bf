"""Hands out loopback TCP ports to engines that know no unix sockets."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Final

from standby.domain.errors import EngineStartFailed

LOOPBACK: Final = "127.0.0.1"
_TRIES: Final = 64


class LoopbackPorts:
    """Ports of this process's engines, each given once until it is given back.

    The kernel names a free port and forgets it at once: of two engines that start together both could get the same
    one. Programs outside of this process may still take it before the engine binds it; the engine then ends with
    words that ``names_taken_port`` knows, and its next start gets another one.
    """

    def __init__(self) -> None:
        self._taken: set[int] = set()

    def take(self) -> int:
        """Return a port that nobody listens at and no engine of ours was given. Raises EngineStartFailed."""
        for _ in range(_TRIES):
            with closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
                probe.bind((LOOPBACK, 0))
                port = int(probe.getsockname()[1])
            if port not in self._taken:
                self._taken.add(port)
                return port
        raise EngineStartFailed(
            f"no free loopback port in {_TRIES} tries; {len(self._taken)} are in use by engines",
            remedy="run fewer engines on this node",
        )

    def give_back(self, port: int) -> None:
        """Let the port be given to another engine."""
        self._taken.discard(port)


def names_taken_port(text: str) -> bool:
    """Return whether an engine's log says that its port was somebody else's."""
    lowered = text.lower()
    return "address already in use" in lowered or "eaddrinuse" in lowered
