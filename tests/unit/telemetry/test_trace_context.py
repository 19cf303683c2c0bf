"""W3C's rules for ``traceparent`` and ``tracestate``, and which traces are kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from standby.telemetry.sampling import Sampler
from standby.telemetry.spans import Span
from standby.telemetry.trace_context import (
    MOST_STATE,
    TRACEPARENT,
    Context,
    of_activation,
    parse,
    read,
    replaced,
    state_of,
    written,
)
from standby.telemetry.tracing import Tracing

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01".encode()
CONTEXT = Context(int(TRACE, 16), int(SPAN, 16), 1)


def test_what_is_written_is_what_was_read() -> None:
    assert parse(GOOD) == CONTEXT
    assert written(CONTEXT) == GOOD
    assert CONTEXT.sampled
    assert not CONTEXT._replace(flags=2).sampled


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"00",
        GOOD[:-1],
        GOOD + b"0",
        GOOD + b"-",
        GOOD + b"-more",  # version 00 has four parts
        GOOD.upper(),
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"0-{TRACE}-{SPAN}-01".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{TRACE[:-1]}-{SPAN}-01".encode(),
        f"00-{TRACE[:-1]}g-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-0x".encode(),
        f"00_{TRACE}_{SPAN}_01".encode(),
        f"cc-{TRACE}-{SPAN}-01.what".encode(),  # of a later version, but no dash
        f" 00-{TRACE}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-01\n".encode(),
        "00-٤bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01".encode(),
    ],
)
def test_what_breaks_a_rule_is_not_there(value: bytes) -> None:
    assert parse(value) is None


@pytest.mark.parametrize(
    ("value", "flags"),
    [
        (f"01-{TRACE}-{SPAN}-01", 1),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", 1),
        (f"fe-{TRACE}-{SPAN}-00-", 0),
        (f"00-{TRACE}-{SPAN}-03", 3),
        (f"00-{TRACE}-{SPAN}-ff", 3),
        (f"00-{TRACE}-{SPAN}-fc", 0),
    ],
)
def test_later_versions_and_flags_are_read_as_far_as_they_are_known(value: str, flags: int) -> None:
    assert parse(value.encode()) == CONTEXT._replace(flags=flags)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 3))
def test_every_context_comes_back(trace: int, span: int, flags: int) -> None:
    assert parse(written(Context(trace, span, flags))) == Context(trace, span, flags)


@given(st.binary(max_size=80))
def test_no_bytes_raise(value: bytes) -> None:
    assert parse(value) is None or len(value) >= 55


def test_two_parents_contradict_each_other_and_take_the_state_along() -> None:
    assert read([(b"traceparent", GOOD), (b"traceparent", GOOD), (b"tracestate", b"a=1")]) == (None, b"")
    assert read([(b"traceparent", b"junk"), (b"tracestate", b"a=1")]) == (None, b"")
    assert read([(b"tracestate", b"a=1"), (b"traceparent", GOOD), (b"tracestate", b"b=2")]) == (CONTEXT, b"a=1,b=2")
    assert read([]) == (None, b"")


def test_a_long_state_loses_its_last_members_and_no_half_of_one() -> None:
    members = [b"v%03d=%040d" % (number, number) for number in range(40)]
    state = state_of([b",".join(members)])
    assert len(state) <= MOST_STATE
    assert state == b",".join(members[: state.count(b",") + 1])
    assert len(state) + 1 + len(members[0]) > MOST_STATE
    assert state_of([b"x" * (MOST_STATE + 1)]) == b""
    assert state_of([b"x" * MOST_STATE]) == b"x" * MOST_STATE


def test_the_headers_say_the_new_context_once() -> None:
    headers = [(b"traceparent", b"junk"), (b"accept", b"*/*"), (b"tracestate", b"old"), (b"traceparent", b"more")]
    assert replaced(headers, CONTEXT, b"a=1") == [(b"accept", b"*/*"), (b"traceparent", GOOD), (b"tracestate", b"a=1")]
    assert replaced(headers, CONTEXT, b"") == [(b"accept", b"*/*"), (b"traceparent", GOOD)]


def test_a_climb_has_the_same_span_for_everybody_and_each_its_own() -> None:
    one, again, other = of_activation("act-1"), of_activation("act-1"), of_activation("act-2")
    assert one == again
    assert one.sampled
    assert {one.trace, one.span}.isdisjoint({other.trace, other.span})
    assert parse(written(one)) == one


@given(st.integers(1, 2**128 - 1), st.sampled_from([0.0, 0.05, 0.5, 0.999, 1.0]))
def test_the_ratio_keeps_what_opentelemetrys_own_sampler_keeps(trace: int, ratio: float) -> None:
    theirs = TraceIdRatioBased(ratio).should_sample(None, trace, "x").decision is Decision.RECORD_AND_SAMPLE
    assert Sampler(ratio, callers=True).keeps(trace) == theirs


def test_a_callers_word_counts_where_it_may() -> None:
    kept, left = CONTEXT, CONTEXT._replace(flags=0)
    assert Sampler(0.0, callers=True).keeps(kept.trace, kept)
    assert not Sampler(1.0, callers=True).keeps(left.trace, left)
    assert not Sampler(0.0, callers=False).keeps(kept.trace, kept)
    assert Sampler(1.0, callers=False).keeps(left.trace, left)


@pytest.mark.parametrize(("ratio", "callers", "kept"), [(0.0, True, 100), (0.05, False, 100), (1.0, True, 300)])
async def test_a_caller_cannot_have_more_kept_than_so_many_a_second(ratio: float, callers: bool, kept: int) -> None:
    """Neither by his flag nor by ids that the ratio keeps; who keeps everything keeps his too."""
    now = 5.0
    tracing = Tracing(Nowhere(), Sampler(ratio, callers), clock=lambda: now)
    forced = [(TRACEPARENT, f"00-{'a' * 16}{number:016x}-{SPAN}-01".encode()) for number in range(1, 301)]

    assert sum(tracing.head([header], "/").sampled for header in forced) == kept
    now += 1.0
    assert tracing.head(forced[:1], "/").sampled


class Nowhere:
    """No collector."""

    def export(self, spans: Sequence[Span]) -> int:
        return len(spans)
