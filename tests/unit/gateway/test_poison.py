"""The book of requests that kill engines (field case B34)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.gateway.poison import (
    ONE_DEATH_S,
    REFUSED_FOR_S,
    WORD_S,
    Conviction,
    Death,
    Kept,
    PoisonBook,
    Standing,
    Verdict,
    fingerprint,
)

WHO = Kept("acme", "e", 4)
BOOM = fingerprint(WHO, b"BOOM")
CALM = fingerprint(WHO, b"calm")


def test_alone_with_a_dead_engine_is_convicted_and_forgotten_in_time() -> None:
    told: list[Conviction] = []
    book = PoisonBook(on_conviction=told.append)
    assert book.empty
    assert book.died(WHO, BOOM, Death("i-1", 1, alone=True), 0.0) is Verdict.CONVICTED
    assert [conviction.fingerprint for conviction in told] == [BOOM]
    assert book.standing(BOOM, REFUSED_FOR_S - 1) is Standing.CONVICTED
    assert book.standing(BOOM, REFUSED_FOR_S) is Standing.UNKNOWN
    assert book.empty


def die(book: PoisonBook, instance: str, now: float, *bodies: bytes) -> list[Verdict]:
    """An engine dies with these in flight, which are told of it one after the other."""
    marks = [fingerprint(WHO, body) for body in bodies]
    left = range(len(marks), 0, -1)
    return [book.died(WHO, mark, Death(instance, 1, count == 1), now) for mark, count in zip(marks, left, strict=True)]


def test_of_several_in_flight_all_are_suspects_and_one_that_dies_alone_is_convicted() -> None:
    """The last one that is told of a death seems alone, and is not. The conviction explains both deaths."""
    book = PoisonBook()
    assert die(book, "i-1", 0.0, b"BOOM", b"calm") == [Verdict.SUSPECT] * 2
    assert book.standing(CALM, 0.5) is Standing.SUSPECT
    assert die(book, "i-2", 1.0, b"BOOM") == [Verdict.CONVICTED]
    assert book.died(WHO, fingerprint(WHO, b"late"), Death("i-2", 1, alone=False), 1.1) is Verdict.INNOCENT
    assert book.standing(CALM, 2.0) is Standing.UNKNOWN


def test_with_several_at_two_deaths_all_are_grave_suspects_and_a_third_death_convicts() -> None:
    book = PoisonBook()
    die(book, "i-1", 0.0, b"BOOM", b"calm", b"lucky")
    book.answered(fingerprint(WHO, b"lucky"))
    assert die(book, "i-2", 1.0, b"BOOM", b"calm", b"new") == [Verdict.GRAVE, Verdict.GRAVE, Verdict.SUSPECT]
    assert {book.standing(mark, 1.0) for mark in (BOOM, CALM)} == {Standing.GRAVE}
    assert book.died(WHO, BOOM, Death("i-3", 1, alone=False), 2.0) is Verdict.CONVICTED
    assert [book.standing(fingerprint(WHO, body), 2.0) for body in (b"BOOM", b"calm", b"new")] == [
        Standing.CONVICTED,
        Standing.UNKNOWN,
        Standing.UNKNOWN,
    ]


def test_a_death_that_is_explained_weighs_no_more() -> None:
    book = PoisonBook()
    die(book, "i-1", 0.0, b"calm", b"more")
    book.learn(Conviction(WHO, BOOM, REFUSED_FOR_S, "told"))
    assert die(book, "i-2", 1.0, b"calm", b"BOOM") == [Verdict.GRAVE, Verdict.CONVICTED]
    assert book.standing(CALM, 1.0) is Standing.SUSPECT


def test_the_same_body_several_times_at_one_death_is_one_suspect() -> None:
    book = PoisonBook()
    assert die(book, "i-1", 0.0, *[b"BOOM"] * 3) == [Verdict.SUSPECT] * 3
    assert die(book, "i-2", 1.0, *[b"BOOM"] * 3) == [Verdict.GRAVE] * 3


@pytest.mark.parametrize("first", [True, False])
def test_who_was_alone_at_one_of_two_deaths_is_convicted(first: bool) -> None:
    book = PoisonBook()
    for instance, alone, verdict in (("i-1", first, Verdict.SUSPECT), ("i-2", not first, Verdict.CONVICTED)):
        assert book.died(WHO, BOOM, Death(instance, 1, alone, read=False), 0.0) is verdict


def test_what_an_engine_may_not_have_read_is_a_suspect_though_it_was_alone() -> None:
    """A request that reached an engine at its end is not what it died of; a second death convicts all the same."""
    book = PoisonBook()
    assert book.died(WHO, CALM, Death("i-1", 1, alone=True, read=False), 0.0) is Verdict.SUSPECT
    assert book.standing(CALM, 0.1) is Standing.SUSPECT
    assert book.died(WHO, CALM, Death("i-2", 1, alone=True, read=False), 1.0) is Verdict.CONVICTED


def test_the_same_request_twice_in_one_death_is_no_second_death() -> None:
    book = PoisonBook()
    for moment in (0.0, 0.1, 0.2):
        assert book.died(WHO, BOOM, Death("i-1", 1, alone=False), moment) is Verdict.SUSPECT


def test_an_answer_clears_a_suspect() -> None:
    book = PoisonBook()
    book.died(WHO, CALM, Death("i-1", 1, alone=False), 0.0)
    book.answered(CALM)
    assert (book.standing(CALM, 0.0), book.empty) == (Standing.UNKNOWN, True)


def test_suspicion_ends_in_time() -> None:
    book = PoisonBook()
    book.died(WHO, CALM, Death("i-1", 1, alone=False), 0.0)
    assert book.standing(CALM, REFUSED_FOR_S) is Standing.UNKNOWN
    assert book.died(WHO, CALM, Death("i-1", 1, alone=False), 2 * REFUSED_FOR_S) is Verdict.SUSPECT


def test_an_engine_that_only_closed_a_connection_may_do_so_again() -> None:
    """The same epoch a while later is another death."""
    book = PoisonBook()
    book.died(WHO, CALM, Death("i-1", 1, alone=False), 0.0)
    other = fingerprint(WHO, b"more")
    assert book.died(WHO, other, Death("i-1", 1, alone=True), ONE_DEATH_S) is Verdict.CONVICTED


def test_a_fault_is_an_engines_end_only_if_its_node_says_so_at_about_that_time() -> None:
    """An engine of several processes answers 500 while the one that did the work is gone already."""
    book = PoisonBook()
    book.faulty(WHO, BOOM, Death("i-1", 1, alone=True), 0.0)
    assert book.empty
    book.engine_failed("i-2", 1, 0.1)
    book.engine_failed("i-1", 2, 0.1)
    assert book.empty
    book.engine_failed("i-1", 1, 0.1)
    assert book.standing(BOOM, 0.1) is Standing.CONVICTED
    book.faulty(WHO, CALM, Death("i-3", 1, alone=True), 1.0)
    book.engine_failed("i-3", 1, 1.0 + WORD_S + 0.1)
    assert book.standing(CALM, 3.0) is Standing.UNKNOWN


def test_a_nodes_word_may_come_first_and_several_faults_make_suspects() -> None:
    book = PoisonBook()
    book.engine_failed("i-1", 1, 0.0)
    book.faulty(WHO, BOOM, Death("i-1", 1, alone=False), 0.1)
    book.faulty(WHO, CALM, Death("i-1", 1, alone=True), 0.2)
    assert {book.standing(mark, 0.2) for mark in (BOOM, CALM)} == {Standing.SUSPECT}


def test_another_tenants_or_endpoints_same_body_is_another_request() -> None:
    marks = {fingerprint(Kept(tenant, endpoint, 4), b"BOOM") for tenant in ("a", "ab") for endpoint in ("e", "be", "b")}
    assert len(marks) == 6


def test_only_requests_of_the_same_place_and_length_need_to_be_compared() -> None:
    book = PoisonBook()
    book.died(WHO, BOOM, Death("i-1", 1, alone=True), 0.0)
    assert book.concerns(WHO)
    assert not any(book.concerns(other) for other in (Kept("acme", "e", 5), Kept("x", "e", 4), Kept("acme", "f", 4)))


def test_what_another_gateway_found_out_counts_here_and_is_not_told_on() -> None:
    told: list[Conviction] = []
    book = PoisonBook(on_conviction=told.append)
    book.died(WHO, BOOM, Death("i-1", 1, alone=False), 0.0)
    book.learn(Conviction(WHO, BOOM, 50.0, "an engine died"))
    assert (book.standing(BOOM, 1.0), told) == (Standing.CONVICTED, [])
    assert book.standing(BOOM, 50.0) is Standing.UNKNOWN
    assert book.empty


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 3), st.booleans(), st.sampled_from([0.0, 5.0, 700.0]), st.integers(0, 3)),
        max_size=120,
    )
)
def test_the_book_stays_bounded_and_its_count_agrees(steps: list[tuple[int, int, bool, float, int]]) -> None:
    """What is kept by place is always exactly what is suspected or convicted."""
    book, now = PoisonBook(entries=5), 0.0
    for body, epoch, alone, pause, what in steps:
        now += pause
        who = Kept("t", f"e{body % 3}", body)
        mark = fingerprint(who, b"%d" % body)
        if what == 0:
            book.answered(mark)
        elif what == 1:
            book.standing(mark, now)
        elif what == 2:
            book.learn(Conviction(who, mark, now + 60, "told"))
        else:
            book.died(who, mark, Death("i", epoch, alone), now)
        kept = [*(one.who for one in book._convicted.values()), *(one.who for one in book._suspects.values())]
        assert sum(book._kept.values()) == len(kept) <= 10
        assert set(book._kept) == set(kept)
        assert not set(book._convicted) & set(book._suspects)
        assert all(0 < len(one.deaths) <= 2 and not any(dead.solved for dead in one.deaths) for one in book._suspects.values())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_poison_among_many_ends_at_most_two_engines_unasked_and_three_in_all(data: st.DataObject) -> None:
    """As the dispatcher does in tier critical: one retry in any company, then one at a time, when the callers ask again."""
    book, deaths, now = PoisonBook(), 0, 0.0
    waiting = [b"BOOM", *(b"calm %d" % at for at in range(data.draw(st.integers(0, 5))))]
    for _ in range(2):
        company = data.draw(st.permutations(waiting))[: data.draw(st.integers(1, len(waiting)))]
        now += 1
        if b"BOOM" in company and book.standing(BOOM, now) is not Standing.CONVICTED:
            deaths += 1
            die(book, f"i-{deaths}", now, *company)
    while book.standing(BOOM, now) is not Standing.CONVICTED:
        grave = book.standing(BOOM, now) is Standing.GRAVE
        others = [] if grave else data.draw(st.permutations(waiting[1:]))
        deaths, now = deaths + 1, now + 1
        die(book, f"i-{deaths}", now, b"BOOM", *others)
    assert deaths <= 3
    assert {book.standing(fingerprint(WHO, body), now) for body in waiting[1:]} <= {Standing.UNKNOWN}
