"""Gaps between the end of one request and the next, learned from what gateways say."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from standby.controller.arrivals import GapModel, bin_of
from standby.controller.demand import GATEWAY_LEASE_S, DemandBook
from standby.domain.demand import Demand, GatewayBeat
from support.cluster import TENANT

pytestmark = pytest.mark.decision
NAME = f"{TENANT}.e"


@dataclass
class Told:
    """A book on a clock that the test moves, and gateways that say what it wants."""

    now: float = 100.0
    sequences: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.book = DemandBook(lambda: self.now)

    def demand(
        self,
        at: float,
        in_flight: int = 0,
        *,
        idle: float = 0.0,
        arrivals: int | None = None,
        gateway: str = "g1",
        variant: str = "",
    ) -> Demand:
        self.now = 100.0 + at
        self.sequences[gateway] = self.sequences.get(gateway, 0) + 1
        return Demand(
            gateway=gateway,
            boot_id="b",
            sequence=self.sequences[gateway],
            tenant=TENANT,
            endpoint="e",
            variant=variant,
            in_flight=in_flight,
            queued=0,
            idle=idle,
            arrivals=arrivals,
        )

    def says(self, at: float, in_flight: int = 0, **fields: object) -> None:
        self.book.take_demand(self.demand(at, in_flight, **fields))  # type: ignore[arg-type]

    def gaps(self) -> list[int]:
        """Return in which bins gaps were seen, each as often as it was."""
        model = self.book.demand(NAME).gaps
        if model is None:
            return []
        counts = model.to_json()["counts"]
        return sorted(int(b) for b in counts for _ in range(round(counts[b])))


def test_gap_is_from_the_last_end_to_the_next_arrival() -> None:
    told = Told()
    told.says(0.0, 1)
    told.says(2.0, 0)
    told.says(62.0, 1)
    assert told.gaps() == [bin_of(60.0)]
    told.says(63.0, 2)
    told.says(70.0, 0)
    told.says(80.0, 1)
    assert told.gaps() == sorted([bin_of(60.0), bin_of(10.0)]), "a second request beside the first ends no gap"


def test_first_request_ever_ends_no_gap() -> None:
    told = Told()
    told.says(0.0, 1)
    assert told.gaps() == []


def test_request_between_two_messages_is_seen_by_its_number() -> None:
    told = Told()
    told.says(0.0, 1, arrivals=1)
    told.says(1.0, 0, idle=0.0, arrivals=1)
    told.says(31.0, 0, idle=0.2, arrivals=2)
    assert told.gaps() == [bin_of(29.8)]


def test_late_message_is_no_request() -> None:
    """A controller that was held up for 5 s reads an old idle time late: nothing has come."""
    told = Told()
    told.says(0.0, 1, arrivals=1)
    told.says(1.0, 0, idle=0.0, arrivals=1)
    told.says(11.0, 0, idle=5.0, arrivals=1)
    assert told.gaps() == []


def test_what_another_gateway_works_on_is_no_idle_time() -> None:
    told = Told()
    told.says(0.0, 1, gateway="g1")
    told.says(1.0, 1, gateway="g2")
    told.says(2.0, 0, gateway="g2")
    told.says(9.0, 1, gateway="g2")
    assert told.gaps() == []
    told.says(10.0, 0, gateway="g2")
    told.says(20.0, 0, gateway="g1")
    told.says(50.0, 1, gateway="g2")
    assert told.gaps() == [bin_of(30.0)]


def test_gateway_that_was_silent_and_comes_back_is_no_request() -> None:
    told = Told()
    told.says(0.0, 1, arrivals=7)
    told.says(1.0, 0, arrivals=7)
    told.now += GATEWAY_LEASE_S + 1.0
    told.book.expire()
    told.says(30.0, 0, idle=29.0, arrivals=7)
    assert told.gaps() == []


def test_each_variant_learns_its_own() -> None:
    told = Told()
    for at in (0.0, 100.0, 200.0):
        told.says(at, 1, variant="a")
        told.says(at + 1.0, 0, variant="a")
    told.says(210.0, 1, variant="b")
    told.says(211.0, 0, variant="b")
    told.says(221.0, 1, variant="b")
    parts = told.book.by_variant(NAME, ("a", "b"))
    assert parts["a"].gaps is not None
    assert parts["b"].gaps is not None
    assert (parts["a"].gaps.count, parts["b"].gaps.count) == (2, 1)
    assert told.book.demand(NAME).gaps is not parts["a"].gaps
    assert sorted(told.book.habits(NAME)) == ["", "a", "b"]


def test_beats_teach_as_well() -> None:
    told = Told()
    for at, in_flight in ((0.0, 1), (1.0, 0), (2.0, 0), (41.0, 1)):
        one = told.demand(at, in_flight, idle=max(0.0, at - 1.0) if not in_flight else 0.0)
        told.book.take_beat(GatewayBeat(gateway="g1", boot_id="b", sequence=one.sequence, demands=(one,)))
    assert told.gaps() == [bin_of(40.0)]


def test_what_was_learned_is_taken_over_where_it_is_more() -> None:
    told = Told()
    told.says(0.0, 1)
    told.says(1.0, 0)
    told.says(11.0, 1)
    assert told.book.take_learned() == {NAME}
    assert told.book.take_learned() == set()
    richer = GapModel()
    for at in range(5):
        richer.observe(60.0, float(at))
    told.book.restore(NAME, {"": richer})
    assert told.gaps() == [bin_of(60.0)] * 5
    told.book.restore(NAME, {"": GapModel()})
    assert told.gaps() == [bin_of(60.0)] * 5
