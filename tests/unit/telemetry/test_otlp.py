"""Sending spans is an extra: nothing of it is loaded without an endpoint, and what is missing is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from standby.domain.errors import ConfigurationError
from standby.telemetry import metrics
from standby.telemetry.otlp import Exporter
from standby.telemetry.spans import Span, SpanEvent, SpanKind, known
from standby.telemetry.trace_context import Context
from standby.telemetry.tracing import Place, open_tracing
from standby.telemetry.tracing_settings import TracingSettings, traces_url
from support.otlp_receiver import otlp_receiver

HERE = Place("standby-test", "t-1")


def test_a_span_arrives_as_it_was_made() -> None:
    span = Span(
        name="door",
        kind=SpanKind.CLIENT,
        trace=1,
        id=2,
        parent=3,
        began_ns=10,
        ended_ns=20,
        attributes=known({"standby.node": "n1", "count": 3, "nothing": None, "empty": "", "yes": True, "share": 0.5}),
        error="died",
        events=[SpanEvent("first byte", 15)],
        links=[Context(4, 5, 1)],
    )
    with otlp_receiver() as receiver:
        assert Exporter(receiver.url + "/v1/traces", {}, {"service.name": "s"}).export([span])
    (found,) = receiver.spans
    assert (found.service, found.name, found.kind, found.trace, found.id) == ("s", "door", "client", f"{1:032x}", f"{2:016x}")
    assert (found.parent, found.began_ns, found.ended_ns, found.failed) == (f"{3:016x}", 10, 20, True)
    assert found.attributes == {"standby.node": "n1", "count": 3, "yes": True, "share": 0.5, "error.type": "died"}
    assert (found.events, found.links) == ({"first byte": 15}, [(f"{4:032x}", f"{5:016x}")])


@pytest.mark.parametrize(
    ("value", "told"),
    [(2**63 - 1, 2**63 - 1), (-(2**63) + 1, -(2**63) + 1), (10**30, "1" + "0" * 30), ("half \ud83d of it", "half ? of it")],
)
def test_what_an_engine_says_does_not_cost_the_spans_of_others(value: int | str, told: int | str) -> None:
    """A value that no message can hold would be an error in the middle of a batch, and all of it lost."""
    span = Span("attempt", SpanKind.CLIENT, 1, 2, 3, 10, 20, {"odd": value})
    with otlp_receiver() as receiver:
        assert Exporter(receiver.url + "/v1/traces", {}, {"service.name": "s"}).export([span]) == 1
    (found,) = receiver.spans
    assert found.attributes == {"odd": told}


def test_nothing_is_loaded_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDBY_OTLP_ENDPOINT", raising=False)
    assert open_tracing(TracingSettings.load(), HERE) is None
    program = (
        "import sys, standby.gateway.main, standby.warm_pool.main; print([n for n in sys.modules if 'opentelemetry' in n])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_that_are_missing_are_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.proto.trace.v1", None)
    with pytest.raises(ConfigurationError, match=r"http://collector:4318/v1/traces.*pip install 'standby\[otlp\]'"):
        open_tracing(TracingSettings.load(otlp_endpoint="http://collector:4318"), HERE)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
        ("https://c/otlp", "https://c/otlp/v1/traces"),
    ],
)
def test_an_endpoint_may_name_the_route_or_not(given: str, url: str) -> None:
    assert traces_url(given) == url
    assert TracingSettings.load(otlp_endpoint=given).otlp_url == url


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("STANDBY_OTLP_ENDPOINT", "collector:4318"),
        ("STANDBY_OTLP_ENDPOINT", "ftp://collector"),
        ("STANDBY_OTLP_HEADERS", "no-value"),
        ("STANDBY_OTLP_HEADERS", "a=1,=2"),
        ("STANDBY_TRACE_RATIO", "1.5"),
        ("STANDBY_TRACE_RATIO", "nan"),
        ("STANDBY_TRACE_CALLERS", "perhaps"),
    ],
)
def test_wrong_settings_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=name):
        TracingSettings.load()


def test_no_secret_header_is_repeated_or_given_to_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDBY_OTLP_HEADERS", "authorization=Bearer hush-hush, broken")
    with pytest.raises(ConfigurationError) as raised:
        TracingSettings.load()
    assert "hush-hush" not in str(raised.value)
    with_secret = TracingSettings.load(otlp_endpoint="http://c", otlp_headers="authorization=Bearer x")
    assert (with_secret.otlp_url, with_secret.engines_url) == ("http://c/v1/traces", None)


async def test_what_arrived_is_counted() -> None:
    before = metrics.SPANS_EXPORTED._value.get()
    span = Span("x", SpanKind.INTERNAL, 1, 2, 0, 0, 1, {})
    with otlp_receiver() as receiver:
        tracing = open_tracing(TracingSettings.load(otlp_endpoint=receiver.url, otlp_headers="X-Key=v"), HERE)
        assert tracing is not None
        tracing.add(lambda: [span])
        tracing.add(lambda: [span, span])
        await tracing.close(30)
    assert len(receiver.spans) == 3
    assert metrics.SPANS_EXPORTED._value.get() == before + 3
    assert receiver.headers[0]["x-key"] == "v"
    assert receiver.spans[0].service == "standby-test"
