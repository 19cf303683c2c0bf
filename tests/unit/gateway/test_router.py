"""Which instance gets a request: loads, ties, permits, adapters, and what is held against an instance."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.draw import chance, two_of
from standby.gateway.breaker import Permit
from standby.gateway.router import Candidate, Choice, at_home, choose

pytestmark = pytest.mark.decision

_SHUT = Permit(False, False, "breaker open: 3 of 3 failed", 9.0)
_PROBE = Permit(True, True, "probe 1 of 1: 3 of 3 failed")

candidates = st.lists(
    st.builds(
        Candidate,
        st.uuids().map(str),
        st.integers(0, 6),
        st.integers(1, 6),
        st.sampled_from([0.0, 0.0, 0.0, 5.0]),
        permit=st.sampled_from([None, None, None, _SHUT, _PROBE]),
        adapters=st.sampled_from([(), ("fr",), ("fr", "de")]),
        pressed=st.booleans(),
        unread=st.sampled_from([0, 0, 100, 1023, 1024, 9000]),
    ),
    max_size=8,
    unique_by=lambda one: one.instance,
)


@given(candidates, st.integers(0, 10_000), st.sampled_from([None, "fr", "it"]), st.booleans(), st.data())
def test_nobody_better_is_passed_over(
    some: list[Candidate], ticket: int, adapter: str | None, spare: bool, data: st.DataObject
) -> None:
    """The oracle throws out one reason after the other, where the router adds steps to loads."""
    names = [one.instance for one in some]
    tried = frozenset(data.draw(st.lists(st.sampled_from(names), max_size=2))) if names else frozenset()
    able = [one for one in some if one.outstanding < one.slots and one.blocked_until <= 1.0]
    able = [one for one in able if one.permit is None or one.permit.allowed]
    able = [one for one in able if adapter is None or adapter in one.adapters]
    fresh = [one for one in able if not (one.instance in tried or (tried and one.permit is not None))] or able
    roomy = [one for one in fresh if not (spare and one.pressed)] or fresh
    sooner = [one for one in roomy if one.unread // 1024 == min(other.unread // 1024 for other in roomy)]
    least = min((one.outstanding / one.slots for one in sooner), default=None)

    choice = choose(some, 1.0, ticket, adapter=adapter, tried=tried, spare=spare)

    if least is None:
        assert choice.instance is None
        moments = [one.blocked_until for one in some if one.blocked_until > 1.0] + [9.0]
        assert choice.retry_at is None or choice.retry_at in moments
        return
    chosen = next(one for one in some if one.instance == choice.instance)
    assert chosen in sooner
    assert chosen.outstanding / chosen.slots == least
    assert choice.probe == (chosen.permit is _PROBE)


def test_the_one_that_reads_it_first_wins_however_many_it_answers_already() -> None:
    some = [Candidate("reads", 1, 4, unread=4000), Candidate("answers", 3, 4)]
    choice = choose(some, 0.0, 0)
    assert choice.instance == "answers"
    assert choice.reason == "fewest bytes of prompts to be read before it: 0; least outstanding: 3 of 4 slots"
    assert choose([some[0], Candidate("full", 4, 4)], 0.0, 0).instance == "reads"


def test_a_prompt_that_is_read_in_one_step_is_no_reason_to_join_a_crowd() -> None:
    some = [Candidate("reads", 1, 4, unread=1023), Candidate("answers", 3, 4)]
    choice = choose(some, 0.0, 0)
    assert (choice.instance, choice.reason) == ("reads", "least outstanding: 1 of 4 slots")


def test_a_slower_one_takes_longer_to_read_as_much() -> None:
    some = [Candidate("slow", 0, 4, speed=0.5, unread=1500), Candidate("quick", 0, 4, unread=2000)]
    assert choose(some, 0.0, 0).instance == "quick"


def test_an_instance_twice_as_slow_gets_about_half() -> None:
    """Of requests that come one after the other, when all are idle."""
    pair = [Candidate("quick", 0, 4), Candidate("slow", 0, 4, speed=0.5)]
    chosen = Counter(choose(pair, 0.0, ticket).instance for ticket in range(6000))
    assert 0.45 < chosen["slow"] / chosen["quick"] < 0.55


def test_one_that_fails_quickly_does_not_draw_the_traffic() -> None:
    """It is always idle, so that the fewest outstanding alone would send everything there; but it never gets nothing."""
    some = [Candidate("sound", 3, 4), Candidate("failing", 0, 4, health=0.1)]
    chosen = Counter(choose(some, 0.0, ticket).instance for ticket in range(6000))
    assert 0.07 < chosen["failing"] / 6000 < 0.13
    assert choose([some[1]], 0.0, 1).instance == "failing"


def test_every_pair_is_as_likely() -> None:
    pairs = Counter(frozenset(two_of(5, ticket)) for ticket in range(20_000))
    assert len(pairs) == 10
    assert all(len(pair) == 2 and 1700 < times < 2300 for pair, times in pairs.items())


def test_chance_is_even_and_repeats() -> None:
    drawn = [chance(ticket) for ticket in range(10_000)]
    assert drawn == [chance(ticket) for ticket in range(10_000)]
    tenths = Counter(int(number * 10) for number in drawn)
    assert set(tenths) == set(range(10))
    assert all(850 < times < 1150 for times in tenths.values())


def test_a_broken_instance_says_when_it_may_be_asked() -> None:
    choice = choose([Candidate("a", 0, 4, permit=_SHUT), Candidate("b", 4, 4)], 1.0, 0)
    assert choice == Choice(None, f"no free slot: 1 full, 1 broken ({_SHUT.reason}), next unblock 9.0", 9.0)


def test_an_adapter_that_nobody_has_is_named() -> None:
    choice = choose([Candidate("a", 0, 4, adapters=("fr",))], 1.0, 0, adapter="it")
    assert (choice.instance, choice.reason) == (None, "none of 1 instances has loaded the adapter 'it'")


def test_what_speaks_against_the_only_one_is_said() -> None:
    choice = choose([Candidate("a", 1, 4, pressed=True)], 1.0, 0, tried=frozenset({"a"}), spare=True)
    assert choice.instance == "a"
    assert choice.reason == (
        "least outstanding: 1 of 4 slots; it was tried already or is being probed, its engine's memory is nearly full, "
        "but no other can"
    )
    assert choose([Candidate("a", 1, 4, pressed=True)], 1.0, 0, spare=True, strict=True).instance is None


def test_a_home_may_be_a_little_busier_than_others() -> None:
    assert [at_home(load, 4.0) for load in (5, 6, 7)] == [True, True, False]
    assert at_home(1, 0.0)
    assert not at_home(2, 0.5)
