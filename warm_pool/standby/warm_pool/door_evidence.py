"""What the end of a connection to an engine says of the request that was on it. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from standby.wire.connection import Loss
from standby.wire.headers import Sight
from standby.wire.pool import Address

# Every engine's server reads at least so much at once: of a request that is no longer it has read all or nothing.
ONE_READ: Final = 4096


def sight_of(address: Address, loss: Loss, sent: int, *, heard: bool, before: Sight) -> Sight:
    """Return what the engine had seen of a request of ``sent`` bytes when its connection ended.

    ``heard``: it had answered something; ``before``: what it had seen on an earlier connection.

    A unix socket tells, also after SIGKILL: its peer's end is a reset if the peer had not accepted the connection or had
    not read all that was sent (Linux, ``unix_release_sock``), a plain end otherwise. A request that an engine at its end
    never read, waiting in its queue of connections, must neither be lost nor be taken for what has killed it. Of a request
    that takes several reads a reset says nothing: it may have killed the engine with its first bytes. TCP tells neither.
    """
    if heard:
        return Sight.ALL
    if not isinstance(address, Path):
        return max(before, Sight.PERHAPS)
    if loss is not Loss.RESET:
        return Sight.ALL
    return before if sent <= ONE_READ else max(before, Sight.PERHAPS)
