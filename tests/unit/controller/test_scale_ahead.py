"""Scaling ahead of demand in the live controller's plans: when it is on, what it changes, and that it can be replayed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from standby.controller import forecast, foresight
from standby.controller.actions import Assign, Retarget
from standby.controller.asked import EndpointDemand, together
from standby.controller.demand import DemandBook
from standby.controller.dispersion import LookAhead
from standby.controller.economics import preset
from standby.controller.economy import Economy
from standby.controller.foresight import Margin, look, margin, wanted
from standby.controller.plan import plan
from standby.controller.recorded import replay_decision
from standby.controller.scaling import ScaleDecision
from standby.controller.served import served
from standby.domain.demand import Demand
from standby.domain.endpoint import PricePreset, ScalePolicy
from standby.domain.events import DecisionMade
from standby.domain.instance import Rung
from support.cluster import GIB, TENANT, Cluster, cached, make_model

pytestmark = pytest.mark.decision
CLIMB_S = 2.0
NAME = f"{TENANT}.e"
SNAPPY = Economy(preset=PricePreset.SNAPPY, prices=preset("snappy"))


def serving(economy: Economy | None = None, climb_s: float = CLIMB_S, **policy: Any) -> Cluster:
    """Return a cluster whose endpoint has one busy instance for long, of up to six of four slots."""
    cluster = Cluster(load_s=climb_s, economy=economy or Economy())
    model = make_model("m-e", size=GIB)
    costs = {model.manifest.digest: {Rung.STAGED: climb_s}}
    cluster.add_node(capacity=64 * GIB, artifacts=(cached(model),), costs=costs)
    cluster.add_endpoint(
        "e", model=model, memory_mb=1024, **{"slots": 4, "max_instances": 6, "keep_ready": "forever", **policy}
    )
    cluster.ask(in_flight=1)
    cluster.run_until(cluster.now + 120.0)
    assert cluster.state_of() == ["ready"]
    return cluster


def rise(cluster: Cluster, to: int = 12, every_s: float = 1.0) -> list[int]:
    """Let one more request come each second; return how many there were at each start."""
    begun = len(cluster.trace)
    at: list[int] = []
    for requests in range(2, to + 1):
        cluster.ask(in_flight=requests)
        cluster.run_until(cluster.now + every_s)
        starts = [action for _, action in cluster.trace[begun:] if isinstance(action, Assign | Retarget)]
        at += [requests] * (len(starts) - len(at))
    return at


def test_steady_rise_has_its_next_instance_before_it_needs_it() -> None:
    """Four fit one instance. By present demand the second start comes when five have waited for as long as it takes."""
    ahead, by_present_demand = (rise(serving(scale_ahead=on)) for on in (True, False))
    assert ahead[0] <= 4
    assert by_present_demand[0] >= 6
    assert len(ahead) >= len(by_present_demand)


def test_who_says_nothing_has_it_where_waits_are_dear() -> None:
    snappy, balanced = SNAPPY, Economy()
    many = {"max_instances": 2}
    assert not wanted(ScalePolicy(**many), balanced)
    assert wanted(ScalePolicy(**many), snappy)
    assert wanted(ScalePolicy(**many, price_preset=PricePreset.SNAPPY), balanced)
    assert not wanted(ScalePolicy(**many, price_preset=PricePreset.FRUGAL), snappy)
    assert not wanted(ScalePolicy(**many, scale_ahead=False), snappy)
    assert wanted(ScalePolicy(**many, scale_ahead=True), balanced)
    assert not wanted(ScalePolicy(scale_ahead=True), snappy), "there is never a second instance"
    assert rise(serving(SNAPPY))[0] <= 4


def test_nothing_changes_where_it_is_off() -> None:
    """Not a decision, a word of it, what is recorded, nor what is remembered of demand."""
    silent, off = serving(), serving(scale_ahead=False)
    assert rise(silent) == rise(off)
    told = [[(at, action.reason, getattr(action, "inputs", {})) for at, action in one.trace] for one in (silent, off)]
    assert told[0] == told[1]
    assert not any("ahead" in str(inputs.get("scaled")) for _, _, inputs in told[0])
    demand = off.book.demand(NAME)
    assert (demand.dispersion, demand.bucket_s) == (None, 0.25)
    assert not plan(off.view(), off.now).horizons


def test_long_climbs_are_not_foreseen() -> None:
    slow = forecast.LONGEST_CLIMB_S + 1.0
    assert look(ScalePolicy(max_instances=2), slow) is None
    assert rise(serving(climb_s=slow, scale_ahead=True), 6, 12.0) == rise(serving(climb_s=slow, scale_ahead=False), 6, 12.0)


def test_decisions_are_made_again_from_their_events() -> None:
    cluster = serving(scale_ahead=True)
    rise(cluster)
    cluster.ask(in_flight=1)
    cluster.run_until(cluster.now + 300.0)
    told = [action for _, action in cluster.trace if isinstance(action, Assign | Retarget) and "scaled" in action.inputs]
    foreseen = [action for action in told if "foreseen" in action.reason]
    assert {action.rung is Rung.READY for action in foreseen} == {True, False}, "it went up and down"
    for action in told:
        event = DecisionMade(id="d", at=0.0, source="c", action="scale", reason=action.reason, inputs=action.inputs)
        again = replay_decision(event)
        assert isinstance(again, ScaleDecision)
        assert again.count == action.inputs["desired"]
        assert action.reason.startswith(again.reason)


def test_bursts_are_learned_and_what_was_learned_is_kept() -> None:
    cluster = serving(scale_ahead=True)
    calm = cluster.book.demand(NAME).dispersion
    for _ in range(30):
        for requests in (16, 1):
            cluster.ask(in_flight=requests)
            cluster.run_until(cluster.now + 3.0)
    learned = cluster.book.demand(NAME).dispersion
    assert calm is not None
    assert learned is not None
    assert calm < 1.0
    assert learned > 4.0
    horizons = plan(cluster.view(), cluster.now).horizons
    assert horizons == {NAME: {"AllTraffic": LookAhead(CLIMB_S, 60.0)}}
    cluster.book.look_ahead([NAME], {})
    assert cluster.book.demand(NAME).dispersion is None
    cluster.book.look_ahead([NAME], horizons)
    assert cluster.book.demand(NAME).dispersion == learned


def test_level_is_what_a_wait_costs_beside_memory() -> None:
    """A GiB for four slots against a second at 100, and at a price where both are alike."""
    cluster = serving(scale_ahead=True)
    (one,) = served(cluster.view().endpoints[NAME])
    up = cluster.view().endpoints[NAME].placed
    slot = GIB / 1e9 / 4

    def level(wait: float) -> float:
        policy = one.variant.policy.model_copy(update={"wait_price": wait})
        found = margin(cluster.view(), one.with_policy(policy), up)
        assert found is not None
        return found.level

    assert level(4 * slot) == pytest.approx(0.8)
    assert (level(0.0), level(100.0)) == (foresight.LEAST_LEVEL, foresight.MOST_LEVEL)
    assert margin(cluster.view(), one, ()) is None, "from zero there is nothing to foresee"
    gone = replace(cluster.view(), nodes={})
    assert margin(gone, one, up) == Margin(one.demand.dispersion, forecast.LEVEL)


def test_longest_memory_wins_and_parts_learn_apart() -> None:
    now = [0.0]
    book = DemandBook(lambda: now[0])
    looks = {"a": LookAhead(1.0, 60.0), "b": LookAhead(9.0, 72.0)}
    for second in range(40):
        now[0] = float(second)
        for variant, running in (("a", 5), ("b", 8 * (second // 9 % 2))):
            book.take_demand(
                Demand(
                    gateway="g",
                    boot_id="b",
                    sequence=2 * second + (variant == "b"),
                    tenant=TENANT,
                    endpoint="e",
                    variant=variant,
                    in_flight=running,
                    idle=0.0,
                    queued=0,
                )
            )
        book.look_ahead([NAME], {NAME: looks})
        book.keep_window(NAME, 60.0)
    calm, bursty = (book.by_variant(NAME, ("a", "b"))[variant] for variant in ("a", "b"))
    assert calm.dispersion is not None
    assert bursty.dispersion is not None
    assert calm.dispersion < 1.0 < bursty.dispersion
    assert bursty.bucket_s == pytest.approx(72.0 / 240)
    assert together(calm, bursty).dispersion == bursty.dispersion
    assert together(calm, EndpointDemand()).dispersion == calm.dispersion
