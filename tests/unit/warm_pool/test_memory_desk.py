"""The memory desk: who is granted, who waits, who is pushed out; devices and zygotes included."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.errors import EngineError
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.prices import Footprint
from standby.runtime.lifecycle_values import Event, Evicted, Lifecycle, ReservationRefused, Reserved, RetryDue
from standby.warm_pool.ledger import NOTHING, Claim, Ledger, zygote_claim
from standby.warm_pool.managed import Managed
from standby.warm_pool.memory import MemoryDesk
from standby.warm_pool.price_book import PriceBook
from standby.warm_pool.price_key import price_key
from support.builders import an_assignment

S = InstanceState
ZYGOTE = zygote_claim(EngineKind.FAKE)


class Desk(MemoryDesk):
    """A desk with scripted instances, that remembers what it said."""

    def __init__(self, capacity: int, devices: dict[str, int] | None = None) -> None:
        self.said: list[tuple[str, Event]] = []
        self.ended: list[EngineKind] = []
        self.table: dict[str, Managed] = {}
        self.on: dict[str, Sequence[str]] = {}
        super().__init__(
            Ledger(capacity, devices=devices or {}),
            self.table,
            PriceBook,
            lambda name, event: self.said.append((name, event)),
            lambda: 1000.0,
            devices_of=lambda managed: self.on.get(managed.id, ()),
            end_zygote=self.ended.append,
        )

    def add(
        self, name: str, state: S, estimate: int = 60, *, devices: Sequence[str] = (), idle_s: float = 1.0, **fields: Any
    ) -> Managed:
        rung = {S.ASLEEP: Rung.ASLEEP, S.ZYGOTE: Rung.ZYGOTE}.get(state, Rung.READY)
        adapter = cast("Any", SimpleNamespace(estimate_bytes=lambda *_arguments: estimate))
        assignment = an_assignment(instance=name, rung=rung, memory_mb=None, **fields)
        managed = Managed(assignment, Lifecycle(state=state, target=rung), adapter, rung_since=1000.0 - idle_s)
        self.table[name] = managed
        self.on[name] = devices
        return managed

    def news(self) -> list[tuple[str, Event]]:
        said, self.said[:] = list(self.said), []
        return said


@pytest.fixture
def desk() -> Desk:
    made = Desk(100, {"g0": 40})
    kind = an_assignment().model.engine
    assert kind is EngineKind.FAKE, "the zygote of these tests is of the engine that the builders use"
    return made


def test_what_was_measured_is_reserved_instead_of_the_estimate(desk: Desk) -> None:
    climber = desk.add("a", S.STARTING, estimate=500)
    desk.sizes.seen(price_key(climber.assignment).text, "earlier", Footprint(awake=50, peak=70))
    desk.reserve(climber)
    assert (desk.news(), desk.ledger.held("a")) == ([("a", Reserved())], Claim(77))


def test_a_wake_whose_device_is_taken_is_refused_and_never_tried(desk: Desk) -> None:
    desk.hold(desk.add("busy", S.READY), 10, {"g0": 30})
    waker = desk.add("waker", S.WAKING, estimate=20, devices=("g0",))
    desk.hold(waker, 5)
    desk.reserve(waker)
    ((name, event),) = desk.news()
    assert name == "waker"
    assert isinstance(event, ReservationRefused)
    assert event.reason == "device g0 is short by 10 bytes: needs 20 and holds 0, 10 of 40 are free"


def test_a_sleeper_that_still_holds_the_device_makes_room_on_it(desk: Desk) -> None:
    desk.hold(desk.add("deep", S.ASLEEP, idle_s=900), 20)
    desk.hold(desk.add("light", S.ASLEEP), 5, {"g0": 35})
    climber = desk.add("c", S.STARTING, estimate=30, devices=("g0",))
    desk.reserve(climber)
    assert desk.news() == [("light", Evicted())]
    assert desk.pushed_out == {"sleeper": 1, "zygote": 0}
    desk.release(desk.table["light"])
    assert desk.news() == [("c", Reserved())]
    assert desk.ledger.held("c") == Claim(30, {"g0": 30})


def test_those_who_wait_are_served_in_the_order_in_which_they_came(desk: Desk) -> None:
    desk.hold(desk.add("sleeper", S.ASLEEP), 90)
    second = desk.add("second", S.STARTING, estimate=60)
    first = desk.add("first", S.STARTING, estimate=60)
    desk.reserve(first)
    desk.reserve(second)
    assert list(desk.waiting) == ["first", "second"]
    desk.news()
    desk.release(desk.table["sleeper"])
    told = desk.news()
    assert told[0] == ("first", Reserved())
    assert told[1][0] == "second"
    assert isinstance(told[1][1], ReservationRefused)


def test_an_instance_that_is_gone_waits_for_nothing(desk: Desk) -> None:
    desk.hold(desk.add("sleeper", S.ASLEEP), 90)
    desk.reserve(desk.add("a", S.STARTING))
    del desk.table["a"]
    desk.news()
    desk.release(desk.table["sleeper"])
    assert (desk.waiting, desk.ledger.reserved, desk.news()) == ({}, 0, [])


def test_an_estimate_that_fails_leaves_nothing_behind(desk: Desk) -> None:
    def refuse(*_arguments: Any) -> int:
        raise EngineError("no")

    climber = desk.add("a", S.STARTING)
    climber.adapter = cast("Any", SimpleNamespace(estimate_bytes=refuse))
    with pytest.raises(EngineError):
        desk.reserve(climber)
    assert (desk.waiting, dict(desk.ledger.claims)) == ({}, {})


def test_a_cordon_refuses_at_once_and_its_end_lets_those_refused_ask_again(desk: Desk) -> None:
    desk.set_devices({"g0": 40}, {"g0": "Xid 79"})
    desk.reserve(desk.add("a", S.STARTING, estimate=10, devices=("g0",)))
    assert desk.news() == [("a", ReservationRefused("device g0 is cordoned: Xid 79"))]
    desk.set_devices({"g0": 40}, {})
    assert desk.news() == [("a", RetryDue(freed=True))]
    desk.set_devices({"g0": 40}, {})
    assert desk.news() == []


# ---- measured -------------------------------------------------------------------------------------------------------


def test_a_claim_grows_with_what_is_measured_and_is_not_made_smaller_while_awake(desk: Desk) -> None:
    managed = desk.add("a", S.READY)
    desk.hold(managed, 60)
    desk.awake(managed, Claim(75))
    desk.awake(managed, Claim(40))
    assert desk.ledger.held("a") == Claim(75)
    desk.asleep(managed, Claim(15))
    assert desk.ledger.held("a") == Claim(15)


def test_a_configured_size_stays_and_reality_names_who_exceeds_it(desk: Desk) -> None:
    gib = 1024**3
    managed = desk.add("a", S.READY)
    managed.assignment = managed.assignment.model_copy(update={"memory_mb": 1})
    managed.handle = cast("Any", object())
    desk.hold(managed, 1024 * 1024)
    desk.awake(managed, Claim(gib))
    managed.resident_bytes = gib
    (difference,) = desk.reality()
    assert (difference.holder, difference.claimed, difference.measured) == ("a", 1024 * 1024, gib)


def test_a_claim_of_an_instance_without_a_process_is_not_real(desk: Desk) -> None:
    managed = desk.add("a", S.STAGED)
    desk.hold(managed, 60)
    assert [one.holder for one in desk.reality()] == ["a"]
    managed.tasks["stop"] = cast("Any", None)
    assert desk.reality() == (), "it is still being ended"
    del managed.tasks["stop"]
    desk.release(managed)
    assert desk.reality() == ()


# ---- zygotes --------------------------------------------------------------------------------------------------------


def test_a_zygote_that_does_not_fit_is_not_hatched(desk: Desk) -> None:
    assert desk.reserve_zygote(EngineKind.FAKE, 30).granted
    assert not desk.reserve_zygote(EngineKind.VLLM, 80).granted
    desk.zygote_measured(EngineKind.FAKE, 45)
    assert (desk.ledger.held(ZYGOTE), desk.ledger.free) == (Claim(45), 55)
    assert desk.reality() == ()
    desk.zygote_ended(EngineKind.FAKE)
    assert desk.ledger.held(ZYGOTE) == NOTHING


def test_a_zygote_in_the_way_is_ended_and_waited_for(desk: Desk) -> None:
    assert desk.reserve_zygote(EngineKind.FAKE, 50).granted
    desk.reserve(desk.add("a", S.STARTING, estimate=60))
    assert (desk.ended, desk.news()) == ([EngineKind.FAKE], [])
    assert desk.pushed_out == {"sleeper": 0, "zygote": 1}
    desk.zygote_ended(EngineKind.FAKE)
    assert desk.news() == [("a", Reserved())]


@pytest.mark.parametrize("state", [S.ZYGOTE, S.STARTING])
def test_a_zygote_that_another_instance_rests_on_stays(desk: Desk, state: S) -> None:
    assert desk.reserve_zygote(EngineKind.FAKE, 50).granted
    desk.add("rests", state)
    desk.reserve(desk.add("a", S.STARTING, estimate=60))
    assert desk.ended == []
    assert isinstance(desk.news()[0][1], ReservationRefused)


def test_a_zygote_takes_nothing_that_is_being_freed_for_a_climb(desk: Desk) -> None:
    """It would be pushed out again at once, and the climb would wait for that as well."""
    desk.hold(desk.add("sleeper", S.ASLEEP), 70)
    desk.reserve(desk.add("a", S.STARTING, estimate=60))
    assert desk.news() == [("sleeper", Evicted())]
    answer = desk.reserve_zygote(EngineKind.FAKE, 20)
    assert (answer.granted, answer.reason) == (False, "a wait for memory")
    assert desk.ledger.held(ZYGOTE) == NOTHING
