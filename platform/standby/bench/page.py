"""One HTML file that shows everything: no request to anywhere, no program in it, good on paper and without eyes."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from standby.bench.page_markup import Markup, data_block, joined, tag
from standby.bench.page_style import STYLE
from standby.domain.errors import ConfigurationError

DATA_ID: Final = "figures"


class Tone(StrEnum):
    """How a word is meant."""

    PLAIN = ""
    GOOD = "good"
    BAD = "bad"
    SOFT = "soft"


class Part(Protocol):
    """Anything that a section can hold."""

    def markup(self) -> Markup:
        """Return it as HTML."""
        ...


@dataclass(frozen=True)
class Cell:
    """One cell of a table; ``note``: small, below it."""

    text: str
    note: str = ""
    tone: Tone = Tone.PLAIN

    def content(self) -> Markup:
        """Return what stands between the cell's tags."""
        text = tag("span", self.text, class_=self.tone.value) if self.tone else self.text
        return joined((text, tag("span", self.note, class_="note") if self.note else None))


@dataclass(frozen=True)
class Table:
    """A table whose first column names the row. ``numbers``: indices of the columns that are set to the right."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell | str, ...], ...]
    caption: str = ""
    numbers: frozenset[int] = frozenset()
    empty: str = "Nothing was measured."

    def markup(self) -> Markup:
        """Return the table, or ``empty`` as a sentence where it has no row."""
        if not self.rows:
            return tag("p", self.empty, class_="soft")
        head = tag("tr", (tag("th", name, scope="col", class_=self._class(at)) for at, name in enumerate(self.columns)))
        body = (tag("tr", (self._cell(at, cell) for at, cell in enumerate(row))) for row in self.rows)
        caption = tag("caption", self.caption) if self.caption else None
        # The wrapper scrolls on a narrow screen, and can be reached by keyboard for that.
        return tag(
            "div",
            tag("table", caption, tag("thead", head), tag("tbody", body)),
            class_="scroll",
            tabindex="0",
            role="region",
            aria_label=self.caption or self.columns[0],
        )

    def _class(self, at: int) -> str | None:
        return "n" if at in self.numbers else None

    def _cell(self, at: int, cell: Cell | str) -> Markup:
        content = cell.content() if isinstance(cell, Cell) else cell
        return tag("th", content, scope="row") if at == 0 else tag("td", content, class_=self._class(at))


@dataclass(frozen=True)
class Tiles:
    """Few figures that should be seen first: value, what it is, and a note."""

    items: tuple[tuple[str, str, str], ...]

    def markup(self) -> Markup:
        """Return them side by side."""
        tiles = (
            tag("li", tag("b", value), tag("span", label), tag("span", note, class_="note") if note else None)
            for value, label, note in self.items
        )
        return tag("ul", tiles, class_="tiles")


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    text: str
    tone: Tone = Tone.PLAIN

    def markup(self) -> Markup:
        """Return it."""
        return tag("p", self.text, class_=self.tone.value or None)


@dataclass(frozen=True)
class Banner:
    """One sentence that nobody may miss."""

    text: str
    good: bool

    def markup(self) -> Markup:
        """Return it."""
        return tag("p", self.text, class_="banner" if self.good else "banner bad", role=None if self.good else "alert")


@dataclass(frozen=True)
class Listing:
    """Sentences one below the other."""

    items: tuple[str, ...]

    def markup(self) -> Markup:
        """Return the list."""
        return tag("ul", (tag("li", item) for item in self.items), class_="plain")


@dataclass(frozen=True)
class Quote:
    """A question and what was answered."""

    question: str
    answer: str

    def markup(self) -> Markup:
        """Return both."""
        return tag("blockquote", tag("p", self.question, class_="soft"), tag("p", self.answer))


@dataclass(frozen=True)
class Code:
    """A command line, as it is typed."""

    text: str

    def markup(self) -> Markup:
        """Return it."""
        return tag("pre", tag("code", self.text))


@dataclass(frozen=True)
class Section:
    """A heading with what belongs below it."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """A whole report. ``data``: what the page was made from, kept in it as JSON for programs; None: nothing."""

    title: str
    lead: str
    sections: tuple[Section, ...]
    top: tuple[Part, ...] = ()
    kicker: str = "standby"
    footer: str = ""
    data: object = None


def render(page: Page) -> str:
    """Return the page as one HTML document. Its policy forbids every request and every program."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_policy(STYLE)),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", page.title),
        tag("style", Markup(STYLE)),
    )
    body = tag(
        "main",
        tag("p", page.kicker, class_="kicker"),
        tag("h1", page.title),
        tag("p", page.lead, class_="lead"),
        _parts(page.top),
        (tag("section", tag("h2", section.title), _parts(section.parts)) for section in page.sections),
        tag("footer", tag("p", page.footer)) if page.footer else None,
    )
    data = data_block(DATA_ID, page.data) if page.data is not None else None
    return f"<!doctype html>\n{tag('html', head, tag('body', body, data), lang='en')}\n"


def write(page: Page, path: Path) -> None:
    """Write the page, all or nothing. Raises ConfigurationError where the place cannot be written."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(render(page), encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigurationError(
            f"the report cannot be written to {path}: {error.strerror}", remedy="name another file with --html"
        ) from error


def _parts(parts: Sequence[Part]) -> list[Markup]:
    return [part.markup() for part in parts]


def _policy(style: str) -> str:
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
