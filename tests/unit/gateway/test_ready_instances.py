"""The ready instances of a variant with one engine: breakers, homes, adapters, sessions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.ask import Ask
from standby.domain.priority import Priority
from standby.domain.traffic import Tier, TrafficPolicy
from standby.gateway.results import Result, ResultKind
from support.ready_rig import BREAKER, CONNECT, OK, Rig

pytestmark = pytest.mark.decision


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.sampled_from(list(ResultKind))), max_size=60))
def test_what_is_outstanding_is_what_was_taken_and_not_given_back(moves: list[tuple[str, bool, ResultKind]]) -> None:
    """Also of instances that are gone, and never more than a slot each where the choice said so."""
    rig, open_ = Rig(), []
    for name in "abcd":
        rig.has(name, slots=2)
    for place, (name, leaves, kind) in enumerate(moves):
        rig.now += 1
        choice = rig.ready.choose(rig.now)
        if choice.instance is not None:
            assert rig.ready.outstanding.get(choice.instance, 0) < 2
            rig.ready.took(choice.instance, probe=choice.probe)
            open_.append((choice.instance, choice.probe))
        if leaves:
            rig.has(name, slots=2, epoch=place + 2, removed=place % 3 == 0)
        if open_ and place % 2:
            instance, probe = open_.pop(0)
            rig.ready.gave_back(instance, 1, Result(kind, 0.5), rig.now, probe=probe)
        assert rig.ready.outstanding == Counter(instance for instance, _ in open_)


def test_a_broken_instance_is_passed_over_and_probed_alone() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    rig.fail("a")
    assert {rig.ask().instance for _ in range(10)} == {"b"}
    rig.now += 5
    probes = [choice for choice in (rig.ready.choose(rig.now) for _ in range(10)) if choice.probe]
    assert probes
    rig.ready.took("a", probe=True)
    assert {rig.ready.choose(rig.now).instance for _ in range(10)} == {"b"}
    rig.ready.gave_back("a", 1, OK, rig.now, probe=True)
    assert {rig.ask().instance for _ in range(10)} == {"a", "b"}


def test_the_last_instance_is_probed_and_never_abandoned() -> None:
    """One request at a time, whatever its breaker's time says."""
    rig = Rig()
    rig.has("a")
    rig.fail("a")
    choice = rig.ready.choose(rig.now)
    assert (choice.instance, choice.probe) == ("a", True)
    assert "every instance is broken" in choice.reason
    rig.ready.took("a", probe=True)
    assert rig.ready.choose(rig.now).instance is None
    rig.ready.gave_back("a", 1, OK, rig.now, probe=True)
    assert not rig.ready.choose(rig.now).probe


def test_of_several_broken_ones_the_one_whose_time_comes_first_is_probed() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    rig.fail("b")
    rig.now += 1
    rig.fail("a")
    assert rig.ready.choose(rig.now).instance == "b"


def test_best_effort_has_no_breaker() -> None:
    rig = Rig(TrafficPolicy(tier=Tier.BEST_EFFORT, breaker=BREAKER))
    rig.has("a")
    rig.fail("a", times=20)
    choice = rig.ready.choose(rig.now)
    assert (choice.instance, choice.probe) == ("a", False)


def test_a_ghost_is_passed_over_whatever_its_record_says() -> None:
    """Field case B35: nobody listens at its door, and the news of its end has not come."""
    rig = Rig(TrafficPolicy())
    rig.has("ghost")
    rig.has("alive")
    ready = rig.ready.find("ghost", 1)
    assert ready is not None
    for _ in range(3):
        rig.fail("ghost", CONNECT, times=1)
        ready.blocked_until = rig.now + 1.0
        rig.has("ghost", in_flight=1)  # its last word is repeated, and changes nothing
        assert {rig.ask().instance for _ in range(10)} == {"alive"}
        rig.now += 1.0
    assert {rig.ask().instance for _ in range(10)} == {"alive"}
    rig.now += 5.0
    assert "ghost" in {rig.ready.choose(rig.now).instance for _ in range(10)}
    rig.has("ghost", epoch=2)  # its node has announced it anew
    assert {rig.ask().instance for _ in range(10)} == {"alive", "ghost"}


def test_prompts_that_begin_alike_go_to_one_instance_while_it_has_room() -> None:
    rig = Rig()
    for name in "abcde":
        rig.has(name)
    homes = {prefix: {rig.ask(ask=Ask(prefix=prefix)).instance for _ in range(10)} for prefix in range(1, 60)}
    assert all(len(home) == 1 for home in homes.values())
    assert len(set().union(*homes.values())) == 5
    (home,) = homes[7]
    assert home is not None
    rig.fill(home, 2)
    away = rig.ask(ask=Ask(prefix=7))
    assert away.instance != home
    for name in "abcde":
        rig.fill(name, 1)
    assert rig.ask(ask=Ask(prefix=7)).instance != home  # 3 against 1.4 on average
    rig.fill(next(name for name in "abcde" if name != home), 2)
    back = rig.ask(ask=Ask(prefix=7))
    assert (back.instance, back.reason.split(" (")[0]) == (home, "prompts that begin so are at home here")


def test_affinity_can_be_switched_off() -> None:
    rig = Rig(TrafficPolicy(prefix_affinity=False))
    rig.has("a")
    rig.has("b")
    assert {rig.ask(ask=Ask(prefix=7)).instance for _ in range(10)} == {"a", "b"}


def test_only_who_has_the_adapter_is_asked() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b", adapters=("fr",))
    rig.has("c")
    assert {rig.ask(ask=Ask(adapter="fr", prefix=7)).instance for _ in range(10)} == {"b"}
    missing = rig.ask(ask=Ask(adapter="it"))
    assert (missing.instance, missing.retry_at) == (None, None)
    assert "'it'" in missing.reason


@pytest.mark.parametrize("priority", Priority)
def test_full_memory_spares_what_is_not_urgent(priority: Priority) -> None:
    rig = Rig()
    for name in "abcd":
        rig.has(name, memory_pressure=0.94 if name != "d" else 0.92)
    chosen = {rig.ask(priority=priority).instance for _ in range(40)}
    assert chosen == ({"d"} if priority in (Priority.NORMAL, Priority.BATCH) else set("abcd"))


def test_a_retry_goes_elsewhere_where_it_can() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    assert {rig.ask(tried=frozenset({"a"})).instance for _ in range(10)} == {"b"}
    assert rig.ask(tried=frozenset({"a", "b"})).instance is not None


def test_a_session_stays_until_its_instance_is_broken() -> None:
    rig = Rig()
    rig.has("a")
    rig.has("b")
    assert {rig.ask(wanted="a").instance for _ in range(10)} == {"a"}
    rig.fail("a")
    assert {rig.ask(wanted="a").instance for _ in range(10)} == {"b"}


def test_an_instance_that_thrashes_gets_fewer_at_once() -> None:
    """And all of its slots again when it has recovered; with the policy off it always gets them."""
    slow, quick = Result(ResultKind.OK, 20.0, 18.0, 100, 20, True), OK

    def run(rig: Rig, result: Result, times: int) -> int:
        for _ in range(times):
            while rig.ready.choose(rig.now).instance is not None:
                rig.ready.took("a")
            rig.ready.gave_back("a", 1, result, rig.now)
        return rig.ready.outstanding.get("a", 0) + 1

    rigs = [Rig(TrafficPolicy(adaptive_concurrency=on)) for on in (True, False)]
    for rig in rigs:
        rig.has("a", slots=16)
        for _ in range(20):
            rig.ask(result=quick)
    assert [run(rig, slow, 60) for rig in rigs] == [pytest.approx(4, abs=3), 16]
    assert [run(rig, quick, 400) for rig in rigs] == [16, 16]
    assert rigs[0].ready.slots == 16


def test_how_long_a_slot_is_held_is_measured() -> None:
    rig = Rig()
    rig.has("a")
    assert rig.ready.service_s(rig.now) is None
    for _ in range(100):
        rig.ask(result=Result(ResultKind.OK, 2.0))
    assert rig.ready.service_s(rig.now) == pytest.approx(2.0)
