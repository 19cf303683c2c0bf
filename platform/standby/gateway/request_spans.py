"""The spans of a request, made of what is known of it once it is over. Pure but for the ids that nobody has been told.

One request is one trace: ``POST …`` from arrival to the last byte, below it ``queue`` for each wait and ``attempt`` for each
door that was asked. The door's span and the engine's hang below the attempt's; a climb is a trace of its own that the queue's
span links to, since many requests wait for one. No words of callers, engines or errors are told, only their classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Final

from standby.gateway.results import ResultKind
from standby.gateway.traces import AttemptTrace, RequestTrace
from standby.sagemaker.runtime import forms
from standby.sagemaker.runtime.routes import PREFIX
from standby.telemetry.spans import Attribute, Span, SpanEvent, SpanKind, known, new_span_id, ns
from standby.telemetry.trace_context import Context, Head, of_activation

FIRST_TOKEN: Final = "first token"  # noqa: S105 - a token of text
ASYNC: Final = "InvokeEndpointAsync"
# A wait between two attempts that is shorter than this was none.
_WAITED_S: Final = 0.001
_OPERATIONS: Final = MappingProxyType({forms.CHAT_PATH: "chat", forms.COMPLETIONS_PATH: "text_completion"})
_BY_CALLER: Final = frozenset({"ok", "engine_4xx"})
_CLIENT_ERRORS: Final = range(400, 500)


def is_error(trace: RequestTrace) -> bool:
    """Return whether a request ended by a fault that is not its caller's own: its trace is kept whatever the ratio says.

    What was refused for its own sake (4xx) is none, nor is a caller who left; being turned away for want of room is.
    """
    if trace.ending in _BY_CALLER or trace.ending == "client_gone":
        return False
    return trace.status not in _CLIENT_ERRORS or trace.status == 429


def spans_of(trace: RequestTrace, head: Head, draw: Callable[[], int] = new_span_id) -> list[Span]:
    """Return the request's span and those below it; ``draw`` gives ids for the spans that have none yet."""
    top = _request(trace, head, draw())
    return [top, *_waits(trace, top, draw), *(_attempt(trace, top, number, draw) for number in range(len(trace.attempts)))]


# ---- the request -----------------------------------------------------------------------------------------------------


def _request(trace: RequestTrace, head: Head, own: int) -> Span:
    route = _route(head.path)
    began = ns(trace.arrival.arrived_at)
    first = trace.first_token_s
    return Span(
        name=f"POST {route}" if route else ASYNC,
        kind=SpanKind.SERVER if route else SpanKind.CONSUMER,
        trace=head.trace,
        id=own,
        parent=head.parent,
        began_ns=began,
        ended_ns=began + ns(trace.lasted_s),
        attributes={**_http(trace, route), **_generated(trace), **_ours(trace)},
        error=_error(trace),
        events=() if first is None else (SpanEvent(FIRST_TOKEN, began + ns(first)),),
    )


def _error(trace: RequestTrace) -> str:
    """Return the class of the error, by HTTP's rule for servers: a status of 4xx is the caller's own."""
    if trace.ending in _BY_CALLER or trace.status in _CLIENT_ERRORS:
        return ""
    return trace.ending


def _http(trace: RequestTrace, route: str) -> dict[str, Attribute]:
    if not route:
        return {}
    return known(
        {
            "http.request.method": "POST",
            "http.route": route,
            "url.scheme": "http",
            "http.response.status_code": trace.status or None,
        }
    )


def _generated(trace: RequestTrace) -> dict[str, Attribute]:
    usage, first = trace.usage, trace.first_token_s
    return known(
        {
            "gen_ai.operation.name": _OPERATIONS.get(trace.path),
            "gen_ai.provider.name": "standby",
            "gen_ai.request.model": trace.served_name,
            "gen_ai.request.stream": trace.streamed,
            "gen_ai.response.time_to_first_chunk": None if first is None else round(first, 6),
            "gen_ai.usage.input_tokens": None if usage is None else usage.prompt,
            "gen_ai.usage.output_tokens": None if usage is None else usage.completion,
            "standby.usage.estimated": None if usage is None else usage.estimated,
        }
    )


def _ours(trace: RequestTrace) -> dict[str, Attribute]:
    return known(
        {
            "standby.request_id": trace.id,
            "standby.tenant": trace.tenant,
            "standby.endpoint": trace.endpoint,
            "standby.variant": trace.variant,
            "standby.tier": trace.tier.value,
            "standby.priority": trace.priority.value,
            "standby.outcome": trace.ending,
            "standby.waited_ms": round(trace.waited_s * 1000, 3),
            "standby.attempts": len(trace.attempts),
            "standby.rung": trace.attempts[-1].rung.label if trace.attempts else None,
        }
    )


def _route(path: str) -> str:
    """Return the route of a path: what names an endpoint is left out, as there are many."""
    if not path.startswith(PREFIX):
        return path
    _, slash, rest = path[len(PREFIX) :].partition("/")
    component, below, last = rest.partition("/")
    if component == "inference-components":
        rest = f"{component}{below}{{component}}/{last.partition('/')[2]}"
    return f"{PREFIX}{{endpoint}}{slash}{rest}"


# ---- below it --------------------------------------------------------------------------------------------------------


def _waits(trace: RequestTrace, top: Span, draw: Callable[[], int]) -> Iterator[Span]:
    """Yield the wait before each attempt, and the one in which a request ended that was granted none."""
    since = 0.0
    for number, attempt in enumerate(trace.attempts):
        if number == 0 or attempt.began_s - since >= _WAITED_S:
            yield _queue(trace, top, since, attempt.began_s, draw(), attempt=attempt)
        since = attempt.began_s + attempt.lasted_s
    if trace.lasted_s - since >= _WAITED_S and (not trace.attempts or trace.attempts[-1].result is ResultKind.REFUSED):
        yield _queue(trace, top, since, trace.lasted_s, draw(), attempt=None)


def _queue(trace: RequestTrace, top: Span, began_s: float, ended_s: float, own: int, *, attempt: AttemptTrace | None) -> Span:
    links: tuple[Context, ...] = ()
    found = known({"standby.queue.reason": trace.queue_reason, "standby.quarantined_ms": _quarantined(trace)})
    if attempt is not None and attempt.activation:
        links = (of_activation(attempt.activation),)
        found["standby.activation.id"] = attempt.activation
        found["standby.rung"] = attempt.rung.label
    return Span(
        name="queue",
        kind=SpanKind.INTERNAL,
        trace=top.trace,
        id=own,
        parent=top.id,
        began_ns=top.began_ns + ns(began_s),
        ended_ns=top.began_ns + ns(ended_s),
        attributes=found,
        error=trace.ending if attempt is None else "",
        links=links,
    )


def _quarantined(trace: RequestTrace) -> float | None:
    return round(trace.quarantined_s * 1000, 3) or None


def _attempt(trace: RequestTrace, top: Span, number: int, draw: Callable[[], int]) -> Span:
    attempt = trace.attempts[number]
    host, port = attempt.address
    began = top.began_ns + ns(attempt.began_s)
    return Span(
        name="attempt",
        kind=SpanKind.CLIENT,
        trace=top.trace,
        id=attempt.span or draw(),
        parent=top.id,
        began_ns=began,
        ended_ns=began + ns(attempt.lasted_s),
        attributes=known(
            {
                "server.address": host,
                "server.port": port,
                "standby.attempt": number + 1,
                "standby.request_id": attempt.id,
                "standby.instance": attempt.instance,
                "standby.node": attempt.node,
                "standby.epoch": attempt.epoch,
                "standby.backend": attempt.backend,
                "standby.engine": None if attempt.engine is None else attempt.engine.value,
                "standby.rung": attempt.rung.label,
                "standby.probe": attempt.probe,
                "standby.outcome": attempt.result.value,
            }
        ),
        error="" if attempt.result is ResultKind.OK else attempt.result.value,
    )
