"""The spans of a request, whatever became of it; which requests are told of at all."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from standby.domain.instance import Activation, Rung
from standby.gateway.request_ends import MOST_ERRORS_A_SECOND, RequestEnds, RequestLog, fields_of, write_line
from standby.gateway.request_spans import is_error, spans_of
from standby.gateway.results import ResultKind
from standby.gateway.traces import AttemptTrace, RequestTrace, attempt_of
from standby.sagemaker.runtime.contract import Arrival
from standby.telemetry import metrics
from standby.telemetry.background import LIMIT
from standby.telemetry.sampling import Sampler
from standby.telemetry.spans import Span, SpanKind
from standby.telemetry.trace_context import Head, of_activation
from standby.telemetry.tracing import Tracing
from support.past_requests import a_grant, a_trace

HEAD = Head(trace=7, parent=8, flags=3, sampled=True, state=b"", path="/v1/chat/completions")


def an_attempt(
    number: int, began_s: float, lasted_s: float, result: ResultKind = ResultKind.OK, span: int = 0, **grant: Any
) -> AttemptTrace:
    return attempt_of(f"g-1.{number}", a_grant(number, node="n1", **grant), "words", lasted_s, result, began_s, span)


def a_request(*attempts: AttemptTrace, ending: str = "ok", status: int = 200, **changes: Any) -> RequestTrace:
    trace = a_trace(ending=ending, lasted_s=2.0, path="/v1/chat/completions", served_name="m", **changes)
    head = changes.get("head", HEAD)
    return trace._replace(arrival=Arrival(5.0, 1000.0, "g-1", b"g-1", head), attempts=attempts, status=status)


def made(trace: RequestTrace, head: Head = HEAD) -> list[Span]:
    ids: Iterator[int] = itertools.count(100)
    return spans_of(trace, head, lambda: next(ids))


def times(span: Span) -> tuple[float, float]:
    """When it began and ended, in seconds from the request's arrival."""
    return round(span.began_ns / 1e9 - 1000, 6), round(span.ended_ns / 1e9 - 1000, 6)


def test_a_warm_request() -> None:
    top, queue, attempt = made(a_request(an_attempt(1, 0.25, 1.5, span=42), first_token_s=0.5, streamed=True))
    assert (top.name, top.kind, top.trace, top.parent) == ("POST /v1/chat/completions", SpanKind.SERVER, 7, 8)
    assert (queue.parent, attempt.parent, attempt.id) == (top.id, top.id, 42)
    assert [times(span) for span in (top, queue, attempt)] == [(0, 2), (0, 0.25), (0.25, 1.75)]
    assert [(event.name, event.at_ns) for event in top.events] == [("first token", 1000_500_000_000)]
    assert [span.error for span in (top, queue, attempt)] == ["", "", ""]
    assert queue.links == ()
    assert top.attributes["gen_ai.response.time_to_first_chunk"] == 0.5
    assert top.attributes["gen_ai.usage.input_tokens"] == 12
    assert attempt.attributes["standby.node"] == "n1"


def test_a_wait_for_a_climb_links_to_it() -> None:
    activation = Activation(id="act-1", from_rung=Rung.ASLEEP)
    _, queue, attempt = made(a_request(an_attempt(1, 1.0, 0.5, activation=activation, rung=Rung.ASLEEP)))
    assert queue.links == (of_activation("act-1"),)
    assert queue.attributes["standby.activation.id"] == "act-1"
    assert attempt.attributes["standby.rung"] == "asleep"


def test_each_wait_and_each_attempt_of_one_that_was_repeated() -> None:
    refused, failed = an_attempt(1, 0.1, 0.2, ResultKind.REFUSED), an_attempt(2, 0.5, 0.3, ResultKind.ENGINE)
    spans = made(a_request(refused, failed, an_attempt(3, 0.8, 1.0)))
    assert [(span.name, times(span)) for span in spans[1:]] == [
        ("queue", (0, 0.1)),
        ("queue", (0.3, 0.5)),  # the third attempt had not to wait
        ("attempt", (0.1, 0.3)),
        ("attempt", (0.5, 0.8)),
        ("attempt", (0.8, 1.8)),
    ]
    assert [span.error for span in spans[3:]] == ["refused", "engine", ""]
    assert [span.attributes["standby.attempt"] for span in spans[3:]] == [1, 2, 3]


@pytest.mark.parametrize("attempts", [(), (an_attempt(1, 0.1, 0.1, ResultKind.REFUSED),)])
def test_a_wait_in_vain_ends_with_the_request(attempts: tuple[AttemptTrace, ...]) -> None:
    spans = made(a_request(*attempts, ending="cold_wait_exceeded", status=503))
    last = [span for span in spans if span.name == "queue"][-1]
    assert times(last)[1] == 2
    assert last.error == spans[0].error == "cold_wait_exceeded"


@pytest.mark.parametrize(
    ("ending", "status", "error", "kept"),
    [
        ("ok", 200, "", False),
        ("engine_4xx", 400, "", False),
        ("poison_request", 422, "", False),
        ("queue_full", 429, "", True),
        ("engine_5xx", 500, "engine_5xx", True),
        ("engine_died", 502, "engine_died", True),
        ("broken_stream", 200, "broken_stream", True),
        ("client_gone", 0, "client_gone", False),
        ("internal_error", 0, "internal_error", True),
    ],
)
def test_what_is_an_error_and_what_is_kept_for_it(ending: str, status: int, error: str, *, kept: bool) -> None:
    trace = a_request(an_attempt(1, 0, 1), ending=ending, status=status)
    assert made(trace)[0].error == error
    assert is_error(trace) == kept


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "POST /v1/completions"),
        ("/endpoints/mine/invocations", "POST /endpoints/{endpoint}/invocations"),
        ("/endpoints/a/invocations-response-stream", "POST /endpoints/{endpoint}/invocations-response-stream"),
        ("/endpoints/a/openai/v1/chat/completions", "POST /endpoints/{endpoint}/openai/v1/chat/completions"),
        (
            "/endpoints/a/inference-components/b/openai/v1/chat/completions",
            "POST /endpoints/{endpoint}/inference-components/{component}/openai/v1/chat/completions",
        ),
        ("", "InvokeEndpointAsync"),
    ],
)
def test_names_of_spans_are_few(path: str, name: str) -> None:
    top = made(a_request(), HEAD._replace(path=path))[0]
    assert top.name == name
    assert (top.kind is SpanKind.CONSUMER) == (path == "")


def test_no_words_are_told() -> None:
    """Those of an error or of an engine may repeat a prompt."""
    attempt = an_attempt(1, 0, 1, ResultKind.ENGINE)._replace(outcome="said: SECRET", reason="SECRET")
    for span in made(a_request(attempt, ending="engine_5xx", status=500, words="SECRET")):
        assert "SECRET" not in str(span)
    assert "SECRET" not in str(fields_of(a_request(attempt, ending="engine_5xx", status=500, words="SECRET")))


# ---- which are told of -----------------------------------------------------------------------------------------------


class Kept:
    """A collector in memory."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def export(self, spans: Sequence[Span]) -> int:
        self.spans += spans
        return len(spans)


async def test_what_is_sampled_or_an_error_is_kept_and_nothing_else() -> None:
    kept = Kept()
    ends = RequestEnds(Tracing(kept, Sampler(0, callers=True)), RequestLog.NONE)
    ends(a_request(an_attempt(1, 0, 1), sampled=False))
    ends(a_request(an_attempt(1, 0, 1), ending="client_gone", status=0))
    assert (await _ended(ends, kept)) == []
    ends = RequestEnds(Tracing(kept, Sampler(0, callers=True)), RequestLog.NONE)
    ends(a_request(an_attempt(1, 0, 1), sampled=True))
    ends(a_request(ending="queue_full", status=429))
    assert await _ended(ends, kept) == ["ok", "queue_full"]


async def test_an_outage_does_not_drown_the_collector() -> None:
    kept, before = Kept(), metrics.SPANS_DROPPED.labels("rate")._value.get()
    ends = RequestEnds(Tracing(kept, Sampler(0, callers=True)), RequestLog.NONE)
    for _ in range(MOST_ERRORS_A_SECOND + 20):
        ends(a_request(ending="engine_died", status=502))
    ends(a_request(ending="ok", sampled=True))
    assert len(await _ended(ends, kept)) == MOST_ERRORS_A_SECOND + 1
    assert metrics.SPANS_DROPPED.labels("rate")._value.get() == before + 20


async def _ended(ends: RequestEnds, kept: Kept) -> list[object]:
    await ends.close(5)
    return [span.attributes["standby.outcome"] for span in kept.spans if span.kind is SpanKind.SERVER]


@pytest.mark.parametrize(("told", "expected"), [("none", []), ("errors", ["engine_died"]), ("all", ["ok", "engine_died"])])
async def test_the_request_log_tells_what_it_was_asked_for(told: str, expected: list[str]) -> None:
    lines: list[RequestTrace] = []
    ends = RequestEnds(None, RequestLog(told), lines.append)
    ends(a_request(an_attempt(1, 0, 1)))
    ends(a_request(ending="engine_died", status=502))
    assert lines == []  # not in the request's own time
    await ends.close(5)
    assert [trace.ending for trace in lines] == expected


async def test_an_outage_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A second's first errors have a line each, the others one for all of them."""
    lines: list[RequestTrace] = []
    ends = RequestEnds(None, RequestLog.ERRORS, lines.append)
    for _ in range(MOST_ERRORS_A_SECOND + 20):
        ends(a_request(ending="engine_died", status=502))
    ends(a_request(ending="engine_died", status=502)._replace(lasted_s=3.0))  # a second later
    await ends.close(5)
    assert len(lines) == MOST_ERRORS_A_SECOND + 1
    assert [record.getMessage() for record in caplog.records] == ["20 more requests ended, of which there is no line"]


async def test_lines_that_cannot_be_written_in_time_are_told(caplog: pytest.LogCaptureFixture) -> None:
    held = threading.Event()
    ends = RequestEnds(None, RequestLog.ALL, lambda _trace: held.wait(30))
    for _ in range(LIMIT + 5):
        ends(a_request(an_attempt(1, 0, 1)))
    held.set()
    await ends.close(5)
    assert [record.getMessage() for record in caplog.records] == [
        "more requests end than lines can be written: some are left out",
        "5 more requests ended, of which there is no line",
    ]


def test_a_line_has_ids_times_and_outcome(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "standby.requests"):
        write_line(a_request(an_attempt(1, 0.25, 1.5), ending="ok"))
        write_line(a_request(ending="engine_died", status=502)._replace(usage=None))
    ok, died = caplog.records
    assert (ok.levelname, ok.getMessage()) == ("INFO", "request ended: ok")
    assert ok.__dict__ | {"request_id": "g-1", "trace_id": f"{7:032x}", "instance": "i-1", "lasted_ms": 2000.0} == ok.__dict__
    assert (died.levelname, died.__dict__["outcome"], died.__dict__["status"]) == ("WARNING", "engine_died", 502)
    assert "instance" not in died.__dict__
