"""Whole decisions over time: what happens at which moment, with nodes that obey and one gateway that beats."""

from __future__ import annotations

import math
from typing import Any

import pytest

from standby.controller.actions import Assign, MarkEndpoint, Retarget, Unassign
from standby.controller.plan import plan
from standby.domain.demand import Demand
from standby.domain.endpoint import NO_MEMORY, EndpointStatus, Failure
from standby.domain.instance import InstanceState, Rung
from support.cluster import GIB, MIB, Cluster, cached, make_model

pytestmark = pytest.mark.decision


def started(**policy: Any) -> Cluster:
    cluster = Cluster()
    cluster.add_node()
    cluster.add_endpoint("e", **policy)
    cluster.decide()
    return cluster


def moves(cluster: Cluster) -> list[tuple[float, str]]:
    """Return (seconds since the start, what) of every change of a rung."""
    told: list[tuple[float, str]] = []
    for at, action in cluster.trace:
        if isinstance(action, Assign):
            told.append((round(at - 1000.0, 1), f"assign {action.rung.label}"))
        elif isinstance(action, Retarget):
            told.append((round(at - 1000.0, 1), f"{action.before.label} to {action.rung.label}"))
        elif isinstance(action, Unassign):
            told.append((round(at - 1000.0, 1), "cold"))
    return told


def test_nothing_is_started_while_nobody_asks() -> None:
    cluster = started()
    cluster.run_until(1500.0)
    assert cluster.trace == []


def test_down_the_whole_ladder_rung_by_rung() -> None:
    """Load 2 s, one request until t=5; ready 10 s, asleep 20 s, staged 30 s after that."""
    cluster = started(keep_ready=10, keep_asleep=20, keep_staged=30)
    cluster.ask(queued=1)
    cluster.decide()
    cluster.run_until(1002.5)
    cluster.ask(in_flight=1)
    cluster.run_until(1005.0)
    cluster.ask()
    cluster.run_until(1100.0)
    assert moves(cluster) == [
        (0.0, "assign ready"),
        (15.0, "ready to asleep"),
        (35.1, "asleep to staged"),
        (65.2, "cold"),
    ]


def test_a_time_of_zero_skips_the_rung_and_forever_never_leaves_it() -> None:
    cluster = started(keep_ready=10, keep_asleep=0, keep_staged="forever")
    cluster.ask(queued=1)
    cluster.run_until(1002.5)
    cluster.ask()
    cluster.run_until(9000.0)
    assert moves(cluster) == [(0.0, "assign ready"), (12.5, "ready to staged")]
    assert cluster.state_of() == ["staged"]


def test_up_in_one_jump_from_where_it_rests() -> None:
    cluster = started(keep_ready=1, keep_asleep=1, keep_staged="forever")
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask()
    cluster.run_until(1010.0)
    assert cluster.state_of() == ["staged"]
    cluster.ask(queued=1)
    cluster.decide()
    assert moves(cluster)[-1] == (10.0, "staged to ready")


def test_loading_counts_as_activity_and_the_idle_clock_starts_at_ready() -> None:
    """Field case B11: idle limit 10 s, load 20 s, the only caller leaves after 12 s."""
    cluster = started(keep_ready=10)
    cluster.load_s = 20.0
    cluster.ask(queued=1)
    cluster.run_until(1012.0)
    cluster.ask()
    cluster.run_until(1029.9)
    assert moves(cluster) == [(0.0, "assign ready")]
    cluster.run_until(1031.0)
    assert moves(cluster) == [(0.0, "assign ready"), (30.0, "ready to asleep")]


def test_forty_first_requests_start_one_instance_even_if_two_are_allowed() -> None:
    """Field case B07: the queue behind one load is no measure of demand, neither while loading nor just after."""
    cluster = started(slots=4, max_instances=2)
    cluster.load_s = 8.0
    cluster.ask(queued=40)
    cluster.run_until(1008.0)
    cluster.ask(in_flight=4, queued=36)
    cluster.run_until(1010.0)
    cluster.ask(in_flight=4, queued=0)
    cluster.run_until(1030.0)
    assert moves(cluster) == [(0.0, "assign ready")]


def test_a_queue_behind_a_long_load_starts_no_second_one() -> None:
    cluster = started(slots=4, max_instances=3)
    cluster.load_s = 60.0
    cluster.ask(queued=40)
    cluster.run_until(1059.0)
    assert moves(cluster) == [(0.0, "assign ready")]


def test_while_one_instance_loads_the_idle_one_beside_it_stays() -> None:
    """Field case B11 with two instances: what loads has not had its chance to serve yet."""
    cluster = started(slots=1, max_instances=2, keep_ready=5, scale_in_after=600)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.load_s = 40.0
    cluster.ask(in_flight=1, queued=5)
    cluster.run_until(1015.0)
    assert cluster.state_of() == ["new", "ready"]
    cluster.ask()
    cluster.run_until(1050.0)
    assert cluster.state_of() == ["new", "ready"]
    cluster.run_until(1055.0)
    assert cluster.state_of() == ["ready", "ready"]
    cluster.run_until(1060.0)
    assert cluster.state_of() == ["asleep", "asleep"]


def test_no_third_instance_beside_one_that_failed() -> None:
    cluster = started(slots=1, max_instances=4, keep_ready=600, scale_in_after=600)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.fails.add("e")
    cluster.ask(in_flight=1, queued=1)
    cluster.run_until(1015.0)
    cluster.ask(in_flight=1, queued=20)
    cluster.run_until(1090.0)
    assert cluster.state_of() == ["failed", "ready"]
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_lasting_excess_scales_out_up_to_the_limit_and_in_after_the_window() -> None:
    cluster = started(slots=4, max_instances=3, scale_in_after=60, keep_ready=300)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask(in_flight=4, queued=96)
    cluster.run_until(1030.0)
    assert cluster.state_of() == ["ready"] * 3, "100 requests need 25 instances, 3 are allowed"
    cluster.ask(in_flight=3)
    cluster.run_until(1089.0)
    assert cluster.state_of() == ["ready"] * 3, "the peak is still inside the window"
    cluster.run_until(1092.0)
    assert cluster.state_of() == ["asleep", "asleep", "ready"]


def test_requests_pin_the_endpoint_however_long_they_run() -> None:
    cluster = started(keep_ready=5)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask(in_flight=1)
    cluster.run_until(2000.0)
    assert cluster.state_of() == ["ready"]


def test_an_instance_with_requests_inside_is_busy_whatever_the_gateway_says() -> None:
    cluster = started(keep_ready=5)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    (name,) = cluster.slots
    cluster.report(name, InstanceState.READY, in_flight=1, idle_since=None)
    cluster.ask()
    cluster.run_until(1100.0)
    assert cluster.state_of() == ["ready"]
    cluster.report(name, InstanceState.READY, in_flight=0)
    cluster.run_until(1104.0)
    assert cluster.state_of() == ["ready"]
    cluster.run_until(1106.0)
    assert cluster.state_of() == ["asleep"]


def test_no_gateway_means_no_data_and_nothing_sinks() -> None:
    cluster = started(keep_ready=5, keep_asleep=3600)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask()
    cluster.beats = False
    cluster.run_until(1004.0)
    # the beats ended here; 10 s later there is no data any more, but until then 5 s idle may be acted upon
    cluster.run_until(1008.0)
    assert cluster.state_of() == ["asleep"]
    cluster.run_until(9000.0)
    assert cluster.state_of() == ["asleep"], "keep_asleep is over, but nobody reports"
    cluster.beats = True
    cluster.run_until(9003.0)
    assert cluster.state_of() == ["staged"]


def test_a_gateway_killed_with_requests_in_flight_does_not_pin_the_endpoint() -> None:
    """Field case B20: its counts are a lease of 10 s; another gateway still reports."""
    cluster = started(keep_ready=5)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.book.take_demand(
        Demand(gateway="g2", boot_id="x", sequence=1, tenant="000000000000", endpoint="e", in_flight=4, queued=0, idle=0)
    )
    cluster.ask()
    cluster.run_until(1011.9)
    assert cluster.state_of() == ["ready"]
    cluster.run_until(1013.0)
    assert cluster.state_of() == ["asleep"], "last heard at 1002 counts as its last activity"


def test_min_ready_is_kept_without_any_request() -> None:
    cluster = started(min_ready=2, max_instances=3, keep_ready=5)
    cluster.run_until(2000.0)
    assert cluster.state_of() == ["ready", "ready"]
    assert moves(cluster) == [(0.0, "assign ready")] * 2


def test_a_broken_model_fails_loudly_once_and_starves_nobody() -> None:
    """Field case B12: one instance, retried by its node alone; the neighbour is served on time."""
    cluster = started(keep_ready=600)
    cluster.add_endpoint("b")
    cluster.fails.add("e")
    cluster.ask("e", queued=1)
    cluster.run_until(1120.0)
    cluster.ask("b", queued=1)
    cluster.decide()
    cluster.run_until(1122.0)
    assert cluster.state_of("b") == ["ready"]
    cluster.run_until(1600.0)
    assert [what for _, what in moves(cluster)] == ["assign ready"] * 2, "one for each endpoint"
    assert cluster.status_of("e") is EndpointStatus.FAILED
    failure = cluster.endpoints["000000000000.e"][0].failure
    assert failure is not None
    assert failure.reason == "engine exited with code 1"
    assert failure.first_error == "bad model"
    assert failure.attempts > 10
    assert cluster.status_of("b") is EndpointStatus.IN_SERVICE


def test_a_failed_instance_is_let_go_when_nobody_asks_any_more() -> None:
    cluster = started(keep_ready=100)
    cluster.fails.add("e")
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    cluster.ask()
    cluster.run_until(1150.0)
    assert cluster.state_of() == []
    assert cluster.status_of() is EndpointStatus.FAILED
    cluster.run_until(2000.0)
    assert len(moves(cluster)) == 2, "nobody asks, so nothing is tried"
    cluster.fails.clear()
    cluster.ask(queued=1)
    cluster.run_until(2010.0)
    assert cluster.state_of() == ["ready"]
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_a_retry_by_hand_clears_the_failure_and_starts_a_fresh_instance() -> None:
    cluster = started(keep_ready=600)
    cluster.fails.add("e")
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    assert cluster.status_of() is EndpointStatus.FAILED
    cluster.fails.clear()
    cluster.retry()
    cluster.decide()
    assert cluster.status_of() is EndpointStatus.IN_SERVICE
    assert moves(cluster)[1:] == [(3.0, "assign ready"), (3.0, "cold")]
    cluster.run_until(1010.0)
    assert cluster.state_of() == ["ready"]


def test_a_retry_without_any_instance_left_clears_the_failure() -> None:
    cluster = started(keep_ready=1)
    cluster.fails.add("e")
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    cluster.ask()
    cluster.run_until(1100.0)
    assert (cluster.state_of(), cluster.status_of()) == ([], EndpointStatus.FAILED)
    cluster.retry()
    cluster.decide()
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_no_room_is_said_in_words_and_forgotten_when_there_is_room() -> None:
    cluster = Cluster()
    cluster.add_node("n1", capacity=2 * GIB)
    cluster.add_endpoint("e", model=make_model("big", 4 * GIB))
    cluster.ask(queued=1)
    made = cluster.decide()
    (mark,) = [a for a in made.actions if isinstance(a, MarkEndpoint)]
    assert mark.status is EndpointStatus.FAILED
    assert mark.failure is not None
    assert "needs 5325 MiB, largest free 2048 MiB" in mark.failure.reason
    cluster.add_node("n2", capacity=8 * GIB)
    cluster.decide()
    assert cluster.status_of() is EndpointStatus.IN_SERVICE
    assert [s.assignment.node for s in cluster.slots.values()] == ["n2"]


def test_memory_already_promised_is_not_promised_twice() -> None:
    cluster = Cluster()
    cluster.add_node("n1", capacity=1000 * MIB)
    cluster.add_endpoint("a", memory_mb=600)
    cluster.add_endpoint("b", memory_mb=600)
    cluster.ask("a", queued=1)
    cluster.ask("b", queued=1)
    cluster.decide()
    assert (cluster.state_of("a"), cluster.state_of("b")) == (["new"], [])
    assert cluster.status_of("b") is EndpointStatus.FAILED


def test_a_node_that_refuses_the_memory_for_longer_is_a_failure_that_people_see() -> None:
    """The node's own estimate is above the controller's: without a word the endpoint would be on its way for ever."""
    cluster = started(keep_ready=10)
    cluster.ask(queued=1)
    cluster.decide()
    (slot,) = cluster.slots
    cluster.slots[slot].done_at = math.inf
    for attempts in (1, 2, 3):
        refusal = Failure(reason="needs 500 bytes", code=NO_MEMORY, attempts=attempts)
        cluster.report(slot, InstanceState.STAGED, failure=refusal)
        cluster.decide()
        assert cluster.status_of() is EndpointStatus.IN_SERVICE
    cluster.report(slot, InstanceState.STAGED, failure=Failure(reason="needs 500 bytes", code=NO_MEMORY, attempts=4))
    cluster.decide()
    assert cluster.status_of() is EndpointStatus.FAILED
    marks = len(cluster.trace)
    cluster.report(slot, InstanceState.STARTING, failure=Failure(reason="needs 500 bytes", code=NO_MEMORY, attempts=5))
    cluster.decide()
    assert len(cluster.trace) == marks, "each further try is no news"

    cluster.ask()
    cluster.run_until(1060.0)
    assert cluster.state_of() == [], "nobody asks any more: the climb is given up"
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_a_lost_node_is_no_capacity_but_keeps_its_assignments_for_five_minutes() -> None:
    cluster = started(keep_ready=5000)
    cluster.ask(queued=1)
    cluster.run_until(1010.0)
    cluster.add_node("n2")
    cluster.silent_nodes.add("n1")
    cluster.run_until(1020.0)
    assert len(cluster.slots) == 1
    cluster.run_until(1030.0)
    assert sorted(s.assignment.node for s in cluster.slots.values()) == ["n1", "n2"]
    cluster.run_until(1300.0)
    assert len(cluster.slots) == 2
    cluster.run_until(1320.0)
    assert [s.assignment.node for s in cluster.slots.values()] == ["n2"]


def test_deleting_removes_assignments_first_and_the_record_last() -> None:
    cluster = started()
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    cluster.ask()
    record, _ = cluster.endpoints["000000000000.e"]
    cluster.endpoints["000000000000.e"] = (record.model_copy(update={"status": EndpointStatus.DELETING}), 999)
    first = cluster.decide()
    assert [type(a).__name__ for a in first.actions] == ["Unassign"]
    second = cluster.decide()
    assert [type(a).__name__ for a in second.actions] == ["DropEndpoint"]
    assert cluster.endpoints == {}


def test_a_new_model_version_replaces_the_old_one_only_when_it_is_ready() -> None:
    cluster = started(keep_ready=500, max_instances=1)
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    cluster.ask(in_flight=1)
    cluster.models["m-e"] = make_model("m-e", size=120 * MIB)
    cluster.decide()
    assert cluster.state_of() == ["new", "ready"]
    cluster.run_until(1006.0)
    assert cluster.state_of() == ["ready"]
    assert next(iter(cluster.slots.values())).assignment.model.manifest.total_bytes == 120 * MIB


def test_the_plan_says_itself_when_it_is_due() -> None:
    """No polling: with a silent node aside, the next wake of an idle endpoint is exactly the end of its rung."""
    cluster = started(keep_ready=600)
    cluster.ask(queued=1)
    cluster.run_until(1002.0)
    cluster.ask()
    assert plan(cluster.view(), cluster.now).wakes["000000000000.e"] == pytest.approx(1602.0)
    cluster.run_until(1602.0)
    asleep_at = plan(cluster.view(), cluster.now)
    assert asleep_at.actions == ()
    assert cluster.state_of() == ["ready"], "it is on its way to asleep"
    assert asleep_at.wakes["000000000000.e"] == math.inf, "the node's word is awaited, no clock"


@pytest.mark.parametrize("prices", [{Rung.STAGED: 0.2}, {Rung.STAGED: 0.2, Rung.ASLEEP: 0.4}, {Rung.COLD: 0.1}])
def test_a_sleeper_is_woken_whatever_the_prices_say(prices: dict[Rung, float]) -> None:
    """A second instance beside it would leave the sleeper behind for good: a small model's start may measure faster."""
    cluster = Cluster()
    model = make_model("m-e")
    cluster.add_node(costs={model.manifest.digest: prices}, artifacts=(cached(model),))
    cluster.add_endpoint("e", model=model, keep_ready=1, keep_asleep=600)
    cluster.decide()
    for at in (1010.0, 1020.0):
        cluster.ask(queued=1)
        cluster.run_until(at - 5.0)
        cluster.ask()
        cluster.run_until(at)
        assert cluster.state_of() == ["asleep"]
