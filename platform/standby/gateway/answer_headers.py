"""The headers that a gateway adds to an answer: where it came from, why there, and how long it took to begin."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from standby.domain.instance import Activation, Phase, Rung
from standby.gateway.errors import Headers
from standby.gateway.grants import Grant
from standby.sagemaker.runtime.contract import Arrival, Job
from standby.wire.headers import ACTIVATION, INSTANCE, PHASES_MS, REQUEST_ID, ROUTE, RUNG, TRACE_ID, WAIT_MS

_RUNGS: Final = {rung: rung.label.encode() for rung in Rung}
_LONGEST_REASON: Final = 300


def answer_headers(job: Job, arrival: Arrival, grant: Grant, waited_s: float, attempt: int, *, traced: bool = False) -> Headers:
    """Return the headers of the answer to attempt number ``attempt`` (1 is the first).

    ``traced``: somebody may look for the trace: it is kept, or the caller's.
    """
    headers = [
        (REQUEST_ID, arrival.echoed),
        (INSTANCE, grant.instance.encode()),
        (RUNG, _RUNGS[grant.rung]),
        (WAIT_MS, b"%.1f" % (waited_s * 1000)),
        (ROUTE, _one_line(grant.reason if attempt == 1 else f"attempt {attempt}: {grant.reason}")),
        *job.extra,
    ]
    if job.aws:
        headers.append((b"x-amzn-invoked-production-variant", grant.variant.encode()))
        if grant.new_session is not None:
            headers.append((b"x-amzn-sagemaker-new-session-id", grant.new_session.encode()))
        if grant.closed_session is not None:
            headers.append((b"x-amzn-sagemaker-closed-session-id", grant.closed_session.encode()))
    if traced and arrival.trace is not None:
        headers.append((TRACE_ID, b"%032x" % arrival.trace.trace))
    if grant.activation is not None:
        headers.append((ACTIVATION, grant.activation.id.encode()))
        headers.append((PHASES_MS, phases_header(grant.activation, waited_s)))
    return headers


def phases_header(activation: Activation, waited_s: float) -> bytes:
    """Return ``queued=1.2,placed=3.4,…`` in milliseconds.

    The node's phases are durations by its own clock; what remains of the wait is the time on the bus and in the
    controller, called ``placed``, so that no two machines' clocks are compared.
    """
    phases = {phase: activation.phases_ms[phase] for phase in Phase if phase in activation.phases_ms}
    placed = max(0.0, waited_s * 1000 - sum(phases.values()))
    ordered = {Phase.PLACED: placed, **phases}
    return ",".join(f"{phase.value}={ms:.1f}" for phase, ms in ordered.items()).encode()


@lru_cache(maxsize=1024)
def _one_line(reason: str) -> bytes:
    # A reason may hold what a caller has named, e.g. an adapter: no line of the head is to be made of it.
    if not (reason.isascii() and reason.isprintable()):
        reason = ascii(reason)
    return reason[:_LONGEST_REASON].encode()
