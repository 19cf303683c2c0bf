"""The demo's page, made of a report: what it shows, and what it says where something is lacking."""

from __future__ import annotations

from typing import Any

import pytest

from standby.bench.compare.held import Look
from standby.bench.page import render
from standby.cli.demo.memory import held
from standby.cli.demo.page import demo_page, steps
from standby.cli.demo.report import Call, ConcurrentFirstRequests, DemoReport, Descent, Drain, Held, Invocation
from standby.console.settings import ConsoleSettings

HOSTILE = "</script><img src=x onerror=alert(1)>"
PRICES = ConsoleSettings(usd_host_gb_hour=1.0)


def an_invocation(rung: str, *, text: str = "Paris.", **phases: float) -> Invocation:
    return Invocation(
        label=rung, rung=rung, phases_ms=phases or {"first_token": 50.0}, first_token_ms=100.0, total_ms=200.0, text=text
    )


def a_report(**changes: Any) -> DemoReport:
    fields: dict[str, Any] = {
        "model": "s3://models/smol/model.gguf",
        "model_bytes": 98_000_000,
        "question": "Where?",
        "answer": "Paris.",
        "invocations": (an_invocation("cold", fetched=400.0, loaded=900.0), an_invocation("ready")),
        "descents": (Descent(rung="asleep", after_s=0.7, resident_bytes=60 * 2**20, reason="holding costs"),),
        "concurrent_first_requests": ConcurrentFirstRequests(requests=2, ok=2, activations=1),
        "drain": Drain(requests=2, failed=0),
        "leftover_processes": 0,
        "seconds": 30.0,
        "first_calls": (Call(at_s=0.0, first_token_ms=10.0, total_ms=20.0),) * 2,
        "drain_calls": (Call(at_s=0.0, first_token_ms=10.0, total_ms=20.0), Call(at_s=1.0, first_token_ms=10.0, total_ms=20.0)),
        "held": (
            Held(at_s=0.0, state="cold", resident_bytes=0),
            Held(at_s=10.0, state="ready", resident_bytes=10**9),
            Held(at_s=20.0, state="asleep", resident_bytes=10**8),
            Held(at_s=30.0, state="cold", resident_bytes=0),
        ),
        "machine": (("processors", "2"),),
    }
    return DemoReport.model_validate({**fields, **changes})


def page_of(**changes: Any) -> str:
    return render(demo_page(a_report(**changes), PRICES))


def test_what_was_held_is_told_beside_always_on() -> None:
    page = page_of()

    # A GB for ten seconds and a tenth of it for ten more, of a GB for thirty.
    assert "11.00 GB·s" in page
    assert "30.00 GB·s" in page
    assert "37%" in page
    assert "$730.00 for a month" in page
    assert "holding costs" in page


def test_without_a_look_at_it_awake_its_cost_is_not_measured() -> None:
    page = page_of(held=())

    assert "Not measured: no look met the endpoint while it was ready." in page
    assert "Memory that the endpoint held: nothing was measured." in page


def test_what_went_wrong_is_the_first_thing_that_is_seen() -> None:
    page = page_of(
        drain=Drain(requests=2, failed=1), drain_calls=(Call(at_s=0.0), Call(at_s=0.1, first_token_ms=1.0, total_ms=2.0))
    )

    assert 'class="banner bad" role="alert">not as promised: 1 of 2 requests failed during the drain' in page
    assert "Everything as promised" not in page


def test_answers_that_differ_are_told() -> None:
    assert "the same to the letter" in page_of()
    assert "differed" in page_of(invocations=(an_invocation("cold"), an_invocation("ready", text="London.")))


def test_what_the_model_answers_cannot_become_part_of_the_page() -> None:
    page = page_of(answer=HOSTILE, question=HOSTILE, model=HOSTILE, invocations=(an_invocation("cold", text=HOSTILE),))

    assert "<img" not in page
    assert page.count("</script>") == 1


def test_each_change_of_what_is_held_is_a_step() -> None:
    looks = [Look(0.0, "cold", 0), Look(1.0, "cold", 0), Look(2.0, "ready", 5), Look(3.0, "ready", 5)]

    assert [(one.at_s, one.resident_bytes) for one in steps(looks)] == [(0.0, 0), (2.0, 0), (2.0, 5), (3.0, 5)]
    assert steps([]) == []


@pytest.mark.parametrize(
    ("instances", "state", "count"),
    [([], "cold", 0), ([{"state": "ready", "resident_bytes": 3}, {"state": "asleep", "resident_bytes": 1}], "ready", 4)],
)
def test_a_look_is_of_the_warmest_instance_and_of_all_memory(instances: list[dict[str, Any]], state: str, count: int) -> None:
    assert held(instances, 1.0) == Held(at_s=1.0, state=state, resident_bytes=count)
