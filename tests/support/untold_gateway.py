"""A gateway that tells nothing of its requests while it is told so: no metric, no span, no line in the log; for benchmarks.

``python untold_gateway.py`` takes the environment of ``standby gateway``; SIGUSR1 switches off what cannot be off in a real
one, SIGUSR2 on again. One process is both sides of the comparison: two processes of the same program differ by several
percent in what a request costs them. What bills (metering) and what ``standby requests`` shows stays on.
"""

from __future__ import annotations

import signal
from typing import Any, Final

from standby.gateway.accounts import Account
from standby.gateway.main import serve
from standby.gateway.request_ends import RequestEnds
from standby.telemetry.tracing import Tracing

# Without a head a request has no trace, here and at the door.
TELLS: Final[tuple[tuple[type, str], ...]] = (
    (Account, "ended"),
    (Account, "served"),
    (Account, "first_byte"),
    (Account, "streamed"),
    (RequestEnds, "__call__"),
    (Tracing, "head"),
    (Tracing, "begin"),
)


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def switch() -> None:
    """Listen for the two signals."""
    own = {(owner, name): getattr(owner, name) for owner, name in TELLS}

    def tell(number: int, _frame: object) -> None:
        for (owner, name), method in own.items():
            setattr(owner, name, nothing if number == signal.SIGUSR1 else method)

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, tell)


if __name__ == "__main__":
    switch()
    serve()
