"""How long prompts and answers are, in tokens, and prompts of about that length made of plain words."""

from __future__ import annotations

import random
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from standby.domain.errors import InvalidInput

Draw = Callable[[random.Random], int]

MOST_TOKENS: Final = 1_000_000
MOST_SIGMA: Final = 10.0
"""With it one length in six is e^10 times the median; beyond 100 some would be no numbers."""
_TEXT_WORDS: Final = 1 << 16
_FORMS: Final = "a number (128), a range (16-512), normal:MEAN,DEVIATION or lognormal:MEDIAN,SIGMA"
_DRAWN: Final = re.compile(r"(normal|lognormal):([0-9.]+),([0-9.]+)")
_RANGE: Final = re.compile(r"(\d+)-(\d+)")

# Common words that most tokenizers of English know as one token with the space before them.
_WORDS: Final = """
    time year people way day man thing woman life child world school state family student group country problem hand part
    place case week company system program question work government number night point home water room mother area money
    story fact month lot right study book eye job word business issue side kind head house service friend father power hour
    game line end member law car city community name president team minute idea body information back parent face others
    level office door health person art war history party result change morning reason research girl guy moment air teacher
    force education foot boy age policy music market sense nation plan college interest death experience effect use class
""".split()  # noqa: SIM905 (one to a line they would fill four screens)


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of whole numbers from 1 on; ``text`` is how it was written."""

    text: str
    draw: Draw


def parse_lengths(text: str, option: str) -> Lengths:
    """Return the distribution that an option asks for. Raises InvalidInput naming the forms that there are."""
    cleaned = text.strip().lower()
    if cleaned.isdecimal() and 1 <= int(cleaned) <= MOST_TOKENS:
        fixed = int(cleaned)
        return Lengths(cleaned, lambda _: fixed)
    if (span := _RANGE.fullmatch(cleaned)) and 1 <= int(span[1]) <= int(span[2]) <= MOST_TOKENS:
        low, high = int(span[1]), int(span[2])
        return Lengths(cleaned, lambda chance: chance.randint(low, high))
    if drawn := _DRAWN.fullmatch(cleaned):
        middle, spread = _number(drawn[2], text, option), _number(drawn[3], text, option)
        if drawn[1] == "lognormal" and spread > MOST_SIGMA:
            raise InvalidInput(f"{option} {text!r}: a sigma of {spread:g} is not possible", remedy=f"give 0 to {MOST_SIGMA:g}")
        return _drawn(cleaned, drawn[1], middle, spread)
    raise InvalidInput(f"{option} {text!r} is not understood", remedy=f"give {_FORMS}, of 1 to {MOST_TOKENS} tokens")


def _number(digits: str, text: str, option: str) -> float:
    try:
        return float(digits)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not understood", remedy=f"give {_FORMS}") from None


def _drawn(text: str, kind: str, middle: float, spread: float) -> Lengths:
    if kind == "normal":
        return Lengths(text, lambda chance: _bounded(chance.gauss(middle, spread)))
    return Lengths(text, lambda chance: _bounded(middle * chance.lognormvariate(0.0, spread)))


def _bounded(value: float) -> int:
    return max(1, min(MOST_TOKENS, round(min(value, MOST_TOKENS))))


class Text:
    """Plain words from which prompts of any length are cut.

    The lengths are approximate: one word is one token in most tokenizers of English, and a chat template adds some of its own.
    Prompts begin at random places, so that no cache of prefixes answers for the engine.
    """

    def __init__(self, chance: random.Random) -> None:
        words = chance.choices(_WORDS, k=_TEXT_WORDS)
        self._text = " ".join(words)
        self._begins = array("l", accumulate((len(word) + 1 for word in words), initial=0))

    def window(self, words: int, place: float) -> str:
        """Return that many words, from a ``place`` in 0 to 1 of the text on; what is longer than the text repeats it."""
        whole, rest = divmod(words, _TEXT_WORDS)
        first = int(place * (_TEXT_WORDS - rest))
        cut = self._text[self._begins[first] : self._begins[first + rest] - 1] if rest else ""
        return " ".join([cut, *[self._text] * whole]).strip()
