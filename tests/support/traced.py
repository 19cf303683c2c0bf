"""A gateway and a door in this process that trace to a collector."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator

from standby.gateway.request_ends import RequestEnds, RequestLog
from standby.telemetry.otlp import Exporter
from standby.telemetry.sampling import Sampler
from standby.telemetry.tracing import Tracing
from standby.telemetry.tracing_settings import traces_url
from standby.warm_pool.door_spans import DoorTraces
from support.failover_rig import FailoverRig
from support.otlp_receiver import Receiver

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"
KEPT = f"00-{TRACE}-{PARENT}-01"
LEFT_OUT = f"00-{TRACE}-{PARENT}-00"
NODE = "n1"


def tracing_to(url: str, *, ratio: float = 0.0, callers: bool = True, limit: int = 4096, limit_s: float = 30.0) -> Tracing:
    """What traces to a collector at this address, which may take ``limit_s`` for a batch."""
    exporter = Exporter(traces_url(url), {"x-collector": "yes"}, {"service.name": "test"}, limit_s=limit_s)
    return Tracing(exporter, Sampler(ratio, callers), limit=limit, every_s=0.05)


@contextlib.asynccontextmanager
async def traced(
    rig: FailoverRig,
    receiver: Receiver,
    *,
    ratio: float = 0.0,
    callers: bool = True,
    limit: int = 4096,
    limit_s: float = 30.0,
) -> AsyncIterator[RequestEnds]:
    """Let gateway and door trace; what waits at the end is sent."""
    tracing = tracing_to(receiver.url, ratio=ratio, callers=callers, limit=limit, limit_s=limit_s)
    ends = RequestEnds(tracing, RequestLog.NONE)
    rig.gateway.plane.tracing, rig.dispatcher.on_ended = tracing, ends
    rig.door.traces = DoorTraces(tracing, NODE, time.monotonic, time.time)
    try:
        yield ends
    finally:
        await ends.close(30)
