"""Socket options that every connection between gateway, door and engine carries."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from pathlib import Path

KEEPALIVE_IDLE_S = 15
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_PROBES = 3
USER_TIMEOUT_MS = 30_000


def tune(transport: asyncio.BaseTransport) -> None:
    """Set TCP_NODELAY and keep-alive probes on a TCP connection; leave a unix socket as it is.

    Without TCP_NODELAY the first streamed byte waits for the peer's delayed acknowledgement (about 40 ms). The probes
    notice a machine that vanished without a FIN, so that its requests do not hold slots for ever.
    """
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS),
    ):
        # Not every platform knows each of them, and none is needed for correctness.
        with contextlib.suppress(AttributeError, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def nobody_listens(address: Path | tuple[str, int]) -> bool:
    """Return whether a unix socket accepts nobody; of other addresses nothing is known at once, and the answer is False.

    Connecting to a unix socket never waits: it is done, refused, or impossible for now (a full queue: somebody is there).
    """
    if not isinstance(address, Path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(address))
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except OSError:
            return False
        return False
