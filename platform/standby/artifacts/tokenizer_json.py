"""A ``tokenizer.json`` as one of the package ``tokenizers``, where it may count in a process that serves everybody.

The file is hostile until proven otherwise: a pattern can take minutes for a short text, and a replacement or a padding make
gigabytes of it. So only parts whose time and memory grow with the text alone are taken, and patterns only by name.
"""

from __future__ import annotations

from typing import Any, Final

import pydantic_core
from tokenizers import Tokenizer, models

MAX_GROWTH: Final = 64
"""By how much all replacements together may make a text longer."""

# Parts without a pattern or a text of their own.
_PLAIN: Final = frozenset(
    {
        *("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "BertNormalizer"),
        *(
            "ByteLevel",
            "BertPreTokenizer",
            "Digits",
            "Metaspace",
            "Punctuation",
            "UnicodeScripts",
            "Whitespace",
            "WhitespaceSplit",
        ),
    }
)
_ENGLISH: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORD: Final = r"[^\r\n\p{L}\p{N}]?"
_REST: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATHS: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
# By which the usual models split text into words: none tries a word more than once or twice.
_PATTERNS: Final = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        rf"{_ENGLISH}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}|{_MARKS}|{_REST}",
        rf"{_ENGLISH}|{_WORD}\p{{L}}+|\p{{N}}|{_MARKS}|{_REST}",
        rf"{_ENGLISH}|{_WORD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_REST}",
        rf"{_WORD}{_UPPER}*{_LOWER}+{_ENGLISH}?|{_WORD}{_UPPER}+{_LOWER}*{_ENGLISH}?|\p{{N}}{{1,3}}|{_PATHS}|{_REST}",
        rf"{_WORD}{_UPPER}*{_LOWER}+|{_WORD}{_UPPER}+{_LOWER}*|\p{{N}}|{_PATHS}|{_REST}",
        r"\p{N}{1,3}",
        r"\p{N}",
        r"[0-9]",
        r"\s",
    }
)


def json_tokenizer(content: bytes) -> Tokenizer | None:
    """Return the tokenizer; None where one of its parts is none that may count here. Blocking.

    Whatever else is wrong with the file the library tells by exceptions of its own, which have no common class.
    """
    tokenizer = Tokenizer.from_buffer(content)
    model = tokenizer.model
    if not isinstance(model, models.BPE) or model.dropout or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    parts = [_stated(part) for part in (tokenizer.normalizer, tokenizer.pre_tokenizer) if part is not None]
    if not all(_growth(part) <= MAX_GROWTH for part in parts):
        return None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _stated(part: Any) -> dict[str, Any]:
    stated: dict[str, Any] = pydantic_core.from_json(part.__getstate__())
    return stated


def _growth(part: dict[str, Any]) -> float:
    """Return by how much a part may make a text longer; infinite for one that may not be asked."""
    kind, pattern = part["type"], part.get("pattern", {})
    if kind in _PLAIN:
        return 1.0
    if kind == "Sequence":
        growth = 1.0
        for inner in part.get("normalizers") or part.get("pretokenizers") or ():
            growth *= _growth(inner)
        return growth
    if kind == "Prepend":
        return max(1, len(part["prepend"]))
    if kind == "Replace" and pattern.get("String"):
        return max(1, len(part["content"]))
    known = bool(pattern.get("String")) or pattern.get("Regex") in _PATTERNS
    return 1.0 if kind == "Split" and known else float("inf")
