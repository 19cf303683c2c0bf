"""How many tokens prompts of a variant have by their bytes, from what its engines have counted. Pure.

What an engine counts is ``a + b · bytes``: ``a`` for the words of its chat template, which a prompt's length does not tell,
and ``b`` for the text. Both are fitted with a prior each, so that short chats, of which the template is the greater part,
say little of the text, and long prompts say little of the template.
"""

from __future__ import annotations

from typing import Final, NamedTuple

TOKENS_PER_BYTE: Final = 0.25
"""The prior: English has about four bytes per token."""
FEWEST: Final = 1 / 8
MOST: Final = 1 / 1.5
_TEMPLATE: Final = 20.0
# How far from its prior each may lie before that takes as much evidence as one deviation.
_TEMPLATE_SPREAD: Final = 40.0
_SPREAD: Final = 0.1
# By how much single prompts differ from the line: a tenth of what is usual, and a few tokens.
_NOISE: Final = 0.1
_FINE: Final = 5.0
_FADE: Final = 0.98


class Lengths(NamedTuple):
    """Weighted sums over what was counted, of 1, bytes, tokens and products of them; ``per_byte`` is what follows."""

    per_byte: float = TOKENS_PER_BYTE
    w: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0


UNKNOWN: Final = Lengths()


def counted(lengths: Lengths, prompt_bytes: int, tokens: int) -> Lengths:
    """Return what is known after an engine has counted ``tokens`` for a prompt of so many bytes, template included."""
    if prompt_bytes <= 0 or tokens <= 0:
        return lengths
    weight = 1.0 / (_NOISE * TOKENS_PER_BYTE * prompt_bytes + _FINE) ** 2
    _, w, x, y, xx, xy = lengths
    w, x, y = w * _FADE + weight, x * _FADE + weight * prompt_bytes, y * _FADE + weight * tokens
    xx, xy = xx * _FADE + weight * prompt_bytes * prompt_bytes, xy * _FADE + weight * prompt_bytes * tokens
    # The normal equations of a + b · bytes, with each prior as one more row.
    template, slope = 1.0 / _TEMPLATE_SPREAD**2, 1.0 / _SPREAD**2
    aa, ay = w + template, y + template * _TEMPLATE
    bb, by = xx + slope, xy + slope * TOKENS_PER_BYTE
    per_byte = (aa * by - x * ay) / (aa * bb - x * x)
    if ay - per_byte * x < 0:  # no template has less than no words
        per_byte = by / bb
    return Lengths(min(MOST, max(FEWEST, per_byte)), w, x, y, xx, xy)


def tokens_of(lengths: Lengths, prompt_bytes: int) -> int:
    """Return how many tokens a text of so many bytes probably has, without a template."""
    return round(prompt_bytes * lengths.per_byte)
