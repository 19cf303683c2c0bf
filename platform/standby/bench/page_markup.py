"""HTML and SVG made of values: what is not ``Markup`` is escaped, so that no name can become part of the page."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Final, TypeAlias

_VOID: Final = frozenset({"meta"})
# Control characters have no place in HTML; marks of writing direction would turn the words beside a hostile name around.
_UNPRINTABLE: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Content: TypeAlias = "str | Markup | Iterable[Content] | None"
Attribute: TypeAlias = str | float | bool | None


def escaped(text: str) -> Markup:
    """Return ``text`` as HTML, good for content and for quoted attributes; what cannot be seen is spelled out."""
    return Markup(html.escape(_UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text), quote=True))


def tag(name: str, /, *content: Content, **attributes: Attribute) -> Markup:
    """Return one element. Attributes: a trailing ``_`` is dropped, others are hyphens; None and False leave one out."""
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{joined(content)}</{name}>")


def joined(content: Content) -> Markup:
    """Return all of ``content``, one after the other; plain text is escaped."""
    if content is None:
        return Markup("")
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return escaped(content)
    return Markup("".join(joined(part) for part in content))


def data_block(identifier: str, content: object) -> Markup:
    """Return JSON as a block that no browser runs; nothing in it can end the block (HTML, 4.12.1.3)."""
    text = json.dumps(content, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(f'<script type="application/json" id="{escaped(identifier)}">{text}</script>')


def number(value: float) -> str:
    """Return a coordinate: short, never in a form that SVG does not know."""
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    text = number(value) if isinstance(value, int | float) else escaped(value)
    return f' {name}="{text}"'
