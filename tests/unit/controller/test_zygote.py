"""The zygote rung over time and in placement: how long it is kept, how it is left, what starts from it."""

from __future__ import annotations

from typing import Any

import pytest

from standby.controller import placement
from standby.controller.actions import Assign, Retarget, Unassign
from standby.controller.plan import plan
from standby.domain.endpoint import EndpointStatus
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import Zygote
from support.cluster import HATCHED, TENANT, Cluster, cached, make_model

pytestmark = pytest.mark.decision

LADDER: dict[str, Any] = {"keep_ready": 10, "keep_asleep": 20, "keep_zygote": 40, "keep_staged": 30}


def served(*, zygotes: object = HATCHED, **policy: Any) -> Cluster:
    """One request, answered at second 5, on a node that has a zygote; then nobody asks."""
    cluster = Cluster()
    cluster.add_node(zygotes=zygotes)
    cluster.add_endpoint("e", **{**LADDER, **policy})
    cluster.ask(queued=1)
    cluster.run_until(1002.5)
    cluster.ask(in_flight=1)
    cluster.run_until(1005.0)
    cluster.ask()
    return cluster


def moves(cluster: Cluster) -> list[tuple[float, str]]:
    """Return (seconds since the start, the rung that was ordered) of every order."""
    told: list[tuple[float, str]] = []
    for at, action in cluster.trace:
        if isinstance(action, Assign | Retarget):
            told.append((round(at - 1000.0, 1), action.rung.label))
        elif isinstance(action, Unassign):
            told.append((round(at - 1000.0, 1), "cold"))
    return told


def test_down_the_whole_ladder_with_a_zygote() -> None:
    cluster = served()
    cluster.run_until(1200.0)
    assert moves(cluster) == [(0.0, "ready"), (15.0, "asleep"), (35.1, "zygote"), (75.2, "staged"), (105.3, "cold")]


def test_an_engine_without_a_zygote_on_its_node_skips_the_rung() -> None:
    """Another engine's zygote is none of its own."""
    cluster = served(zygotes={EngineKind.VLLM: Zygote(state="ready")})
    cluster.run_until(1200.0)
    assert moves(cluster) == [(0.0, "ready"), (15.0, "asleep"), (35.1, "staged"), (65.2, "cold")]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"keep_zygote": 0}, [(0.0, "ready"), (15.0, "asleep"), (35.1, "staged"), (65.2, "cold")]),
        ({"keep_asleep": 0}, [(0.0, "ready"), (15.0, "zygote"), (55.1, "staged"), (85.2, "cold")]),
        ({"keep_staged": 0}, [(0.0, "ready"), (15.0, "asleep"), (35.1, "zygote"), (75.2, "cold")]),
        ({"keep_zygote": "forever"}, [(0.0, "ready"), (15.0, "asleep"), (35.1, "zygote")]),
        ({"keep_asleep": 0, "keep_zygote": 0, "keep_staged": 0}, [(0.0, "ready"), (15.0, "cold")]),
    ],
)
def test_zero_skips_a_rung_and_forever_stays(policy: dict[str, Any], expected: list[tuple[float, str]]) -> None:
    cluster = served(**policy)
    cluster.run_until(1400.0)
    assert moves(cluster) == expected


def test_surplus_instances_skip_to_the_zygote_where_nothing_sleeps() -> None:
    cluster = Cluster()
    cluster.add_node(zygotes=HATCHED)
    cluster.add_endpoint("e", slots=1, max_instances=2, scale_in_after=5, keep_ready=600, keep_asleep=0)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask(in_flight=2)
    cluster.run_until(1020.0)
    assert cluster.state_of() == ["ready", "ready"]
    cluster.ask(in_flight=1)
    cluster.run_until(1040.0)
    assert cluster.state_of() == ["ready", "zygote"]


def test_waking_from_the_zygote_is_one_jump_of_the_instance_that_rests_there() -> None:
    cluster = served(keep_zygote="forever")
    cluster.run_until(1100.0)
    assert cluster.state_of() == ["zygote"]
    cluster.ask(queued=1)
    made = cluster.decide()
    (climb,) = made.actions
    assert isinstance(climb, Retarget)
    assert (climb.before, climb.rung, climb.inputs["from_rung"]) == (Rung.ZYGOTE, Rung.READY, "zygote")
    cluster.run_until(1102.0)
    assert cluster.state_of() == ["ready"]


def test_while_the_zygote_hatches_what_waits_for_it_is_not_dropped() -> None:
    """Bytes alone are not kept at all here: the seconds of hatching must not end what is to rest on the zygote."""
    cluster = served(keep_staged=0)
    cluster.hatch_s = 25.0
    cluster.run_until(1050.0)
    assert cluster.state_of() == ["staged"]
    cluster.run_until(1061.0)
    assert cluster.state_of() == ["zygote"]
    cluster.run_until(1200.0)
    assert moves(cluster) == [(0.0, "ready"), (15.0, "asleep"), (35.1, "zygote"), (100.2, "cold")]


def test_a_zygote_that_never_comes_holds_nothing_up() -> None:
    """The node goes on trying; the instance waits as long as it might have rested there, then sinks further."""
    cluster = served()
    cluster.no_hatch.add("n1")
    cluster.run_until(1070.0)
    assert cluster.state_of() == ["staged"]
    assert cluster.status_of() is EndpointStatus.IN_SERVICE, "no zygote is no failed endpoint: it climbs without"
    cluster.run_until(1200.0)
    assert moves(cluster)[2:] == [(35.1, "zygote"), (75.2, "staged"), (75.3, "cold")]


def test_without_its_zygote_it_is_asked_and_climbs() -> None:
    cluster = served()
    cluster.no_hatch.add("n1")
    cluster.run_until(1050.0)
    cluster.ask(queued=1)
    cluster.run_until(1053.0)
    assert cluster.state_of() == ["ready"]


def test_a_lost_zygote_is_waited_for_again_and_its_time_begins_anew() -> None:
    cluster = served(keep_staged=0)
    cluster.run_until(1050.0)
    (name,) = cluster.slots
    assert cluster.state_of() == ["zygote"]
    cluster.report(name, InstanceState.STAGED)
    cluster.decide()
    cluster.run_until(1060.0)
    assert cluster.state_of() == ["staged"], "its node hatches another one"
    cluster.report(name, InstanceState.ZYGOTE)
    cluster.decide()
    cluster.run_until(1099.0)
    assert cluster.state_of() == ["zygote"]
    cluster.run_until(1101.0)
    assert moves(cluster)[-1] == (100.0, "cold")


def test_what_was_told_to_rest_on_a_zygote_that_its_node_has_no_more_sinks_as_staged() -> None:
    """E.g. the node came back with another interpreter: no order may wait for a rung that does not exist."""
    cluster = served()
    cluster.run_until(1050.0)
    (name,) = cluster.slots
    cluster.add_node(zygotes={})
    cluster.report(name, InstanceState.STAGED)
    cluster.decide()
    cluster.run_until(1200.0)
    assert moves(cluster)[2:] == [(35.1, "zygote"), (80.0, "cold")]


def test_the_plan_says_when_the_zygotes_time_is_over() -> None:
    cluster = served()
    cluster.run_until(1050.0)
    assert plan(cluster.view(), cluster.now).wakes[f"{TENANT}.e"] == pytest.approx(1075.2)


# ---- placement -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zygotes", "artifacts", "rung"),
    [
        (HATCHED, True, "zygote"),
        (HATCHED, False, "cold"),
        ({EngineKind.FAKE: Zygote(state="hatching")}, True, "staged"),
        ({EngineKind.VLLM: Zygote(state="ready")}, True, "staged"),
        ({}, True, "staged"),
    ],
)
def test_a_new_instance_starts_from_the_zygote_where_bytes_and_zygote_are(zygotes: object, artifacts: bool, rung: str) -> None:
    model = make_model("m-e")
    cluster = Cluster()
    cluster.add_node(zygotes=zygotes, artifacts=(cached(model),) if artifacts else ())
    cluster.add_endpoint("e", model=model)
    cluster.ask(queued=1)
    (assign,) = [action for action in cluster.decide().actions if isinstance(action, Assign)]
    assert assign.inputs["from_rung"] == rung
    assert f"s from {rung} on n1" in assign.reason


def test_of_two_nodes_that_hold_the_bytes_the_one_with_a_ready_zygote_is_taken() -> None:
    model = make_model("m-e")
    cluster = Cluster()
    cluster.add_node("n1", artifacts=(cached(model),))
    cluster.add_node("n2", artifacts=(cached(model),), zygotes=HATCHED)
    cluster.add_endpoint("e", model=model)
    cluster.ask(queued=1)
    cluster.decide()
    assert [slot.assignment.node for slot in cluster.slots.values()] == ["n2"]


def test_the_measured_price_of_the_fork_counts() -> None:
    model = make_model("m-e")
    prices = {model.manifest.digest: {Rung.ZYGOTE: 7.2, Rung.STAGED: 43.4}}
    cluster = Cluster()
    cluster.add_node(artifacts=(cached(model),), zygotes=HATCHED, costs=prices)
    node = cluster.nodes["n1"]
    assert placement.seconds_to_ready(node, model.manifest.digest, Rung.ZYGOTE, 1) == 7.2
    cluster.add_endpoint("e", model=model)
    cluster.ask(queued=1)
    (assign,) = [action for action in cluster.decide().actions if isinstance(action, Assign)]
    assert assign.inputs["predicted_s"] == 7.2
