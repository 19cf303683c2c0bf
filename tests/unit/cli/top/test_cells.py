"""What stands in the tables of ``standby top``, and how the feed's words become a picture."""

from __future__ import annotations

import pytest
from rich.console import Console

from standby.cli.top import cells
from standby.cli.top.once import show
from standby.cli.top.picture import Picture
from standby.console.values import Traffic
from support.overviews import a_node_row, an_endpoint_row, an_instance_row, an_overview

HOSTILE = (
    ("[red]boo[/red]", "[red]boo[/red]"),
    ("[link=http://x]y[/]", "[link=http://x]y[/]"),
    ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"),
    ("\x9b31mred", r"\x9b31mred"),
    ("a\nb\r\tc", r"a\nb\r\tc"),
    ("\u202egnp.exe", r"\u202egnp.exe"),
    ("\u2066x\u2069\u200f", r"\u2066x\u2069\u200f"),
    ("<script>alert(1)</script>", "<script>alert(1)</script>"),
    ("שלום 数", "שלום 数"),
)


@pytest.mark.parametrize(("given", "shown"), HOSTILE)
def test_words_of_others_are_shown_and_do_nothing(given: str, shown: str) -> None:
    text = cells.literal(given)

    assert text.plain == shown
    assert text.spans == []


@pytest.mark.parametrize(("given", "shown"), HOSTILE)
def test_the_printed_screen_shows_them_literally(given: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    decision = {"id": "d", "at": 0.0, "tenant": "", "endpoint": given, "instance": "", "action": given, "reason": given}
    overview = an_overview(
        decisions=(decision,),
        endpoints=[an_endpoint_row(given, words=given)],
        instances=[an_instance_row(id=given, node=given, words=given, engine=given)],
        nodes=[a_node_row(name=given, words=given)],
    )
    picture = Picture()
    picture.take("overview", overview)

    show(picture)
    printed = capsys.readouterr().out

    assert printed.count(shown) == 11
    assert not [one for one in printed if not one.isprintable() and one != "\n"]


def test_a_ladder_is_lit_up_to_its_rung() -> None:
    assert [cells.ladder(rung).plain for rung in ("cold", "asleep", "ready")] == ["■□□□□ cold", "■■■■□ asleep", "■■■■■ ready"]


def test_a_rung_of_a_newer_gateway_is_shown_all_the_same() -> None:
    rows = [an_instance_row(rung=rung) for rung in ("hibernated", "ready")]

    assert cells.ladder("hibernated").plain == "■□□□□ hibernated"
    assert [row["rung"] for row in cells.ordered(rows, cells.instances()[0], backwards=False)] == ["ready", "hibernated"]


def test_memory_is_a_bar_of_what_is_held_promised_and_free() -> None:
    assert cells.bar(4, 8, 16, 8).plain == "██▒▒░░░░"
    assert cells.bar(99, 99, 16, 8).plain == "████████"
    assert cells.bar(1, 1, 0).plain == ""


def test_a_sparkline_is_as_high_as_its_highest_part() -> None:
    assert cells.spark([0] * 50 + [1] * 5 + [8] * 5).plain == " " * 10 + "▁█"
    assert cells.spark([]).plain == ""


def test_endpoints_are_sorted_by_each_column_numbers_from_the_largest() -> None:
    rows = [an_endpoint_row(name, Traffic(rps=rps)) for name, rps in (("b", 1.0), ("a", 3.0), ("c", 2.0))]
    columns = {column.head: column for column in cells.endpoints(with_tenant=False)}

    by_name = cells.ordered(rows, columns["ENDPOINT"], backwards=False)
    by_rate = cells.ordered(rows, columns["REQ/S"], backwards=False)

    assert [row["name"] for row in by_name] == ["a", "b", "c"]
    assert [row["name"] for row in by_rate] == ["a", "c", "b"]
    for column in columns.values():
        assert len(cells.ordered(rows, column, backwards=True)) == len(rows)


def test_the_heading_says_what_runs_and_that_the_bus_is_away() -> None:
    picture = Picture()
    picture.take("overview", an_overview(endpoints=[an_endpoint_row()], instances=[an_instance_row()]))
    picture.take("change", {"at": 2.0, "bus": {"connected": False, "away_s": 7}})

    text = cells.heading(picture).plain

    assert "000000000000 at gateway/g · 1 endpoint, 1 instance (1 ready) · the bus has been away for 7 s" in text
    assert "saved $1.2345" in text


def test_a_change_replaces_rows_and_takes_gone_ones_away() -> None:
    picture = Picture()
    picture.take("overview", an_overview(endpoints=[an_endpoint_row("a"), an_endpoint_row("b")], instances=[an_instance_row()]))

    picture.take(
        "change",
        {
            "at": 5.0,
            "endpoints": [an_endpoint_row("a", Traffic(requests=9))],
            "gone_endpoints": ["000000000000/b"],
            "gone_instances": ["i1", "never-heard-of"],
            "decisions": [{"id": "d2"}, {"id": "d1"}],
        },
    )
    picture.take("change", {"at": 6.0, "decisions": [{"id": "d3"}]})
    picture.take("something newer", {"endpoints": None})

    assert list(picture.endpoints) == ["000000000000/a"]
    assert picture.endpoints["000000000000/a"]["requests"] == 9
    assert picture.instances == {}
    assert [row["id"] for row in picture.decisions] == ["d3", "d2", "d1"]
    assert picture.facts["at"] == 6.0


def test_an_overview_after_a_break_replaces_everything() -> None:
    picture = Picture()
    picture.take("overview", an_overview(endpoints=[an_endpoint_row("a")], decisions=({"id": "d1"},)))

    picture.take("overview", an_overview(endpoints=[an_endpoint_row("b")]))

    assert list(picture.endpoints) == ["000000000000/b"]
    assert picture.decisions == []


def test_the_newest_decisions_are_kept_and_no_more() -> None:
    picture = Picture()

    for at in range(300):
        picture.take("change", {"at": float(at), "decisions": [{"id": f"d{at}"}]})

    assert len(picture.decisions) == 100
    assert picture.decisions[0]["id"] == "d299"


def test_tables_fit_a_narrow_terminal_too() -> None:
    """Cells are never broken over lines: what has no room is cut with an ellipsis."""
    console = Console(width=20)
    assert len(console.render_lines(cells.literal("x" * 500))) == 1
