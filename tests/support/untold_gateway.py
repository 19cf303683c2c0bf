"""A gateway that tells nothing of its requests: no metric, no span, no line in the log; for benchmarks.

``python untold_gateway.py`` takes the environment of ``standby gateway``. What is switched off here cannot be in a real
one: the cost of telling is compared with this. What bills (metering) and what ``standby requests`` shows stays on.
"""

from __future__ import annotations

from typing import Any

from standby.gateway.accounts import Account
from standby.gateway.main import serve
from standby.gateway.request_ends import RequestEnds


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


def tell_nothing() -> None:
    """Switch off all that this process tells of a request."""
    for owner, names in ((Account, ("ended", "served", "first_byte", "streamed")), (RequestEnds, ("__call__",))):
        for name in names:
            assert hasattr(owner, name), f"{owner.__name__}.{name} has gone: what it did is done elsewhere now"
            setattr(owner, name, nothing)


if __name__ == "__main__":
    tell_nothing()
    serve()
