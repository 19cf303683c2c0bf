"""Router and admission: pure functions of what they are given."""

from __future__ import annotations

import pytest

from standby.domain.instance import Activation, Phase, Rung
from standby.gateway.answer_headers import phases_header
from standby.gateway.router import Candidate, choose

pytestmark = pytest.mark.decision


def test_least_outstanding_for_its_slots_wins() -> None:
    some = [Candidate("a", 2, 4), Candidate("b", 3, 8), Candidate("c", 1, 1)]
    assert choose(some, 0.0, 0).instance == "b"


def test_ties_rotate_with_the_ticket() -> None:
    some = [Candidate("a", 0, 4), Candidate("b", 0, 4)]
    assert [choose(some, 0.0, ticket).instance for ticket in range(4)] == ["a", "b", "a", "b"]


def test_blocked_instances_say_when_to_ask_again() -> None:
    some = [Candidate("a", 0, 4, blocked_until=5.0), Candidate("b", 4, 4), Candidate("c", 0, 4, blocked_until=3.0)]
    choice = choose(some, 1.0, 0)
    assert (choice.instance, choice.retry_at) == (None, 3.0)
    assert choose(some, 3.0, 0).instance == "c"


def test_phases_add_up_to_the_wait() -> None:
    activation = Activation(id="a", from_rung=Rung.STAGED, phases_ms={Phase.PROBED: 8.0, Phase.FORKED: 100.0})
    assert phases_header(activation, 0.120) == b"placed=12.0,forked=100.0,probed=8.0"
