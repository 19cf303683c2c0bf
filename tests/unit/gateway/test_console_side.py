"""What the console is told of an endpoint's counters: read again where they have grown, and of this endpoint's life only."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from standby.console.settings import ConsoleSettings
from standby.console.values import SPARK_S, Scope, Traffic
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import InstanceState, Rung
from standby.gateway import console_side
from standby.gateway.accounts import Account, Accounts
from standby.gateway.api.context import Copies
from standby.gateway.console_side import ConsoleSide
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from support.builders import TENANT, an_endpoint, an_instance
from support.clock import Clock
from support.cluster import make_node
from support.slices import at_once

Json = dict[str, Any]
WHERE = (TENANT, "counted")


class Side:
    """A console's side whose one endpoint, ``counted``, tests give traffic."""

    def __init__(self) -> None:
        self.clock, self.accounts = Clock(), Accounts()
        bus: Any = SimpleNamespace(connected=True, disconnected_for=lambda: 0.0)
        self.records: dict[str, Any] = {name: SimpleNamespace(entries={}) for name in Copies.__dataclass_fields__}
        copies = Copies(**self.records)
        self.console = ConsoleSide(bus, bus, copies, self.accounts, lambda: (), "g", ConsoleSettings(), self.clock, self.clock)
        self.desk = self.made()

    def made(self) -> Desk:
        route = Route(an_endpoint(name="counted"), Variant(model="m", policy=ScalePolicy()))
        return Desk(route, AllRooms(0), self.clock, self.clock, lambda _desk, _urgent: None)

    @property
    def account(self) -> Account:
        return self.accounts.of(self.desk)

    def answered(self, *first_bytes: float) -> None:
        """Requests that were answered, with these times to the first byte, each after waiting for 1 s of 3 s."""
        grant = Grant("i1", ("127.0.0.1", 1), 1, Rung.READY, None, self.desk, "AllTraffic")
        for seconds in first_bytes:
            self.account.first_byte(seconds, Rung.READY)
            self.account.served(grant, 1.0, 3.0)
            self.account.ended("ok")

    def deleted(self) -> None:
        self.desk.endpoint_removed()
        self.accounts.close(self.desk)
        self.desk = self.made()

    def traffic(self) -> Traffic:
        """What is told after the next second."""
        self.clock.now += 1
        at_once(self.console.sample())
        return dict(at_once(self.console.facts()).traffic).get(WHERE, Traffic())


def test_requests_and_errors_are_those_of_the_metrics() -> None:
    """Of all outcomes, but for a retry that shared another attempt's run; what callers did is no error."""
    side = Side()
    side.traffic()
    side.answered(0.1)
    for outcome in ("joined", "engine_4xx", "client_gone", "Throttled", "engine_5xx"):
        side.account.ended(outcome)

    told = side.traffic()

    assert (told.requests, told.errors) == (5, 2)
    assert told.rps == 1.0
    side.deleted()


def test_what_has_not_grown_is_not_read_again_and_stays() -> None:
    side = Side()
    side.answered(0.1, 0.1)
    before = side.traffic()

    assert side.accounts.moved() == {}
    assert side.traffic() == before
    side.answered(0.1)
    assert side.traffic().requests == 3
    side.deleted()


def test_an_endpoint_that_was_made_again_has_nothing_of_the_one_before() -> None:
    side = Side()
    side.answered(*[2.0] * 50)
    assert side.traffic().ttft_ms.p50 == 1750.0
    side.deleted()
    gone = side.traffic()
    side.answered(0.004)

    told = side.traffic()

    assert gone == Traffic()
    assert told.requests == 1
    assert told.ttft_ms.p99 is not None
    assert told.ttft_ms.p99 <= 5
    side.deleted()


def test_nothing_is_kept_of_endpoints_that_come_and_go_while_nobody_looks() -> None:
    side = Side()
    side.answered(0.1)
    at_once(side.console.sample())
    side.deleted()
    at_once(side.console.sample())

    kept = (side.console._counts, side.console._to_measure, side.console._busy, side.console._measured)

    assert [len(one) for one in kept] == [0, 0, 0, 0]


async def test_what_a_lost_node_held_is_held_by_nobody() -> None:
    """Its records stay as they were, for no one else may write them: memory would be counted as held for ever."""
    side = Side()
    held = an_instance(endpoint="counted", node="n1", state=InstanceState.READY, rung=Rung.READY, resident_bytes=10**9)
    side.records["instances"].entries["n1.i1"] = SimpleNamespace(value=held)
    side.records["nodes"].entries["n1"] = SimpleNamespace(value=make_node("n1"))
    side.records["endpoints"].entries["e"] = SimpleNamespace(value=an_endpoint(name="counted"))

    async def seen(seconds: int) -> Json:
        for _ in range(seconds):
            side.clock.now += 1
            at_once(side.console.sample())
        return dict(json.loads(await side.console.feed.text(Scope(TENANT, admin=True))))

    living, lost, later = await seen(10), await seen(10), await seen(100)

    assert living["totals"]["resident_bytes"] == 10**9
    assert (lost["totals"]["resident_bytes"], lost["instances"], lost["endpoints"][0]["rung"]) == (0, [], "cold")
    assert lost["nodes"][0]["silent"]
    assert side.console.lost_nodes() == {lost["nodes"][0]["name"]}
    assert later["savings"]["held_gb_s"] == lost["savings"]["held_gb_s"] <= 16
    assert later["savings"]["always_on_gb_s"] > 110


def test_what_was_asked_fades_although_nothing_moves() -> None:
    """Only what has moved is looked at anew: rates and lines move by themselves for a minute."""
    side = Side()
    side.traffic()
    side.answered(0.1, 0.1, 0.1, 0.1, 0.1)

    rates = [side.traffic().rps for _ in range(7)]
    lines = [side.traffic().spark for _ in range(SPARK_S)]

    assert rates == [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
    assert [len(line) for line in lines[-9:]] == [SPARK_S] * 2 + [0] * 7
    assert lines[0] != lines[1]
    side.deleted()


def test_of_many_endpoints_what_each_has_saved_is_known_within_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_side, "AT_ONCE", 5)
    side = Side()
    for number in range(25):
        held = an_instance(
            id=f"i{number}", endpoint=f"e{number}", state=InstanceState.ASLEEP, rung=Rung.ASLEEP, resident_bytes=10**9
        )
        side.records["endpoints"].entries[f"e{number}"] = SimpleNamespace(value=an_endpoint(name=f"e{number}"))
        side.records["instances"].entries[f"i{number}"] = SimpleNamespace(value=held)

    def later(seconds: int) -> float:
        for _ in range(seconds):
            side.clock.now += 1
            at_once(side.console.sample())
        return float(side.console.saved(Scope(TENANT))["held_gb_s"])

    first, then = later(20), later(10)
    assert len(at_once(side.console.facts()).saved_usd) == 25
    assert then - first == 250
    for number in range(20):
        del side.records["endpoints"].entries[f"e{number}"], side.records["instances"].entries[f"i{number}"]
    at_the_end = later(1)
    assert then <= at_the_end <= 25 * 31, "nothing is counted twice"
    assert later(10) - at_the_end <= 5 * 11
