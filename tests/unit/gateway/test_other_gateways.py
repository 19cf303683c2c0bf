"""What other gateways have under way, from their beats."""

from __future__ import annotations

from standby.bus.subjects import beat_subject
from standby.domain.demand import Demand, GatewayBeat
from standby.gateway.other_gateways import SILENCE_S, Elsewhere, OtherGateways
from support.builders import TENANT
from support.clock import Clock

E = (TENANT, "e")


def beat(gateway: str = "g2", boot_id: str = "b", **counts: int) -> tuple[str, bytes]:
    demand = Demand(
        gateway=gateway,
        boot_id=boot_id,
        sequence=1,
        tenant=TENANT,
        endpoint="e",
        in_flight=counts.get("in_flight", 0),
        queued=counts.get("queued", 0),
        idle=0.0,
        arrivals=counts.get("arrivals"),
    )
    return beat_subject(gateway), GatewayBeat(gateway=gateway, boot_id=boot_id, sequence=1, demands=(demand, demand)).encode()


def test_their_counts_are_added_up_over_gateways_variants_and_engines() -> None:
    others = OtherGateways("g1", Clock())

    others.take(*beat("g2", in_flight=2, queued=1))
    others.take(*beat("g3", in_flight=5))

    assert others.traffic() == {E: Elsewhere(14, 2, 0.0)}


def test_its_own_beats_are_not_counted_again() -> None:
    others = OtherGateways("g1", Clock())

    others.take(*beat("g1", in_flight=2))

    assert others.traffic() == {}


def test_a_rate_comes_from_what_arrived_between_two_beats() -> None:
    clock = Clock()
    others = OtherGateways("g1", clock)

    for arrivals in (10, 20, 30):
        others.take(*beat(arrivals=arrivals))
        clock.now += 1

    assert others.traffic()[E].rps == 20.0


def test_a_gateway_that_began_anew_has_no_rate_yet() -> None:
    clock = Clock()
    others = OtherGateways("g1", clock)
    others.take(*beat(boot_id="b1", arrivals=1000))
    clock.now += 1

    others.take(*beat(boot_id="b2", arrivals=2000))

    assert others.traffic()[E].rps == 0.0


def test_a_gateway_that_fell_silent_has_nothing_under_way() -> None:
    clock = Clock()
    others = OtherGateways("g1", clock)
    others.take(*beat(in_flight=9))

    clock.now += SILENCE_S + 0.1

    assert others.traffic() == {}


def test_what_is_no_beat_is_left_alone() -> None:
    others = OtherGateways("g1", Clock())

    others.take(beat_subject("g2"), b"not json")

    assert others.traffic() == {}
