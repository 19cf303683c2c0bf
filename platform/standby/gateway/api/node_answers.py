"""What one node answers to an order of the control API."""

from __future__ import annotations

from typing import Final

from standby.domain.errors import BusUnavailable, Unavailable
from standby.gateway.api.context import Call

ANSWER_LIMIT_S: Final = 5.0


async def answer_of(call: Call, node: str, subject: str, order: bytes, *, again: str) -> bytes:
    """Return what a node answers; ``again`` tells how the order is repeated.

    Raises Unavailable for its silence, BusUnavailable, and what the node itself says.
    """
    try:
        return await call.context.bus.request(subject, order, ANSWER_LIMIT_S)
    except BusUnavailable:
        raise
    except Unavailable as error:
        raise Unavailable(
            f"node {node!r} does not answer (limit {ANSWER_LIMIT_S:g} s)",
            remedy=f"see `standby nodes`; {again}",
            retry_after_s=1.0,
        ) from error
