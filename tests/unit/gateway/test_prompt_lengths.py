"""Tokens by bytes: what engines count, of which the template is a part that says nothing of a long text."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.gateway import prompt_lengths
from standby.gateway.prompt_lengths import UNKNOWN, Lengths, counted, tokens_of

pytestmark = pytest.mark.decision


def _known(*pairs: tuple[int, int]) -> Lengths:
    lengths = UNKNOWN
    for prompt_bytes, tokens in pairs:
        lengths = counted(lengths, prompt_bytes, tokens)
    return lengths


def test_before_anything_is_known_a_token_has_four_bytes() -> None:
    assert tokens_of(UNKNOWN, 2000) == 500


@pytest.mark.parametrize("times", [1, 3, 200])
@pytest.mark.parametrize(("prompt_bytes", "tokens"), [(10, 30), (42, 43), (30, 70)])
def test_short_chats_do_not_make_a_long_text_longer(prompt_bytes: int, tokens: int, times: int) -> None:
    """Read as a ratio, 42 bytes in 43 tokens would make 2827 tokens of 2750 bytes of English."""
    assert 500 < tokens_of(_known(*[(prompt_bytes, tokens)] * times), 2750) < 900


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000), per_byte=st.floats(0.15, 0.6), template=st.integers(0, 60), shortest=st.sampled_from([20, 600])
)
def test_it_finds_what_the_texts_are_like(seed: int, per_byte: float, template: int, shortest: int) -> None:
    """Prompts of mixed lengths, each a tenth off the line."""
    chance = random.Random(seed)
    lengths = [chance.randint(shortest, 8000) for _ in range(40)]
    known = _known(*[(one, round((template + per_byte * one) * chance.uniform(0.9, 1.1))) for one in lengths])
    assert tokens_of(known, 4000) == pytest.approx(4000 * per_byte, rel=0.15)


def test_other_texts_are_soon_taken_up() -> None:
    known = _known(*[(4000, 1020)] * 200, *[(4000, 2020)] * 100)
    assert tokens_of(known, 4000) == pytest.approx(2000, rel=0.15)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), max_size=30))
def test_no_text_has_more_tokens_or_fewer_than_is_possible(pairs: list[tuple[int, int]]) -> None:
    known = _known(*pairs)
    assert prompt_lengths.FEWEST <= known.per_byte <= prompt_lengths.MOST
