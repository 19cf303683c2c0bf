"""Which answer becomes a canary, and when a later one is the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.runtime.canary import (
    CLEAR_MARGIN,
    MOST_PIECES,
    PROMPTS,
    WAKE_PIECES,
    Match,
    Mismatch,
    choose,
    clear_pieces,
    confirmed,
    verdict,
    wake_pieces,
)
from standby.runtime.engines.base import Canary, ProbeResult

pytestmark = pytest.mark.decision

STEPS = st.lists(st.tuples(st.text(min_size=1, max_size=3), st.floats(0, 10)), min_size=1, max_size=12)


def said(prompt: str, *steps: tuple[str, float], ms: float = 50.0) -> ProbeResult:
    return ProbeResult(ms=ms, prompt=prompt, pieces=tuple(t for t, _ in steps), margins=tuple(m for _, m in steps))


def test_the_longest_clear_front_wins_and_of_equals_the_earliest() -> None:
    tie = said("a", (" x", 3.0), (" y", 0.1), (" z", 9.0))
    two = said("b", (" x", 3.0), (" y", 0.5))
    other = said("c", (" x", 9.0), (" y", 9.0))
    assert choose([tie, two, other]) == Canary(prompt="b", pieces=(" x", " y"))
    assert choose([tie]) == Canary(prompt="a", pieces=(" x",))


def test_nothing_clear_is_no_canary() -> None:
    assert choose([]) is None
    assert choose([said("a", (" x", 0.49))]) is None
    assert choose([ProbeResult(ms=1, prompt="a", pieces=("",))]) is None


def test_an_engine_without_margins_is_held_to_its_first_piece() -> None:
    results = [ProbeResult(ms=1, prompt="a", pieces=("The",)), ProbeResult(ms=1, prompt="b", pieces=("One",))]
    assert choose(results) == Canary(prompt="a", pieces=("The",))


@given(steps=STEPS)
def test_a_canary_holds_no_near_tie_and_is_a_front_of_the_answer(steps: list[tuple[str, float]]) -> None:
    clear = clear_pieces(said("p", *steps))
    assert len(clear) <= MOST_PIECES
    assert clear == tuple(token for token, _ in steps[: len(clear)])
    assert all(margin >= CLEAR_MARGIN for _, margin in steps[: len(clear)])


@given(steps=STEPS, pieces=st.integers(1, 8))
def test_the_same_answer_matches_at_every_length(steps: list[tuple[str, float]], pieces: int) -> None:
    result = said("p", *steps)
    canary = Canary(prompt="p", pieces=result.pieces[:8])
    assert verdict(canary, result) == Match(len(canary.pieces))
    shorter = result.model_copy(update={"pieces": result.pieces[:pieces]})
    assert verdict(canary, shorter, pieces) == Match(min(pieces, len(canary.pieces)))


@given(steps=STEPS, place=st.integers(0, 7))
def test_one_other_token_is_a_mismatch_unless_it_comes_later(steps: list[tuple[str, float]], place: int) -> None:
    result = said("p", *steps)
    canary = Canary(prompt="p", pieces=result.pieces[:8])
    place = min(place, len(canary.pieces) - 1)
    changed = tuple("other token" if at == place else piece for at, piece in enumerate(result.pieces))
    other = result.model_copy(update={"pieces": changed})
    assert isinstance(verdict(canary, other), Mismatch)
    if place > 0:
        assert verdict(canary, other, place) == Match(place)


def test_a_mismatch_says_the_two_answers_up_to_where_they_part() -> None:
    canary = Canary(prompt="1, 2,", pieces=(" ", "3", ",", " "))
    found = verdict(canary, ProbeResult(ms=1, pieces=(" ", "7", "!", "secret")))
    assert isinstance(found, Mismatch)
    assert found.reason == "greedy answer to '1, 2,' is ' 7', and was ' 3' (token 2 of 4)"


def test_an_answer_that_ends_early_is_a_mismatch() -> None:
    canary = Canary(prompt="p", pieces=("a", "b"))
    assert isinstance(verdict(canary, ProbeResult(ms=1, pieces=("a",))), Mismatch)
    found = verdict(canary, ProbeResult(ms=1, pieces=()))
    assert isinstance(found, Mismatch)
    assert "is nothing, and was 'a'" in found.reason


@pytest.mark.parametrize(
    ("ms", "again", "kept"),
    [
        (50.0, "abcdefgh", 8),
        (1000.0, "abcdefgh", 4),
        (60_000.0, "abcdefgh", WAKE_PIECES),
        (50.0, "abXdefgh", 2),
        (50.0, "Xbcdefgh", None),
    ],
)
def test_only_what_comes_again_in_good_time_is_kept(ms: float, again: str, kept: int | None) -> None:
    canary = Canary(prompt="p", pieces=tuple("abcdefgh"))
    found = confirmed(canary, ProbeResult(ms=ms, pieces=tuple(again)))
    assert (None if found is None else len(found.pieces)) == kept


def test_few_tokens_after_a_light_sleep_and_all_of_them_after_a_deep_one() -> None:
    canary = Canary(prompt="p", pieces=tuple("abcdefgh"))
    assert wake_pieces(canary, "stopped") == wake_pieces(canary, "level 1") == wake_pieces(canary, "") == WAKE_PIECES
    assert wake_pieces(canary, "level 2") == 8
    assert wake_pieces(Canary(prompt="p", pieces=("a",)), "stopped") == 1


def test_prompts_are_distinct_and_short() -> None:
    assert len(set(PROMPTS)) == len(PROMPTS)
    assert all(len(prompt) <= 32 for prompt in PROMPTS)
