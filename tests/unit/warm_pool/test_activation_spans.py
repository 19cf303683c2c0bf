"""A climb as a trace of its own, with its phases as they went."""

from __future__ import annotations

import pytest

from standby.domain.instance import Phase, Rung
from standby.runtime.lifecycle_values import Event, Fetched, Loaded, Probed, Spawned
from standby.telemetry.trace_context import of_activation
from standby.warm_pool.activation_spans import Climbed, spans_of
from standby.warm_pool.climb import MOST_STEPS, Climb
from support.builders import an_assignment


def test_a_climbs_phases_are_its_children() -> None:
    climb = Climb(Rung.COLD, began=10.0, called_at=1000.0, demand_at=None, id="act-1")
    kinds: tuple[tuple[type[Event], float], ...] = ((Fetched, 11.0), (Spawned, 11.5), (Loaded, 14.0), (Probed, 14.25))
    for kind, at in kinds:
        climb.note(object.__new__(kind), at)  # which one it is counts, not what is in it
    top, *phases = spans_of(Climbed("act-1", an_assignment(), Rung.COLD, 1000.0, 4.5, tuple(climb.steps), ""))
    assert (top.trace, top.id) == of_activation("act-1")[:2]
    assert (top.parent, top.error, top.attributes["standby.outcome"]) == (0, "", "ready")
    assert (top.began_ns, top.ended_ns) == (1000 * 10**9, 1_004_500_000_000)
    assert [(span.name, (span.began_ns - top.began_ns) / 1e9, (span.ended_ns - top.began_ns) / 1e9) for span in phases] == [
        ("fetched", 0, 1),
        ("forked", 1, 1.5),
        ("loaded", 1.5, 4),
        ("probed", 4, 4.25),
    ]
    assert {(span.trace, span.parent) for span in phases} == {(top.trace, top.id)}
    assert climb.activation(None).phases_ms[Phase.LOADED] == pytest.approx(2500)


def test_one_that_failed_names_its_class() -> None:
    (top,) = spans_of(Climbed("act-2", an_assignment(), Rung.ASLEEP, 1000.0, 1.0, (), "engine_died"))
    assert (top.error, top.attributes["standby.rung"]) == ("engine_died", "asleep")


def test_one_that_begins_over_and_over_is_bounded() -> None:
    climb = Climb(Rung.COLD, began=0.0, called_at=0.0, demand_at=None)
    for at in range(10 * MOST_STEPS):
        climb.note(object.__new__(Spawned), float(at))
    assert len(climb.steps) == MOST_STEPS
