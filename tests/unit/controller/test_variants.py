"""Several variants, concurrency limits and changes of a running endpoint, over time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.actions import Assign, Retarget, SettleUpdate
from standby.controller.limits import Member, divide
from standby.domain.endpoint import EndpointStatus, ScalePolicy, Variant
from standby.domain.instance import InstanceState, Rung
from support.cluster import MIB, Cluster, Slot, make_endpoint, make_model

pytestmark = pytest.mark.decision


def variant(name: str, model: str = "m", weight: float = 1.0, limit: int | None = None, **policy: Any) -> Variant:
    return Variant(name=name, model=model, weight=weight, concurrency_limit=limit, policy=ScalePolicy.model_validate(policy))


def started(*variants: Variant, **more: Any) -> Cluster:
    cluster = Cluster()
    cluster.add_node()
    cluster.add_endpoint("e", variants=variants, **more)
    cluster.decide()
    return cluster


def of(cluster: Cluster, name: str) -> list[Slot]:
    return [slot for slot in cluster.slots.values() if slot.assignment.variant == name]


def states(cluster: Cluster, name: str) -> list[str]:
    return [slot.seen.record.state.value if slot.seen else "new" for slot in of(cluster, name)]


def doors(cluster: Cluster) -> list[int]:
    """What each door lets in, by the last order."""
    return [slot.assignment.door_slots for slot in cluster.slots.values()]


def test_at_zero_each_variant_wakes_for_itself() -> None:
    cluster = started(variant("a", "m1"), variant("b", "m2", weight=0), keep_ready=600)
    cluster.ask(variant="b", queued=1)
    cluster.run_until(1003.0)
    assert (states(cluster, "a"), states(cluster, "b")) == ([], ["ready"])
    cluster.ask(variant="a", queued=3)
    cluster.run_until(1006.0)
    assert (states(cluster, "a"), states(cluster, "b")) == (["ready"], ["ready"])


def test_one_variants_load_does_not_keep_the_other_awake_nor_scale_it() -> None:
    few = {"keep_ready": 10, "slots": 2, "max_instances": 3}
    cluster = started(variant("a", "m1", **few), variant("b", "m2", **few))
    for name in "ab":
        cluster.ask(variant=name, queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="b")
    cluster.ask(variant="a", in_flight=6)
    cluster.run_until(1030.0)
    assert states(cluster, "a") == ["ready"] * 3
    assert states(cluster, "b") == ["asleep"]


def test_a_gateway_that_knows_of_no_variants_speaks_for_all_by_weight() -> None:
    few = {"slots": 1, "max_instances": 4}
    cluster = started(variant("a", "m1", weight=3, **few), variant("b", "m2", weight=1, **few))
    cluster.ask(queued=1)
    cluster.run_until(1003.0)
    cluster.ask(in_flight=4)
    cluster.run_until(1030.0)
    assert (len(of(cluster, "a")), len(of(cluster, "b"))) == (3, 1)


def test_a_variant_that_does_not_start_keeps_no_other_from_waking() -> None:
    cluster = started(variant("a", "m1"), variant("b", "m2"))
    cluster.fails.add("m2")
    cluster.ask(variant="b", queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="b")
    assert cluster.status_of() is EndpointStatus.FAILED
    failure = cluster.endpoints["000000000000.e"][0].failure
    assert failure is not None
    assert failure.variant == "b"
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1006.0)
    assert states(cluster, "a") == ["ready"]
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


# ---- concurrency limits ------------------------------------------------------------------------------------


def test_the_only_instance_has_the_whole_limit_and_a_change_reaches_its_door_without_a_restart() -> None:
    cluster = started(variant("a", limit=4, slots=4))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    assert doors(cluster) == [4]
    for limit in (3, 6):
        cluster.resize("e", "a", concurrency_limit=limit)
        cluster.decide()
        assert doors(cluster) == [limit]
        cluster.run_until(cluster.now + 1)
    assert [type(action) for _, action in cluster.trace if not isinstance(action, Retarget)] == [Assign]
    assert states(cluster, "a") == ["ready"]


def test_a_changed_minimum_brings_instances_up_beside_the_one_that_runs() -> None:
    cluster = started(variant("a", slots=4, max_instances=3))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    first = next(iter(cluster.slots))
    cluster.resize("e", "a", min_ready=3)
    cluster.run_until(1010.0)
    assert states(cluster, "a") == ["ready"] * 3
    assert first in cluster.slots


def test_slots_of_an_instance_that_nothing_was_heard_of_move_when_it_has_heard_the_order() -> None:
    """Its node may have read the first order and open the door with all of its slots."""
    cluster = started(variant("a", limit=2, slots=2, max_instances=2))
    cluster.ask(variant="a", queued=1)
    cluster.decide()
    assert doors(cluster) == [2]
    cluster.resize("e", "a", min_ready=2)
    cluster.decide()
    assert doors(cluster) == [1, 0]
    cluster.run_until(1010.0)
    assert doors(cluster) == [1, 1]


def test_slots_under_a_limit_move_only_when_the_other_door_has_let_go_of_them() -> None:
    cluster = started(variant("a", limit=10, slots=10, max_instances=2))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    first = next(iter(cluster.slots))
    cluster.report(first, InstanceState.READY, in_flight=9, idle_since=None)
    cluster.resize("e", "a", min_ready=2)
    cluster.run_until(1004.0)
    assert doors(cluster) == [10, 0], "while it climbs it would only keep slots from the one that serves"
    cluster.run_until(1010.0)
    assert doors(cluster) == [5, 1], "nine are inside the first one still"
    cluster.report(first, InstanceState.READY, in_flight=2, idle_since=None)
    cluster.decide()
    assert doors(cluster) == [5, 5]


@given(
    limit=st.integers(1, 12),
    members=st.lists(
        st.builds(
            lambda wanted, ready, ordered, more, most: Member(wanted, wanted and ready, ordered, ordered + more, most),
            st.booleans(),
            st.booleans(),
            st.integers(0, 6),
            st.integers(0, 3),
            st.integers(1, 12),
        ),
        max_size=5,
    ),
)
@settings(max_examples=300, deadline=None)
def test_what_is_raised_never_brings_the_sum_above_the_limit(limit: int, members: list[Member]) -> None:
    orders = divide(limit, members)
    before = sum(member.holds for member in members)
    after = sum(max(member.holds, order) for member, order in zip(members, orders, strict=True))
    assert after <= max(limit, before)
    for member, order in zip(members, orders, strict=True):
        assert 0 <= order <= max(member.most, member.ordered)
        assert member.wanted or order == 0


class LateNodes:
    """Doors and a controller between which every message may be late: what the doors really let in, and hold."""

    def __init__(self, limit: int, count: int) -> None:
        self.limit = limit
        self.ordered = [0] * count
        self.told: list[list[int]] = [[] for _ in range(count)]
        self.door = [0] * count
        self.inside = [0] * count
        self.seen = [(0, 0)] * count

    def members(self, ready: list[bool]) -> list[Member]:
        holds = [
            max(ordered, slots if pending else 0, inside)
            for ordered, pending, (slots, inside) in zip(self.ordered, self.told, self.seen, strict=True)
        ]
        return [
            Member(True, up, ordered, hold, self.limit) for up, ordered, hold in zip(ready, self.ordered, holds, strict=True)
        ]


@given(data=st.data(), limit=st.integers(1, 8), count=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_however_late_doors_hear_all_together_never_let_in_more_than_the_limit(
    data: st.DataObject, limit: int, count: int
) -> None:
    there = LateNodes(limit, count)
    for _ in range(data.draw(st.integers(1, 40))):
        at = data.draw(st.integers(0, count - 1))
        match data.draw(st.sampled_from(["plan", "hear", "report", "enter", "leave"])):
            case "plan":
                ready = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
                orders = divide(limit, there.members(ready))
                for one, order in enumerate(orders):
                    if order != there.ordered[one]:
                        there.ordered[one] = order
                        there.told[one].append(order)
            case "hear":
                if there.told[at]:
                    there.door[at] = there.told[at][-1]
                    there.told[at].clear()
                    there.seen[at] = (there.door[at], there.inside[at])
            case "report":
                there.seen[at] = (there.door[at], there.inside[at])
            case "enter":
                there.inside[at] += there.inside[at] < there.door[at]
            case "leave":
                there.inside[at] -= there.inside[at] > 0
        assert sum(there.inside) <= limit


# ---- creation ----------------------------------------------------------------------------------------------


def test_an_endpoint_that_keeps_instances_is_in_service_when_every_variant_has_them() -> None:
    cluster = started(variant("a", "m1", min_ready=1), variant("b", "m2"))
    cluster.endpoints["000000000000.e"] = (make_endpoint("e", EndpointStatus.CREATING), 10**6)
    cluster.run_until(1001.0)
    cluster.resize("e", "b", min_ready=1)
    cluster.run_until(1002.5)
    assert (states(cluster, "a"), states(cluster, "b")) == (["ready"], ["new"])
    assert cluster.status_of() is EndpointStatus.CREATING
    cluster.run_until(1010.0)
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_a_variant_that_never_starts_does_not_keep_the_endpoint_being_created_for_ever() -> None:
    cluster = started(variant("a", "m1", min_ready=1), variant("b", "m2", min_ready=1))
    cluster.endpoints["000000000000.e"] = (make_endpoint("e", EndpointStatus.CREATING), 10**6)
    cluster.fails.add("m2")
    cluster.back_off_s = 5.0
    cluster.run_until(1010.0)
    assert cluster.status_of() is EndpointStatus.CREATING
    cluster.run_until(1020.0)
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_whoever_creates_an_endpoint_that_keeps_nothing_says_himself_when_it_is_in_service() -> None:
    cluster = started(variant("a", "m1"))
    cluster.endpoints["000000000000.e"] = (make_endpoint("e", EndpointStatus.CREATING), 10**6)
    cluster.run_until(1010.0)
    assert cluster.status_of() is EndpointStatus.CREATING


# ---- updates -----------------------------------------------------------------------------------------------


def settled(cluster: Cluster) -> list[tuple[float, bool]]:
    return [(round(at - 1000.0, 1), action.failure is None) for at, action in cluster.trace if isinstance(action, SettleUpdate)]


def test_the_old_config_serves_until_the_new_one_has_what_it_needs() -> None:
    cluster = started(variant("a", "old", slots=2), keep_ready=600)
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="a", in_flight=2)
    old = next(iter(cluster.slots))
    cluster.load_s = 20.0
    cluster.update("e", variant("a", "new", slots=1, max_instances=4), models=(make_model("new"),))
    cluster.decide()
    cluster.run_until(1022.0)
    assert len(cluster.slots) == 3, "two of one slot each beside the old one"
    assert cluster.status_of() is EndpointStatus.UPDATING
    assert cluster.slots[old].assignment.rung is Rung.READY
    cluster.run_until(1024.0)
    assert settled(cluster) == [(23.0, True)]
    assert old not in cluster.slots
    assert states(cluster, "a") == ["ready", "ready"]
    assert cluster.status_of() is EndpointStatus.IN_SERVICE


def test_an_update_at_zero_takes_over_at_once() -> None:
    cluster = started(variant("a", "old"))
    cluster.update("e", variant("b", "new"), models=(make_model("new"),))
    cluster.decide()
    assert settled(cluster) == [(0.0, True)]
    assert cluster.slots == {}


def test_an_update_of_the_policy_alone_keeps_the_instances() -> None:
    cluster = started(variant("a", "m", slots=2, keep_ready=600))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    before = set(cluster.slots)
    cluster.update("e", variant("a", "m", slots=2, keep_ready=600, min_ready=2, max_instances=2))
    cluster.run_until(1010.0)
    assert len(settled(cluster)) == 1
    assert before < set(cluster.slots)
    assert states(cluster, "a") == ["ready", "ready"]


def test_a_new_config_that_does_not_start_is_rolled_back_and_the_old_one_serves_on() -> None:
    cluster = started(variant("a", "old"), keep_ready=600)
    cluster.back_off_s = 2.0
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="a", in_flight=1)
    cluster.fails.add("new")
    cluster.update("e", variant("a", "new"), models=(make_model("new"),))
    cluster.run_until(1012.0)
    assert [took_over for _, took_over in settled(cluster)] == [False]
    record = cluster.endpoints["000000000000.e"][0]
    assert (record.config, record.pending_config, record.status) == ("e", None, EndpointStatus.IN_SERVICE)
    assert record.update_failure is not None
    assert record.update_failure.first_error == "bad model"
    assert states(cluster, "a") == ["ready"]
    assert len(cluster.slots) == 1


def test_without_room_beside_the_old_one_an_update_waits_while_somebody_asks_and_then_gives_up() -> None:
    cluster = Cluster()
    cluster.add_node(capacity=300 * MIB)
    old = Variant(name="a", model="old", memory_mb=200)
    cluster.add_endpoint("e", variants=(old,))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="a", in_flight=1)
    node = cluster.nodes["n1"]
    memory = node.record.memory.model_copy(update={"reserved": 200 * MIB})
    cluster.nodes["n1"] = replace(node, record=node.record.model_copy(update={"memory": memory}))
    cluster.update("e", Variant(name="a", model="new", memory_mb=200), models=(make_model("new"),))
    cluster.run_until(1062.0)
    assert settled(cluster) == []
    cluster.run_until(1065.0)
    assert settled(cluster) == [(63.0, False)]
    assert states(cluster, "a") == ["ready"]
    cluster.ask(variant="a")
    cluster.update("e", Variant(name="a", model="new", memory_mb=200))
    cluster.run_until(1070.0)
    assert [took_over for _, took_over in settled(cluster)] == [False, True]


@given(data=st.data(), renamed=st.booleans(), load=st.sampled_from([0.2, 3.0, 20.0]))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_during_an_update_something_ready_serves_throughout(
    data: st.DataObject, *, renamed: bool, load: float
) -> None:
    """From the first ready instance on, with somebody asking all the time, there is always one that the record names."""
    cluster = started(variant("a", "old", keep_ready=600))
    cluster.ask(variant="a", queued=1)
    cluster.run_until(1003.0)
    cluster.ask(variant="a", in_flight=1)
    cluster.load_s = load
    broken = data.draw(st.booleans())
    if broken:
        cluster.fails.add("new")
    cluster.update("e", variant("b" if renamed else "a", "new", keep_ready=600), models=(make_model("new"),))
    for _ in range(60):
        cluster.run_until(cluster.now + 1.0)
        record = cluster.endpoints["000000000000.e"][0]
        model = cluster.configs[record.config].variants[0].model
        up = [s for s in cluster.slots.values() if s.assignment.model.name == model and s.seen is not None and s.seen.ready]
        assert up, f"at {cluster.now}"
    cluster.run_until(cluster.now + 120.0)
    assert [took_over for _, took_over in settled(cluster)] == [not broken]
