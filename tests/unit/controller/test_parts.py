"""The controller's pure parts, one by one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from standby.controller import keepalive, placement, scaling, victims
from standby.controller.actions import ConfirmAbsent
from standby.controller.asked import Bucket, EndpointDemand
from standby.controller.demand import DemandBook
from standby.controller.plan import plan
from standby.controller.sites import Sites
from standby.controller.view import ObservedNode, observe_instance, observe_node
from standby.domain.demand import Demand, GatewayBeat
from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import MemoryLedger
from support.cluster import GIB, MIB, TENANT, Cluster, cached, make_model, make_node

pytestmark = pytest.mark.decision
MODEL = make_model(size=100 * MIB)
DIGEST = MODEL.manifest.digest
VARIANT = Variant(model="smol", memory_mb=512)
SINCE = keepalive.Clocks(50.0, 50.0)


def living(name: str = "n1", **fields: object) -> ObservedNode:
    return ObservedNode(make_node(name, **fields), seen_at=100.0, confirmed=True)  # type: ignore[arg-type]


def choose(*nodes: ObservedNode, promised: dict[str, int] | None = None) -> placement.Choice | placement.NoFit:
    sites = Sites({n.record.name: n for n in nodes}, promised or {}, 101.0)
    return placement.choose(VARIANT, MODEL, sites, (), TENANT)


# ---- keep-alive ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "rung", "age", "expected"),
    [
        ({"keep_ready": 10, "keep_asleep": 0, "keep_zygote": 9}, Rung.READY, 10.0, Rung.STAGED),
        ({"keep_ready": 10}, Rung.READY, 9.9, Rung.READY),
        ({"keep_ready": 10}, Rung.READY, 10.0, Rung.ASLEEP),
        ({"keep_ready": 10, "keep_asleep": 0}, Rung.READY, 10.0, Rung.STAGED),
        ({"keep_ready": 0, "keep_asleep": 0, "keep_staged": 0}, Rung.READY, 0.0, Rung.COLD),
        ({"keep_ready": "forever"}, Rung.READY, 1e9, Rung.READY),
        ({"keep_asleep": 5}, Rung.ASLEEP, 5.0, Rung.STAGED),
        ({"keep_asleep": 5, "keep_staged": 0}, Rung.ASLEEP, 5.0, Rung.COLD),
        ({"keep_staged": "forever"}, Rung.STAGED, 1e9, Rung.STAGED),
        ({"keep_staged": 7}, Rung.STAGED, 7.0, Rung.COLD),
    ],
)
def test_keep_alive(policy: dict[str, object], rung: Rung, age: float, expected: Rung) -> None:
    decision = keepalive.keep(rung, SINCE, ScalePolicy.model_validate(policy), None, 50.0 + age, zygote=False)
    assert decision.rung is expected


@pytest.mark.parametrize(
    ("policy", "rung", "age", "expected"),
    [
        ({"keep_ready": 10}, Rung.READY, 10.0, Rung.ASLEEP),
        ({"keep_ready": 10, "keep_asleep": 0}, Rung.READY, 10.0, Rung.ZYGOTE),
        ({"keep_ready": 10, "keep_asleep": 0, "keep_zygote": 0}, Rung.READY, 10.0, Rung.STAGED),
        ({"keep_asleep": 5}, Rung.ASLEEP, 5.0, Rung.ZYGOTE),
        ({"keep_asleep": 5, "keep_zygote": 0, "keep_staged": 0}, Rung.ASLEEP, 5.0, Rung.COLD),
        ({"keep_zygote": 7}, Rung.ZYGOTE, 6.9, Rung.ZYGOTE),
        ({"keep_zygote": 7}, Rung.ZYGOTE, 7.0, Rung.STAGED),
        ({"keep_zygote": 7, "keep_staged": 0}, Rung.ZYGOTE, 7.0, Rung.COLD),
        ({"keep_zygote": "forever"}, Rung.ZYGOTE, 1e9, Rung.ZYGOTE),
        ({"keep_staged": 7}, Rung.STAGED, 7.0, Rung.COLD),
    ],
)
def test_keep_alive_of_an_engine_that_has_a_zygote(policy: dict[str, object], rung: Rung, age: float, expected: Rung) -> None:
    decision = keepalive.keep(rung, SINCE, ScalePolicy.model_validate(policy), None, 50.0 + age, zygote=True)
    assert decision.rung is expected


def test_keep_alive_says_when_it_will_change() -> None:
    policy = ScalePolicy(keep_ready=10, keep_staged=math.inf)
    assert keepalive.keep(Rung.READY, SINCE, policy, None, 52.0, zygote=False).wake_at == 60.0
    assert keepalive.keep(Rung.STAGED, SINCE, policy, None, 52.0, zygote=False).wake_at == math.inf


# ---- scaling ---------------------------------------------------------------------------------------------


def history(*values: tuple[float, int]) -> tuple[Bucket, ...]:
    return tuple(Bucket(at, value, value, value) for at, value in values)


def desired(demand: EndpointDemand, current: int, ready: int, now: float, share: float = 1.0, **policy: object) -> int:
    capacity = scaling.Capacity(current, ready, 0.0 if ready else None, climb_s=2.0)
    return scaling.desired(demand, share, ScalePolicy.model_validate(policy), capacity, now).count


def test_a_share_of_the_traffic_asks_for_a_share_of_the_instances() -> None:
    demand = EndpointDemand(in_flight=40, valid=True, history=history((0.0, 40)))
    assert desired(demand, 1, 1, 100.0, share=0.25, slots=4, max_instances=20) == 3
    assert desired(demand, 1, 1, 100.0, share=0.75, slots=4, max_instances=20) == 8
    assert desired(demand, 0, 0, 100.0, share=0.0, slots=4, max_instances=20) == 0


def test_an_excess_shorter_than_a_start_is_waited_out() -> None:
    demand = EndpointDemand(in_flight=4, queued=20, valid=True, history=history((0.0, 2), (98.5, 24)))
    capacity = scaling.Capacity(1, 1, 0.0, climb_s=2.0)
    decision = scaling.desired(demand, 1.0, ScalePolicy(slots=4, max_instances=9), capacity, 100.0)
    assert decision.count == 1
    assert decision.wake_at == pytest.approx(100.5)
    later = scaling.desired(demand, 1.0, ScalePolicy(slots=4, max_instances=9), capacity, decision.wake_at)
    assert later.count == 6


def test_scale_in_needs_data_for_a_whole_window() -> None:
    demand = EndpointDemand(in_flight=1, valid=True, valid_since=90.0, history=history((90.0, 1)))
    assert desired(demand, 3, 3, 100.0, max_instances=3, scale_in_after=60) == 3
    assert desired(demand, 3, 3, 151.0, max_instances=3, scale_in_after=60) == 1
    assert desired(replace(demand, valid=False), 3, 3, 151.0, max_instances=3, scale_in_after=60) == 3
    assert desired(demand, 3, 3, 151.0, max_instances=3, scale_in_after="forever") == 3


def test_scale_in_leaves_what_the_peak_needs() -> None:
    demand = EndpointDemand(valid=True, valid_since=0.0, history=history((100.0, 0), (120.0, 7), (121.0, 0)))
    assert desired(demand, 3, 3, 170.0, slots=4, max_instances=3, scale_in_after=60) == 2
    assert desired(demand, 3, 3, 182.0, slots=4, max_instances=3, scale_in_after=60) == 1


# ---- placement -------------------------------------------------------------------------------------------


def test_measured_costs_decide() -> None:
    slow = living("slow", costs={DIGEST: {Rung.COLD: 90.0}})
    fast = living("fast", costs={DIGEST: {Rung.COLD: 3.5}})
    choice = choose(slow, fast)
    assert isinstance(choice, placement.Choice)
    assert (choice.node, choice.seconds) == ("fast", 3.5)


def test_a_node_that_holds_the_artifact_is_preferred() -> None:
    choice = choose(living("empty"), living("holder", artifacts=(cached(MODEL),)))
    assert isinstance(choice, placement.Choice)
    assert (choice.node, choice.from_rung) == ("holder", Rung.STAGED)


def test_a_node_that_has_not_been_seen_alive_is_the_last_resort() -> None:
    doubtful = replace(living("doubtful", artifacts=(cached(MODEL),)), confirmed=False)
    both = choose(doubtful, living("sure"))
    alone = choose(doubtful)
    assert isinstance(both, placement.Choice)
    assert isinstance(alone, placement.Choice)
    assert (both.node, alone.node) == ("sure", "doubtful")


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (None, "no node is alive"),
        (living(engines=(EngineKind.VLLM,)), "no living node runs the engine fake"),
        (living(memory=MemoryLedger(capacity=GIB, reserved=GIB - MIB)), "needs 512 MiB, largest free 1 MiB"),
        (replace(living(), seen_at=80.0), "no node is alive"),
    ],
)
def test_why_nothing_fits(node: ObservedNode | None, words: str) -> None:
    result = choose(*([node] if node else []))
    assert isinstance(result, placement.NoFit)
    assert words in result.reason


def test_what_is_promised_is_not_free() -> None:
    node = living(memory=MemoryLedger(capacity=GIB))
    assert isinstance(choose(node, promised={"n1": 400 * MIB}), placement.Choice)
    assert isinstance(choose(node, promised={"n1": 600 * MIB}), placement.NoFit)


def test_memory_is_estimated_from_the_size_where_it_is_not_configured() -> None:
    assert placement.memory_need(None, MODEL) == 130 * MIB
    assert placement.memory_need(512, MODEL) == 512 * MIB


def test_victims_leave_in_order() -> None:
    cluster = Cluster()
    cluster.add_node()
    cluster.add_endpoint("e", min_ready=5, max_instances=5)
    cluster.decide()
    failed, starting, idle, less_busy, busy = cluster.slots
    cluster.report(busy, InstanceState.READY, in_flight=3, idle_since=None)
    cluster.report(less_busy, InstanceState.READY, in_flight=1, idle_since=None)
    cluster.report(idle, InstanceState.READY)
    cluster.report(starting, InstanceState.STARTING)
    cluster.report(failed, InstanceState.FAILED)
    placed = cluster.view().endpoints[f"{TENANT}.e"].placed
    assert [p.key for p in victims.in_order(reversed(placed))] == [failed, starting, idle, less_busy, busy]


# ---- demand ----------------------------------------------------------------------------------------------


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def said(gateway: str, sequence: int, in_flight: int, queued: int = 0, idle: float = 0.0, boot: str = "b") -> Demand:
    return Demand(
        gateway=gateway,
        boot_id=boot,
        sequence=sequence,
        tenant=TENANT,
        endpoint="e",
        in_flight=in_flight,
        queued=queued,
        idle=idle,
    )


NAME = f"{TENANT}.e"


def test_gateways_are_added_up_and_the_latest_activity_counts() -> None:
    clock = Clock()
    book = DemandBook(clock)
    book.take_demand(said("g1", 1, 2, queued=3))
    book.take_demand(said("g2", 1, 1))
    assert (book.demand(NAME).in_flight, book.demand(NAME).queued) == (3, 3)
    clock.now = 104.0
    book.take_demand(said("g1", 2, 0, idle=3.0))
    book.take_demand(said("g2", 2, 0, idle=1.5))
    assert book.demand(NAME).active_at == 102.5


def test_older_messages_are_dropped_and_a_restarted_gateway_begins_anew() -> None:
    book = DemandBook(Clock())
    assert book.take_demand(said("g1", 5, 2))
    assert not book.take_demand(said("g1", 4, 9))
    assert book.demand(NAME).in_flight == 2
    assert book.take_demand(said("g1", 1, 1, boot="other"))
    assert book.demand(NAME).in_flight == 1


def test_what_a_beat_does_not_mention_is_over() -> None:
    clock = Clock()
    book = DemandBook(clock)
    book.take_demand(said("g1", 1, 2))
    clock.now = 101.0
    assert book.take_beat(GatewayBeat(gateway="g1", boot_id="b", sequence=2)) == (NAME,)
    assert book.demand(NAME).concurrency == 0
    assert book.demand(NAME).active_at == 101.0


def test_a_lease_runs_out_after_ten_seconds() -> None:
    clock = Clock()
    book = DemandBook(clock)
    book.take_demand(said("g1", 1, 4))
    assert book.next_expiry() == 110.0
    clock.now = 109.9
    assert book.expire() == ()
    clock.now = 110.0
    assert book.expire() == (NAME,)
    demand = book.demand(NAME)
    assert (demand.concurrency, demand.valid, book.valid) == (0, False, False)
    assert demand.active_at == 100.0, "what it had running counts until it was last heard"


def test_the_peak_and_the_trough_of_a_window() -> None:
    clock = Clock()
    book = DemandBook(clock)
    for second, value in enumerate([1, 9, 3, 3, 2]):
        clock.now = 100.0 + second
        book.take_demand(said("g1", second, value))
    demand = book.demand(NAME)
    assert demand.peak_since(102.3) == 3
    assert demand.peak_since(100.5) == 9
    assert demand.trough_since(102.3) == 2


def test_a_long_window_is_remembered_in_few_buckets() -> None:
    clock = Clock()
    book = DemandBook(clock)
    book.keep_window(NAME, 3600.0)
    for second in range(20_000):
        clock.now = 100.0 + second
        book.take_demand(said("g1", second, second % 7))
    assert len(book.demand(NAME).history) < 260


# ---- clocks ----------------------------------------------------------------------------------------------


def test_two_machines_clocks_are_never_compared() -> None:
    """A node's clock is a year behind; ages are those that the node itself could measure, or those seen to pass."""
    cluster = Cluster(now=5000.0)
    cluster.add_node()
    cluster.add_endpoint("e", min_ready=1)
    cluster.decide()
    (name,) = cluster.slots
    cluster.report(name, InstanceState.READY)
    seen = cluster.slots[name].seen
    assert seen is not None
    late = seen.record.model_copy(update={"updated_at": seen.record.updated_at + 7.0})
    assert observe_instance(None, late, 5000.0).idle_at == 4993.0, "a lower bound of its age at first sight"
    assert observe_instance(seen, late, 5100.0).idle_at == 5000.0, "unchanged on the node, so unchanged here"
    assert observe_instance(seen, late, 5100.0).rung_at == 5000.0


def test_a_heartbeat_counts_from_when_it_was_seen_to_move() -> None:
    first = observe_node(None, make_node(heartbeat=7), 100.0)
    same = observe_node(first, make_node(heartbeat=7), 110.0)
    moved = observe_node(same, make_node(heartbeat=8), 112.0)
    assert (first.alive(114.0), same.seen_at, same.alive(115.0), moved.alive(120.0)) == (True, 100.0, False, True)
    assert (same.confirmed, moved.confirmed) == (False, True)


# ---- absence ---------------------------------------------------------------------------------------------


def fleet(endpoints: int) -> Cluster:
    cluster = Cluster()
    cluster.add_node(capacity=100 * GIB)
    for number in range(endpoints):
        cluster.add_endpoint(f"e{number}", min_ready=1)
    cluster.decide()
    cluster.run_until(1005.0)
    return cluster


def test_an_empty_registry_is_a_loud_halt_and_stops_nothing() -> None:
    cluster = fleet(2)
    cluster.endpoints.clear()
    made = plan(cluster.view(), cluster.now)
    assert made.actions == ()
    assert [(d.action, d.loud) for d in made.decisions] == [("halt", True)]
    assert "registry empty" in made.decisions[0].reason


def test_absence_of_one_endpoint_is_confirmed_before_anything_is_removed() -> None:
    """Field case B36: what a listing lacks may exist all the same."""
    cluster = fleet(4)
    del cluster.endpoints[f"{TENANT}.e1"]
    made = plan(cluster.view(), cluster.now)
    (action,) = made.actions
    assert isinstance(action, ConfirmAbsent)
    assert (action.key, len(action.assignments)) == (f"{TENANT}.e1", 1)


def test_absence_of_most_endpoints_is_not_believed() -> None:
    cluster = fleet(6)
    for number in range(4):
        del cluster.endpoints[f"{TENANT}.e{number}"]
    made = plan(cluster.view(), cluster.now)
    assert made.actions == ()
    assert "would stop 4 of 6" in made.decisions[-1].reason


def test_silence_of_the_only_node_does_not_stop_the_fleet() -> None:
    cluster = fleet(6)
    cluster.silent_nodes.add("n1")
    cluster.run_until(2000.0)
    assert len(cluster.slots) == 6


def test_nothing_is_decided_while_the_bus_is_away() -> None:
    cluster = fleet(2)
    cluster.ask("e0", queued=50)
    cluster.nodes.clear()
    assert plan(replace(cluster.view(), connected=False), cluster.now + 5000).actions == ()


def test_one_endpoint_alone_is_planned_like_all_together() -> None:
    cluster = Cluster()
    cluster.add_node()
    for name in ("a", "b"):
        cluster.add_endpoint(name)
        cluster.ask(name, queued=1)
    view = cluster.view()
    whole = plan(view, cluster.now).actions
    alone = replace(view, endpoints={f"{TENANT}.a": view.endpoints[f"{TENANT}.a"]})
    assert plan(alone, cluster.now).actions == whole[:1]
    assert plan(replace(view, endpoints={}), cluster.now).actions == ()
