"""The live screen of ``standby top``, driven by keys in a terminal without one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from standby.cli.client import Client
from standby.cli.connection import Connection
from standby.cli.top import app as screen
from standby.cli.top.app import Top
from standby.cli.top.source import Lost, Told
from standby.cli.top.table import Rows
from standby.console.values import Traffic
from standby.domain.errors import NotAuthenticated, StandbyError
from support.overviews import a_node_row, an_endpoint_row, an_instance_row, an_overview
from support.waiting import until

Json = dict[str, Any]
NARROW, WIDE = (80, 24), (170, 45)
HOSTILE = "[red]x[/red] \x1b[31m<b>y</b>\u202egnp"
SHOWN = r"[red]x[/red] \x1b[31m<b>y</b>\u202egnp"


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, overview: Json, *heard: Told | Lost | StandbyError, size: tuple[int, int] = NARROW
) -> AsyncIterator[tuple[Top, Pilot[StandbyError]]]:
    """The screen of a feed that says this and then nothing."""

    async def listen(*_what: object, **_how: object) -> AsyncIterator[Told | Lost]:
        for one in heard:
            if isinstance(one, StandbyError):
                raise one
            yield one

    monkeypatch.setattr(screen, "listen", listen)
    top = Top(overview, lambda: Client(Connection("http://127.0.0.1:1", "k")), 1.0)
    async with top.run_test(size=size) as pilot:
        await pilot.pause()
        yield top, pilot


def text(top: Top) -> str:
    """What is on the screen."""
    return "\n".join("".join(part.text for part in strip).rstrip() for strip in top.screen._compositor.render_strips())


def names(top: Top, view: str = "endpoints") -> list[str]:
    return [key.value.rpartition("/")[2] for key in top.query_one(f"#{view}", Rows).rows if key.value]


def three() -> Json:
    rows = [an_endpoint_row(name, Traffic(rps=rps)) for name, rps in (("b", 1.0), ("a", 3.0), ("c", 2.0))]
    return an_overview(endpoints=rows, instances=[an_instance_row()], nodes=[a_node_row()])


@pytest.mark.parametrize("size", [NARROW, WIDE, (40, 10), (300, 80)])
async def test_it_has_endpoints_decisions_and_its_keys_on_every_terminal(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    async with running(monkeypatch, three(), size=size) as (top, _):
        shown = text(top)

    assert "ENDPOINT" in shown
    assert "q Quit" in shown
    assert max(len(line) for line in shown.splitlines()) <= size[0]


async def test_where_there_is_room_everything_is_there_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three(), size=WIDE) as (top, _):
        shown = text(top)

    for head in ("LAST MINUTE", "INSTANCE", "HOST MEMORY", "REASON"):
        assert head in shown
    assert "░" in shown


async def test_keys_choose_the_table_where_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three()) as (top, pilot):
        seen = {}
        for key, head in (("1", "LAST MINUTE"), ("2", "INSTANCE"), ("3", "HOST MEMORY"), ("4", "REASON")):
            await pilot.press(key)
            await pilot.pause()
            seen[head] = text(top)

    assert all(head in shown for head, shown in seen.items())
    assert "LAST MINUTE" not in seen["HOST MEMORY"]


async def test_it_sorts_by_the_next_column_and_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three()) as (top, pilot):
        by_name = names(top)
        await pilot.press("r")
        backwards = names(top)
        await pilot.press("s", "s", "s", "s")
        by_rate = names(top)
        shown = text(top)

    assert (by_name, backwards, by_rate) == (["a", "b", "c"], ["c", "b", "a"], ["a", "c", "b"])
    assert "REQ/S▼" in shown


async def test_a_click_on_a_head_sorts_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three()) as (top, pilot):
        await pilot.click("#endpoints", offset=(4, 1))
        await pilot.pause()
        assert names(top) == ["c", "b", "a"]


async def test_the_cursor_stays_on_its_row_when_others_overtake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three()) as (top, pilot):
        table = top.query_one("#endpoints", Rows)
        await pilot.press("down", "down")
        top._take(Told("change", {"at": 2.0, "gone_endpoints": ["000000000000/a"]}))
        await pilot.pause()

        assert names(top) == ["b", "c"]
        assert table.cursor_row == 1


async def test_what_changes_is_drawn_and_what_is_gone_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    change = {
        "at": 2.0,
        "endpoints": [an_endpoint_row("a", Traffic(rps=77.7))],
        "gone_endpoints": ["000000000000/c"],
        "decisions": [
            {"id": "d", "at": 0.0, "tenant": "", "endpoint": "a", "instance": "", "action": "sleep", "reason": "idle"}
        ],
    }
    async with running(monkeypatch, three(), Told("change", change)) as (top, pilot):
        await pilot.pause()
        shown = text(top)

    assert "77.7" in shown
    assert names_in(shown) == {"a", "b"}
    assert "sleep" in shown


def names_in(shown: str) -> set[str]:
    return {line.split()[0] for line in shown.splitlines() if "□" in line or "■" in line}


async def test_words_of_others_are_shown_and_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = {"id": "d", "at": 0.0, "tenant": "", "endpoint": HOSTILE, "instance": "", "action": "a", "reason": HOSTILE}
    overview = an_overview(
        decisions=(decision,),
        endpoints=[an_endpoint_row(HOSTILE, words=HOSTILE)],
        instances=[an_instance_row(id=HOSTILE, words=HOSTILE)],
        nodes=[a_node_row(name=HOSTILE, words=HOSTILE)],
    )
    overview["gateway"] = HOSTILE
    async with running(monkeypatch, overview, Lost(HOSTILE), size=(300, 50)) as (top, pilot):
        await pilot.pause()
        shown = text(top)

    assert shown.count(SHOWN) >= 8
    assert "\x1b" not in shown
    assert "\u202e" not in shown


async def test_a_gateway_that_went_away_is_told_and_what_was_seen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three(), Lost("no gateway answers at http://x")) as (top, pilot):
        await pilot.pause()
        away = text(top)
        top._take(Told("overview", an_overview(endpoints=[an_endpoint_row("z")])))
        await pilot.pause()
        back = text(top)

    assert "no gateway answers at http://x" in away
    assert "trying again" in away
    assert names_in(away) == {"a", "b", "c"}
    assert "no gateway answers" not in back
    assert names_in(back) == {"z"}


async def test_a_refused_key_ends_it_with_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(monkeypatch, three(), NotAuthenticated("the key was revoked")) as (top, _):
        await until(lambda: top.return_value)

    assert isinstance(top.return_value, NotAuthenticated)


async def test_tenants_have_no_table_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    overview = an_overview(admin=False, endpoints=[an_endpoint_row()])
    async with running(monkeypatch, overview, size=WIDE) as (top, pilot):
        await pilot.press("3")
        shown = text(top)

    assert "HOST MEMORY" not in shown
    assert "3 Nodes" not in shown
    assert "4 Decisions" in shown


@pytest.mark.parametrize("key", ["q", "ctrl+c"])
async def test_it_ends_well(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    async with running(monkeypatch, three()) as (top, pilot):
        await pilot.press(key)
        await pilot.pause()

    assert top.return_value is None
    assert top.return_code == 0


async def test_a_thousand_endpoints_are_listed_and_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [an_endpoint_row(f"e{number}", Traffic(rps=number)) for number in range(1000)]
    async with running(monkeypatch, an_overview(endpoints=rows)) as (top, pilot):
        await pilot.press("r")
        top._take(Told("change", {"at": 2.0, "endpoints": [an_endpoint_row(f"e{n}", Traffic(rps=-n)) for n in range(1000)]}))
        await pilot.pause()

        assert names(top)[:3] == ["e999", "e998", "e997"]
        assert len(names(top)) == 1000
