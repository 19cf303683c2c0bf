"""What happened, as the console tells it: in words, bounded, and to nobody but whom it concerns."""

from __future__ import annotations

from typing import Any

import pytest

from standby.console.news import ACTIVATIONS, DECISIONS, EVENTS, LONGEST_TEXT, MOST_TENANTS, Rings
from standby.console.values import Scope
from standby.domain.events import (
    ActivationEnded,
    AnyEvent,
    AsyncInvocationEnded,
    AuditEvent,
    ComponentNotice,
    DecisionMade,
    EndpointChanged,
    FetchProgress,
    StateChanged,
)
from standby.domain.instance import Activation, InstanceState, Phase, Rung

ONE, TWO = "111111111111", "222222222222"


def an_event(kind: type[Any], at: float = 1.0, tenant: str = ONE, **fields: Any) -> Any:
    return kind(id=f"{kind.__name__}-{tenant}-{at}", at=at, source="node/n1", tenant=tenant, endpoint="e", **fields)


def a_decision(at: float = 1.0, tenant: str = ONE, reason: str = "idle for 5 m") -> DecisionMade:
    decision: DecisionMade = an_event(DecisionMade, at, tenant, action="sleep", reason=reason)
    return decision


def rings(*events: AnyEvent) -> Rings:
    kept = Rings()
    for event in events:
        kept.put(event)
    return kept


def test_an_activation_has_its_phases_and_their_sum() -> None:
    activation = Activation(id="a", from_rung=Rung.ASLEEP, phases_ms={Phase.LOADED: 80.0, Phase.PROBED: 20.5})

    (row,) = rings(an_event(ActivationEnded, activation=activation, ok=True)).of(Scope(ONE)).activations

    assert (row["node"], row["from_rung"], row["total_ms"]) == ("n1", "asleep", 100.5)
    assert row["phases_ms"] == {"loaded": 80.0, "probed": 20.5}


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (
            an_event(StateChanged, before=InstanceState.STARTING, after=InstanceState.READY, epoch=1, reason="it answers"),
            "starting → ready: it answers",
        ),
        (an_event(EndpointChanged, status="InService"), "now InService"),
        (an_event(ComponentNotice, level="warning", message="found an orphan"), "node/n1, warning: found an orphan"),
        (an_event(FetchProgress, digest="d" * 64, done_bytes=7, total_bytes=7), "7 of 7 bytes of dddddddddddd are here"),
        (
            an_event(AsyncInvocationEnded, inference_id="i", status="Failed", received_at=1.0, reason="no such model"),
            "asynchronous invocation i failed: no such model",
        ),
    ],
)
def test_events_are_words(event: AnyEvent, text: str) -> None:
    (row,) = rings(event).of(Scope(ONE)).events
    assert row["text"] == text


def test_bytes_on_their_way_are_no_event() -> None:
    assert rings(an_event(FetchProgress, digest="d", done_bytes=1, total_bytes=7)).of(Scope(ONE)).events == ()


def test_newest_first_and_no_more_than_there_is_room_for() -> None:
    kept = rings(*(a_decision(float(at)) for at in range(500)))

    shown = kept.of(Scope(ONE)).decisions

    assert len(shown) == DECISIONS == 100
    assert (ACTIVATIONS, EVENTS) == (50, 100)
    assert [row["at"] for row in shown[:3]] == [499.0, 498.0, 497.0]


def test_tenants_hear_of_nobody_else_and_administrators_of_the_platform_too() -> None:
    notice = an_event(ComponentNotice, tenant="", message="a node has joined")
    audit = an_event(AuditEvent, who="k1", action="keys.create", target="k2", outcome="done")
    kept = rings(a_decision(), a_decision(tenant=TWO), notice, audit)

    assert {row["tenant"] for row in kept.of(Scope(ONE)).decisions} == {ONE}
    assert kept.of(Scope(ONE)).events == ()
    assert {row["kind"] for row in kept.of(Scope(ONE, admin=True)).events} == {"notice", "audit"}
    assert {row["tenant"] for row in kept.of(Scope("", admin=True)).decisions} == {ONE, TWO}


def test_a_noisy_tenant_takes_nothing_from_a_quiet_one() -> None:
    kept = rings(a_decision(1.0, TWO), *(a_decision(float(at)) for at in range(5000)))

    assert [row["at"] for row in kept.of(Scope(TWO)).decisions] == [1.0]


def test_many_tenants_do_not_fill_the_memory() -> None:
    kept = rings(*(a_decision(float(number), f"{number:012}") for number in range(MOST_TENANTS + 50)))

    assert kept.of(Scope(f"{0:012}")).decisions == ()
    assert len(kept.of(Scope(f"{MOST_TENANTS + 49:012}")).decisions) == 1
    assert len(kept._rings) == MOST_TENANTS


def test_a_reason_without_an_end_is_cut() -> None:
    (row,) = rings(a_decision(reason="x" * 100_000)).of(Scope(ONE)).decisions
    assert len(row["reason"]) == LONGEST_TEXT


def test_the_same_object_is_returned_until_something_happens() -> None:
    kept = rings(a_decision())
    before = kept.of(Scope(ONE))

    assert kept.of(Scope(ONE)) is before
    kept.put(a_decision(2.0))
    assert kept.of(Scope(ONE)) is not before
