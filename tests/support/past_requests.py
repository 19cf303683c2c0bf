"""Traces of requests, made of what a gateway notes of them."""

from __future__ import annotations

from typing import Any, cast

from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.priority import Priority
from standby.domain.traffic import Tier
from standby.gateway.desk import Desk
from standby.gateway.grants import Grant
from standby.gateway.metering import Usage
from standby.gateway.traces import AttemptTrace, RequestTrace, attempt_of
from standby.sagemaker.runtime.contract import Arrival

# No test of a trace asks whose desk it was.
NO_DESK = cast("Desk", None)


def a_grant(number: int = 1, **changes: Any) -> Grant:
    """Leave to send to the instance of that number."""
    fields: dict[str, Any] = {
        "instance": f"i-{number}",
        "address": ("127.0.0.1", 7000 + number),
        "epoch": 3,
        "rung": Rung.READY,
        "activation": None,
        "desk": NO_DESK,
        "variant": "AllTraffic",
        "reason": f"least outstanding: {number} of 4 slots",
        "engine": EngineKind.VLLM,
    }
    return Grant(**(fields | changes))


def an_attempt(number: int = 1, **changes: Any) -> AttemptTrace:
    """An attempt that was answered, or what the changes of its grant and outcome say."""
    name, outcome = changes.pop("id", f"g-{number}"), changes.pop("outcome", "answered 200")
    return attempt_of(name, a_grant(number, **changes), outcome, 0.0125)


def a_trace(
    name: str = "g-1",
    *,
    tenant: str = "111111111111",
    endpoint: str = "chat",
    at: float = 1000.0,
    echoed: bytes = b"",
    attempts: tuple[AttemptTrace, ...] = (),
    usage: Usage | None = None,
    **changes: Any,
) -> RequestTrace:
    """A request that was answered."""
    fields: dict[str, Any] = {
        "arrival": Arrival(5.0, at, name, echoed or name.encode()),
        "tenant": tenant,
        "endpoint": endpoint,
        "variant": "AllTraffic",
        "tier": Tier.STANDARD,
        "priority": Priority.HIGH,
        "waited_s": 0.002,
        "queue_reason": "",
        "attempts": attempts or (an_attempt(id=name),),
        "ending": "ok",
        "words": "answered 200",
        "lasted_s": 1.5,
        "first_byte_s": 0.25,
        "usage": usage or Usage(12, 34, estimated=False),
    }
    return RequestTrace(**(fields | changes))
