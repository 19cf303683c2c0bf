"""The ring of past requests."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from standby.domain.traffic import Tier
from standby.gateway.metering import Usage
from standby.gateway.neighbours import known
from standby.gateway.traces import Traces, view
from support.past_requests import a_trace, an_attempt

MINE = "111111111111"
OTHER = "222222222222"


def test_the_oldest_goes_first_and_the_newest_is_told_first() -> None:
    traces = Traces(3)
    for number in range(5):
        traces.add(a_trace(f"g-{number}"))
    assert [trace.id for trace in traces.last(MINE, None, 10)] == ["g-4", "g-3", "g-2"]
    assert [trace.id for trace in traces.last(MINE, None, 1)] == ["g-4"]
    assert traces.find(MINE, "g-0") is None


def test_none_are_kept_where_none_are_wanted() -> None:
    traces = Traces(0)
    traces.add(a_trace())
    assert traces.last(MINE, None, 10) == []


def test_a_tenant_sees_its_own_only() -> None:
    traces = Traces()
    traces.add(a_trace("g-1"))
    traces.add(a_trace("g-2", tenant=OTHER))
    assert [trace.id for trace in traces.last(OTHER, None, 10)] == ["g-2"]
    assert traces.find(OTHER, "g-1") is None
    assert known(traces, {"tenant": OTHER, "id": "g-1"}) == []
    assert [trace["id"] for trace in known(traces, {"tenant": MINE, "endpoint": None, "limit": 9})] == ["g-1"]


def test_it_is_found_by_our_id_its_callers_and_an_attempts() -> None:
    traces = Traces()
    traces.add(a_trace("g-1", echoed="läuft".encode()))
    traces.add(a_trace("g-2", echoed=b"same", endpoint="other"))
    newest = a_trace("g-3", echoed=b"same", attempts=(an_attempt(id="g-3"), an_attempt(2, id="g-3.2")))
    traces.add(newest)
    found = {name: traces.find(MINE, name) for name in ("g-1", "läuft", "same", "g-3.2", "nobody")}
    assert {name: trace and trace.id for name, trace in found.items()} == {
        "g-1": "g-1",
        "läuft": "g-1",
        "same": "g-3",
        "g-3.2": "g-3",
        "nobody": None,
    }
    assert [trace.id for trace in traces.last(MINE, "other", 9)] == ["g-2"]


def test_what_is_told_of_a_request() -> None:
    first = an_attempt(id="g-1", outcome="not connected: refused")
    told = view(
        a_trace(attempts=(first, an_attempt(2, id="g-1.2", probe=True)), usage=Usage(3, 4, estimated=True), tier=Tier.CRITICAL)
    )
    assert told["attempts"][0] == {
        "id": "g-1",
        "instance": "i-1",
        "door": "127.0.0.1:7001",
        "epoch": 3,
        "backend": "",
        "engine": "vllm",
        "reason": "least outstanding: 1 of 4 slots",
        "probe": False,
        "outcome": "not connected: refused",
        "lasted_ms": 12.5,
    }
    assert (told["attempts"][1]["id"], told["attempts"][1]["probe"]) == ("g-1.2", True)
    assert {name: told[name] for name in ("tier", "priority", "waited_ms", "lasted_ms", "first_byte_ms", "ending")} == {
        "tier": "critical",
        "priority": "high",
        "waited_ms": 2.0,
        "lasted_ms": 1500.0,
        "first_byte_ms": 250.0,
        "ending": "ok",
    }
    assert told["quarantined_ms"] == 0.0
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "estimated": True}


def test_a_past_request_keeps_no_desk_in_memory() -> None:
    """Plain values only: a deleted endpoint's desk and route are not held until the ring has been round."""
    plain = (str, int, float, bool, Enum, type(None), bytes)
    trace = a_trace(attempts=(an_attempt(),))

    def flat(value: object) -> Iterator[object]:
        if isinstance(value, tuple):
            for part in value:
                yield from flat(part)
        else:
            yield value

    assert [value for value in flat(trace) if not isinstance(value, plain)] == []


def test_a_request_that_went_nowhere_has_used_nothing() -> None:
    told = view(a_trace()._replace(attempts=(), usage=None, first_byte_s=None, ending="queue_full"))
    assert (told["attempts"], told["first_byte_ms"]) == ([], None)
    assert told["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "estimated": False}
