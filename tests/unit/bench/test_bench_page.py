"""The report pages: nothing that a name says becomes part of them, they ask nobody, and they say what is empty."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from standby.bench.page import Banner, Cell, Page, Quote, Section, Table, Text, Tiles, render, write
from standby.bench.page_bars import Bar, Bars
from standby.bench.page_curves import Columns, Curves, Series
from standby.bench.page_markup import escaped, tag
from standby.bench.page_scales import log_ticks, milliseconds, share, ticks
from standby.bench.page_style import STYLE
from standby.bench.report import bench_page, write_bench_page
from standby.bench.report_samples import histogram, percentile_curves, percentile_points
from standby.bench.statistics import summarize
from standby.bench.values import Slo
from standby.domain.errors import ConfigurationError
from support.bench_values import a_run, a_sample

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "' onmouseover='alert(4)",
    "</style><svg/onload=alert(5)>",
    "<!--", "]]>", "&lt;b&gt;", "\x00\x1b[31m", "\u202egnp.exe", "\ud800", "{{7*7}}",
)  # fmt: skip
FACTS = (("processors", "2"),)


class Seen(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data = ""
        self.style = ""
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "br", "hr"}:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self._open[-1] if self._open else ""
        if inside == "script":
            self.data += data
        elif inside == "style":
            self.style += data
        else:
            self.texts.append(data)


def seen(page: str) -> Seen:
    parser = Seen()
    parser.feed(page)
    parser.close()
    return parser


def everything(word: str) -> Page:
    """A page that has ``word`` wherever a word can be."""
    parts = (
        Text(word), Quote(word, word), Banner(word, good=False), Tiles(((word, word, word),)),
        Table((word, word), ((word, Cell(word, word)),), word),
        Bars(word, (Bar(word, ((word, 1.0), (word + "2", 2.0)), word),), note=word),
        Curves(word, word, word, (Series(word, ((0.0, 1.0), (1.0, 2.0))), Series(word + "2", ((0.0, 1.0),), dots=True))),
        Columns(word, word, ((0.0, 1.0, (1, 2)),), (word, word + "2")),
    )  # fmt: skip
    return Page(word, word, (Section(word, parts),), kicker=word, footer=word, data={word: [word]})


@pytest.mark.parametrize("word", HOSTILE)
def test_no_name_becomes_part_of_a_page(word: str) -> None:
    found = seen(render(everything(word)))

    harmless = seen(render(everything("name")))
    assert [name for name, _ in found.tags] == [name for name, _ in harmless.tags]
    assert not [key for _, attributes in found.tags for key in attributes if key.startswith("on") or key in {"src", "href"}]
    assert [attributes["type"] for name, attributes in found.tags if name == "script"] == ["application/json"]
    assert found.style == STYLE
    assert json.loads(found.data) == {word: [word]}


def test_a_page_forbids_every_request_and_every_program() -> None:
    found = seen(render(everything("name")))

    policies = [attributes["content"] for _, attributes in found.tags if attributes.get("http-equiv")]
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert policies == [f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"]
    assert not re.search(r"url\(|@import|https?:", STYLE)
    # A style attribute would be refused by the policy, and be seen by nobody.
    assert not [name for name, attributes in found.tags if "style" in attributes]


def test_what_cannot_be_seen_is_spelled_out() -> None:
    assert escaped("a\x00b\u202ec") == "a\\u0000b\\u202ec"
    assert tag("p", None, ["<", escaped(">")], hidden=True, title=None, x=1.5) == '<p hidden x="1.5">&lt;&gt;</p>'


def test_the_figures_can_be_read_from_the_page(tmp_path: Path) -> None:
    run = a_run([a_sample(0.0, rung="cold"), a_sample(1.0, rung="ready"), a_sample(2.0, error="5xx", status=503)])
    write_bench_page(run, summarize(run, Slo(ttft_s=0.5)), tmp_path / "page.html")

    found = seen((tmp_path / "page.html").read_text())
    data = json.loads(found.data)
    assert data["summary"]["requests"] == 3
    assert [dict(zip(data["columns"], row, strict=True))["rung"] for row in data["samples"]] == ["cold", "ready", ""]
    said = " ".join(found.texts)
    for words in ("first token", "By the rung that was found", "What failed", "1 of 3 (33.3%)", "66.7%"):
        assert words in said
    assert list(tmp_path.iterdir()) == [tmp_path / "page.html"]


def test_without_a_rung_known_nothing_is_split_by_it() -> None:
    run = a_run([a_sample(), a_sample(1.0)])

    assert "By the rung that was found" not in render(bench_page(run, summarize(run), FACTS))


def test_an_empty_run_gives_a_page_that_says_so() -> None:
    run = a_run()
    found = seen(render(bench_page(run, summarize(run), FACTS)))

    said = " ".join(found.texts)
    assert "This run is empty: no request was sent, so nothing was measured." in said
    assert "Latencies" not in [text.strip() for text in found.texts]
    assert "processors" in said


def test_a_run_that_only_failed_has_no_latencies() -> None:
    run = a_run([a_sample(at, error="connect", status=0, first_token_s=None) for at in (0.0, 1.0)], interrupted=True)
    said = " ".join(seen(render(bench_page(run, summarize(run), FACTS))).texts)

    assert "No request went well: there are no latencies." in said
    assert "Interrupted after 2 of 2 planned requests." in said
    assert "nothing was measured" in said


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be written"):
        write(everything("name"), tmp_path / "no" / "page.html")


# ---- pictures ----------------------------------------------------------------------------------------------------


def rectangles(markup: str) -> list[dict[str, str | None]]:
    return [attributes for name, attributes in seen(markup).tags if name == "rect" and "track" not in str(attributes["class"])]


def test_bars_share_one_scale_and_begin_where_they_should() -> None:
    rows = (Bar("a", (("x", 30.0), ("y", 10.0))), Bar("b", (("y", 50.0),), start=50.0), Bar("c", ()))
    found = [one for one in rectangles(Bars("t", rows).markup()) if one.get("x") is not None]

    assert [(one["x"], one["width"]) for one in found] == [("0%", "30%"), ("30%", "10%"), ("50%", "50%")]
    assert found[1]["class"] == found[2]["class"] != found[0]["class"]


def test_a_bar_says_its_parts_to_whoever_cannot_see_it() -> None:
    found = seen(Bars("t", (Bar("a", (("x", 30.0), ("y", 1200.0))), Bar("b", ()))).markup())

    labels = [attributes["aria-label"] for name, attributes in found.tags if name == "svg" and "role" in attributes]
    assert labels == ["x 30 ms, y 1.20 s", "nothing measured"]
    assert "not measured" in found.texts


@pytest.mark.parametrize("amount", [0.0, -5.0])
def test_bars_of_nothing_have_no_width(amount: float) -> None:
    assert rectangles(Bars("t", (Bar("a", (("x", amount),)),)).markup())[0]["width"] == "0%"


def test_curves_leave_out_what_is_no_number() -> None:
    nan, inf = float("nan"), float("inf")
    markup = Curves("t", "x", "y", (Series("a", ((0.0, nan), (1.0, inf), (2.0, 3.0), (4.0, 1.0))),)).markup()

    paths = [str(attributes["d"]) for name, attributes in seen(markup).tags if name == "path"]
    assert len(paths) == 1
    assert len(re.findall(r"[ML]", paths[0])) == 2
    assert Curves("t", "x", "y", (Series("a", ((0.0, nan),)),)).markup() == tag("p", "t: nothing was measured.", class_="soft")


def test_a_histogram_counts_every_value_once() -> None:
    columns = histogram("t", "x", [("a", [0.1, 0.2, 0.2]), ("b", [5.0, 0.1])])

    assert sum(sum(counts) for _, _, counts in columns.bins) == 5
    assert histogram("t", "x", []).markup() == tag("p", "t: nothing was measured.", class_="soft")


def test_very_many_values_are_drawn_by_few_points() -> None:
    points = percentile_points([float(value) for value in range(100_000)])

    assert len(points) <= 400
    assert points[-1] == (100.0, 99_999.0)


def test_groups_of_few_are_drawn_as_dots() -> None:
    curves = percentile_curves("t", [("few", [0.1]), ("many", [0.1] * 9)])

    assert [(one.name, one.dots) for one in curves.series] == [("few (1)", True), ("many (9)", False)]


# ---- scales ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("highest", "last"), [(0.0, 1.0), (float("nan"), 1.0), (1.0, 1.0), (97.0, 100.0), (0.013, 0.015), (1234.0, 1250.0)]
)
def test_ticks_reach_the_highest_value(highest: float, last: float) -> None:
    found = ticks(highest)

    assert found[0] == 0.0
    assert found[-1] == pytest.approx(last)
    assert 2 <= len(found) <= 7


@pytest.mark.parametrize("highest", [1, 3, 10, 37])
def test_ticks_of_counts_are_whole(highest: int) -> None:
    assert all(value == int(value) for value in ticks(highest, 4, whole=True))


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (0.9, 1100.0), (59.0, 3531.0)])
def test_logarithmic_ticks_hold_the_range(low: float, high: float) -> None:
    found = log_ticks(low, high)

    assert found[0] <= low
    assert found[-1] >= high
    assert len(found) >= 2


def test_times_and_shares_are_written_short() -> None:
    written: list[Any] = [milliseconds(value) for value in (0, 8.44, 231.2, 1420.0, 62_000.0, None, float("inf"))]

    assert written == ["0", "8.4 ms", "231 ms", "1.42 s", "62.0 s", "not measured", "not measured"]
    assert (share(3, 120), share(0, 0)) == ("3 of 120 (2.5%)", "0 of 0")
