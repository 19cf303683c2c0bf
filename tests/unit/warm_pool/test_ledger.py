"""The memory ledger: host and devices, granted together or not at all, and who is pushed out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.domain.model import EngineKind
from standby.warm_pool.ledger import HOST, NOTHING, Claim, Ledger, reserve, zygote_claim
from standby.warm_pool.pushing import Sleeper, victims

pytestmark = pytest.mark.decision

RESOURCES = (HOST, "g0", "g1")
CLAIMS = st.builds(Claim, st.integers(0, 60), st.dictionaries(st.sampled_from(("g0", "g1")), st.integers(0, 60)))
SHORT = st.dictionaries(st.sampled_from(RESOURCES), st.integers(1, 80), min_size=1)


def sleeper(name: str, host: int = 0, *, idle_s: float = 1, gain_s: float = 10, **devices: int) -> Sleeper:
    return Sleeper(name, Claim(host, devices), idle_s=idle_s, wake_gain_s=gain_s)


def test_a_claim_follows_the_rung() -> None:
    ledger = reserve(Ledger(100), "a", Claim(80)).ledger
    ledger = ledger.claim("a", Claim(20))
    assert (ledger.free, reserve(ledger, "b", Claim(80)).granted) == (80, True)
    assert ledger.release("a").free == 100


def test_what_does_not_fit_is_refused_with_the_resource_and_the_numbers() -> None:
    ledger = reserve(Ledger(100, devices={"g0": 40}), "a", Claim(80, {"g0": 30})).ledger
    refusal = reserve(ledger, "b", Claim(30, {"g0": 25}))
    assert (refusal.granted, dict(refusal.short), refusal.ledger) == (False, {HOST: 10, "g0": 15}, ledger)
    assert refusal.reason == (
        "host memory is short by 10 bytes: needs 30 and holds 0, 20 of 100 are free; "
        "device g0 is short by 15 bytes: needs 25 and holds 0, 10 of 40 are free"
    )


def test_a_wake_that_fits_the_host_and_not_the_device_is_not_granted() -> None:
    """The sleeper holds its residue on the host only: its device has been given to another."""
    ledger = Ledger(100, devices={"g0": 40}).claim("sleeper", Claim(20)).claim("other", Claim(10, {"g0": 30}))
    answer = reserve(ledger, "sleeper", Claim(25, {"g0": 30}))
    assert (answer.granted, dict(answer.short)) == (False, {"g0": 20})


def test_an_instance_may_grow_into_what_it_holds() -> None:
    ledger = reserve(Ledger(100), "a", Claim(40)).ledger
    assert reserve(ledger, "a", Claim(100)).granted
    refusal = reserve(ledger, "a", Claim(101))
    assert (dict(refusal.short), refusal.hopeless) == ({HOST: 1}, True)


def test_a_residue_above_what_was_foreseen_is_part_of_what_lacks() -> None:
    ledger = Ledger(100).claim("grew", Claim(130))
    assert (ledger.free, dict(reserve(ledger, "b", Claim(10)).short)) == (0, {HOST: 40})
    assert reserve(ledger, "grew", Claim(120)).granted, "who asks for less is never refused"


def test_a_cordoned_or_unknown_device_gets_nothing_new() -> None:
    ledger = Ledger(100, devices={"g0": 40}).claim("a", Claim(10, {"g0": 30})).cordon("g0", "Xid 79")
    refusal = reserve(ledger, "b", Claim(1, {"g0": 1}))
    assert (refusal.granted, refusal.hopeless, refusal.reason) == (False, True, "device g0 is cordoned: Xid 79")
    assert reserve(ledger, "a", Claim(20, {"g0": 30})).granted, "what is held stays held"
    assert reserve(ledger.cordon("g0", ""), "b", Claim(1, {"g0": 1})).granted
    assert reserve(ledger, "b", Claim(1, {"g7": 1})).hopeless


def test_a_zygote_has_a_claim_of_its_own() -> None:
    assert zygote_claim(EngineKind.VLLM) == "zygote/vllm"


@given(st.lists(st.tuples(st.sampled_from("abcd"), CLAIMS), max_size=40))
def test_promises_never_exceed_the_capacity_of_any_resource(steps: list[tuple[str, Claim]]) -> None:
    ledger = Ledger(100, devices={"g0": 80, "g1": 50})
    for holder, need in steps:
        answer = reserve(ledger, holder, need)
        assert answer.granted == (not answer.short)
        ledger = answer.ledger
        for resource in RESOURCES:
            assert 0 <= ledger.reserved_of(resource) <= ledger.capacity_of(resource)


@given(st.dictionaries(st.sampled_from("abcd"), CLAIMS), CLAIMS)
def test_a_release_gives_back_exactly_what_was_held(others: dict[str, Claim], claim: Claim) -> None:
    ledger = Ledger(100, devices={"g0": 80})
    for holder, held in others.items():
        ledger = ledger.claim(holder, held)
    after = ledger.claim("x", claim).claim("x", claim).release("x").release("x")
    assert after == ledger
    assert after.held("x") == NOTHING


@given(st.dictionaries(st.sampled_from("abc"), CLAIMS), CLAIMS)
def test_what_is_short_is_exactly_what_has_to_be_freed(others: dict[str, Claim], need: Claim) -> None:
    ledger = Ledger(100, devices={"g0": 80, "g1": 50})
    for holder, held in others.items():
        ledger = ledger.claim(holder, held)
    answer = reserve(ledger, "x", need)
    if not answer.granted:
        roomier = Ledger(
            100 + answer.short.get(HOST, 0),
            ledger.claims,
            {name: bytes_ + answer.short.get(name, 0) for name, bytes_ in ledger.devices.items()},
        )
        assert reserve(roomier, "x", need).granted


# ---- who is pushed out ----------------------------------------------------------------------------------------------


def test_the_cheapest_sleeper_to_lose_goes_first() -> None:
    sleepers = [sleeper("small-recent", 10), sleeper("big-old", 100, idle_s=1000), sleeper("big-recent", 100)]
    assert victims(sleepers, {HOST: 50}) == ("big-old",)
    assert victims(sleepers, {HOST: 150}) == ("big-old", "big-recent")
    assert victims(sleepers, {HOST: 1000}) == (), "nobody is stopped in vain"


def test_a_sleeper_that_gave_its_device_memory_back_is_not_ended_for_a_device() -> None:
    sleepers = [sleeper("level-2", 500, idle_s=1000), sleeper("level-0", 10, g0=30)]
    assert victims(sleepers, {"g0": 20}) == ("level-0",)
    assert victims(sleepers[:1], {"g0": 20}) == ()


def test_every_short_resource_is_made_to_fit() -> None:
    sleepers = [sleeper("host", 60, idle_s=9), sleeper("device", 5, g0=30, idle_s=5)]
    assert set(victims(sleepers, {HOST: 50, "g0": 30})) == {"host", "device"}


def test_a_sleeper_that_turns_out_not_to_be_needed_is_spared() -> None:
    """The small one is cheapest to lose, but the big one that has to go frees enough alone."""
    sleepers = [sleeper("small-old", 10, idle_s=10_000), sleeper("big", 100)]
    assert victims(sleepers, {HOST: 90}) == ("big",)


def test_a_zygote_goes_last_and_only_where_it_is_in_the_way() -> None:
    zygote = sleeper("zygote/vllm", 50, gain_s=0)
    assert victims([sleeper("a", 40, gain_s=99)], {HOST: 30}, [zygote]) == ("a",)
    assert victims([sleeper("a", 40)], {HOST: 80}, [zygote]) == ("a", "zygote/vllm")
    assert victims([sleeper("a", 40)], {HOST: 45}, [zygote]) == ("zygote/vllm",)
    assert victims([], {HOST: 60}, [zygote]) == ()


@given(st.lists(st.builds(sleeper, st.uuids().map(str), st.integers(0, 60), g0=st.integers(0, 60)), max_size=8), SHORT)
def test_victims_free_enough_and_none_of_them_is_superfluous(sleepers: list[Sleeper], short: dict[str, int]) -> None:
    chosen = [one for one in sleepers if one.instance in victims(sleepers, short)]
    enough = all(sum(one.held.of(name) for one in sleepers) >= by for name, by in short.items())
    assert bool(chosen) == enough
    for spared in chosen:
        left = [one for one in chosen if one is not spared]
        assert any(sum(one.held.of(name) for one in left) < by for name, by in short.items())
