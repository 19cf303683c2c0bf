"""The patterns of AWS's models are Java's; this is the part of them that differs from Python's."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

# Every character of Unicode's class Z; L and N together are exactly Python's ``\w`` without the underscore.
_SEPARATORS: Final = r" \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_INSIDE: Final = (
    (r"\p{L}\p{Z}\p{N}_", rf"\w{_SEPARATORS}"),
    (r"\p{ASCII}", r"\x00-\x7f"),
    (r"\p{Print}", r"\x20-\x7e"),
    # Java writes what lies beyond 16 bits as pairs.
    (r"\uD800\uDC00-\uDBFF\uDFFF", r"\U00010000-\U0010ffff"),
)
_BARE_CLASS: Final = re.compile(r"(?<!\[)\\p\{(?:ASCII|Print)\}(?=[*+?{]|$)")
# Nested quantifiers cost time that grows with the text; what is so long breaks a length limit anyway.
_LONGEST: Final = 16 * 1024


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return AWS's pattern for Python. Raises re.error for a class that is not known here."""
    unicode_classes = r"\p{L}" in pattern
    text = _BARE_CLASS.sub(lambda found: f"[{found[0]}]", pattern)
    for java, python in _INSIDE:
        text = text.replace(java, python)
    text = text.replace(r"\z", r"\Z")
    return re.compile(text, 0 if unicode_classes else re.ASCII)


def matches(pattern: str, text: str) -> bool:
    """Tell whether the whole of ``text`` matches, as AWS's services mean it."""
    return len(text) <= _LONGEST and compiled(pattern).fullmatch(text) is not None
