"""A fleet that is treated badly: nodes that lie about their memory, that flap, ten thousand endpoints waking at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from standby.controller import endpoint_plan
from standby.controller.actions import Action, Assign, Plan, Retarget, Unassign
from standby.controller.plan import plan
from standby.controller.view import REFUSALS, ClusterView
from standby.domain.endpoint import NO_MEMORY, EndpointStatus, Failure
from standby.domain.instance import InstanceState, Rung
from support.cluster import GIB, HATCHED, MIB, TENANT, Cluster, Slot
from support.plan_views import NOW, State, a_cluster

pytestmark = pytest.mark.decision


@dataclass
class Fleet(Cluster):
    """Nodes in ``lying`` have no memory whatever their ledger says: climbs there are refused, until it is freed."""

    lying: set[str] = field(default_factory=set)
    retry_s: float = 2.0

    def _finish(self, name: str, slot: Slot) -> None:
        if slot.assignment.rung is not Rung.READY or slot.assignment.node not in self.lying:
            super()._finish(name, slot)
            return
        before = slot.seen.record.failure if slot.seen is not None else None
        attempts = 1 if before is None or before.code != NO_MEMORY else before.attempts + 1
        failure = Failure(reason="no memory for the climb", code=NO_MEMORY, attempts=attempts)
        state = InstanceState.STAGED if slot.seen is None or not slot.seen.ready else slot.seen.record.state
        self.report(name, state, failure=failure)
        slot.done_at = self.now + self.retry_s

    def climbs(self) -> list[tuple[float, Action]]:
        return [(at, a) for at, a in self.trace if isinstance(a, Assign) or (isinstance(a, Retarget) and a.rung > a.before)]


def served(*nodes: str, lying: set[str], **policy: Any) -> Fleet:
    fleet = Fleet(load_s=1.0, lying=lying)
    for name in nodes:
        fleet.add_node(name)
    times = {"keep_ready": 300, "keep_asleep": 600, "keep_staged": "forever"}
    fleet.add_endpoint(memory_mb=256, **{**times, **policy})
    return fleet


# ---- nodes that lie --------------------------------------------------------------------------------------


def test_what_one_node_refuses_another_one_is_asked_for() -> None:
    """Wake with the memory taken: another node is tried, and what was refused is given up once others serve."""
    fleet = served("n1", "n2", "n3", lying={"n1"})
    fleet.ask(queued=1)
    fleet.run_until(1000.0 + 2.0 * REFUSALS + 4.0)
    assert fleet.state_of().count("ready") == 1
    (ready,) = [s for s in fleet.slots.values() if s.seen is not None and s.seen.ready]
    assert ready.assignment.node == "n2"
    assert fleet.status_of() is EndpointStatus.IN_SERVICE
    assert [s.assignment.node for s in fleet.slots.values() if s.assignment.rung is Rung.READY] == ["n2"]


def test_while_another_node_is_asked_nothing_is_wrong_yet() -> None:
    fleet = served("n1", "n2", lying={"n1"})
    fleet.load_s = 4.0
    fleet.ask(queued=1)
    statuses = set()
    while fleet.state_of().count("ready") == 0 and fleet.now < 1060:
        fleet.run_until(fleet.now + 0.5)
        statuses.add(fleet.status_of())
    assert statuses == {EndpointStatus.IN_SERVICE}


def test_every_node_that_lies_is_asked_once_and_then_people_are_told() -> None:
    """No going round in circles: one climb for each node, then Failed for want of room, and served when a node has some."""
    fleet = served("n1", "n2", "n3", lying={"n1", "n2", "n3"})
    fleet.ask(queued=1)
    fleet.run_until(1200.0)
    assert Counter(a.node for _, a in fleet.climbs() if isinstance(a, Assign)) == {"n1": 1, "n2": 1, "n3": 1}
    assert fleet.status_of() is EndpointStatus.FAILED
    fleet.lying.clear()
    fleet.run_until(1230.0)
    assert fleet.status_of() is EndpointStatus.IN_SERVICE
    assert fleet.state_of().count("ready") == 1, "the bound holds also when all of them get their memory at once"


# ---- thrash ----------------------------------------------------------------------------------------------


def test_what_has_just_become_ready_is_not_sent_down_at_once() -> None:
    fleet = served("n1", lying=set(), max_instances=2, slots=1, scale_in_after=1)
    fleet.ask(in_flight=2)
    while fleet.state_of() != ["ready", "ready"]:
        fleet.run_until(fleet.now + 0.5)
        assert fleet.now < 1030.0
    became = {name: s.seen.rung_at for name, s in fleet.slots.items() if s.seen is not None}
    fleet.ask(in_flight=1)
    fleet.run_until(1100.0)
    ((at, fallen),) = [(at, a) for at, a in fleet.trace if isinstance(a, Retarget) and a.rung < a.before]
    assert fallen.key == min(became, key=lambda name: became[name]), "who has served its time goes first"
    assert at < max(became.values()) + endpoint_plan.TENURE_S


def test_where_all_have_just_come_none_leaves() -> None:
    fleet = served("n1", lying=set(), max_instances=3, slots=1, scale_in_after=1, min_ready=2)
    fleet.run_until(1001.5)
    assert fleet.state_of() == ["ready", "ready"]
    fleet.resize("e", "AllTraffic", min_ready=0)
    fleet.ask(in_flight=1)
    fleet.run_until(1010.9)
    assert fleet.state_of() == ["ready", "ready"]
    fleet.run_until(1012.0)
    assert sorted(fleet.state_of()) == ["asleep", "ready"]


def test_an_operators_bound_is_obeyed_at_once() -> None:
    fleet = served("n1", lying=set(), max_instances=2, slots=1)
    fleet.ask(in_flight=2)
    fleet.run_until(1012.5)
    assert fleet.state_of() == ["ready", "ready"]
    fleet.resize("e", "AllTraffic", max_instances=1)
    fleet.decide()
    assert sum(s.assignment.rung is Rung.READY for s in fleet.slots.values()) == 1


def test_a_node_that_comes_and_goes_makes_few_moves() -> None:
    fleet = served("n1", "n2", lying=set(), max_instances=3, slots=1, min_ready=1)
    fleet.ask(in_flight=2)
    fleet.run_until(1020.0)
    before = len(fleet.trace)
    for _ in range(10):
        fleet.silent_nodes ^= {"n1"}
        fleet.run_until(fleet.now + 20.0)
    fleet.silent_nodes.clear()
    fleet.run_until(fleet.now + 100.0)
    moves = [a for _, a in fleet.trace[before:] if isinstance(a, (Assign, Retarget, Unassign))]
    assert len(moves) <= 25, "at most a climb and a fall for each time that it went"
    assert fleet.state_of().count("ready") == 2
    quiet = len(fleet.trace)
    fleet.run_until(fleet.now + 200.0)
    assert len(fleet.trace) == quiet


# ---- many ------------------------------------------------------------------------------------------------


def test_ten_thousand_endpoints_that_wake_at_once_get_one_instance_each_and_no_node_too_many() -> None:
    view = a_cluster(10_000, 50, 0, State.WAKING)
    room = 250  # instances of 130 MiB and a bit for each node
    small = {name: replace(node, record=_smaller(node.record, room)) for name, node in view.nodes.items()}
    made = plan(replace(view, nodes=small), NOW)
    climbs = [action for action in made.actions if isinstance(action, Assign)]
    assert len(climbs) == len({action.endpoint for action in climbs}) == 10_000
    assert Counter(action.node for action in climbs) == dict.fromkeys(small, 200)


def test_what_has_no_room_is_told_so_and_takes_nobody_elses() -> None:
    view = a_cluster(400, 2, 0, State.WAKING)
    small = {name: replace(node, record=_smaller(node.record, 100)) for name, node in view.nodes.items()}
    made = plan(replace(view, nodes=small), NOW)
    kinds = Counter(type(action).__name__ for action in made.actions)
    assert kinds == {"Assign": 200, "MarkEndpoint": 200}
    assert sum("no node has 130 MiB" in decision.reason for decision in made.decisions) == 200


def _smaller(record: Any, instances: int) -> Any:
    return record.model_copy(update={"memory": record.memory.model_copy(update={"capacity": instances * 130 * MIB})})


# ---- whatever happens ------------------------------------------------------------------------------------


def without_the_short_way(view: ClusterView, now: float) -> Plan:
    """Plan as if no endpoint were ever seen to be in order at one look."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint_plan, "in_order", lambda *_: False)
        return plan(view, now)


class AnyFleet(RuleBasedStateMachine):
    """Two endpoints on three nodes that lie, fall silent and come back."""

    @initialize(
        slots=st.integers(1, 3),
        most=st.integers(1, 4),
        least=st.integers(0, 1),
        keep=st.sampled_from([2, 30, None]),
        window=st.sampled_from([1, 8, 60]),
        load=st.sampled_from([0.3, 4.0, 12.0]),
    )
    def build(self, slots: int, most: int, least: int, keep: float | None, window: float, load: float) -> None:
        self.fleet = Fleet(load_s=load, back_off_s=5.0)
        for name in ("n1", "n2", "n3"):
            self.fleet.add_node(name, capacity=GIB, zygotes=HATCHED if name == "n1" else {})
        self.most = most
        for name in ("a", "b"):
            self.fleet.add_endpoint(
                name, memory_mb=200, slots=slots, max_instances=most, min_ready=least, keep_ready=keep, scale_in_after=window
            )
        self.fleet.decide()

    @rule(name=st.sampled_from("ab"), queued=st.integers(0, 9), in_flight=st.integers(0, 9))
    def ask(self, name: str, queued: int, in_flight: int) -> None:
        self.fleet.ask(name, queued=queued, in_flight=in_flight)
        self._decide()

    @rule(seconds=st.sampled_from([0.4, 2.0, 9.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.fleet.run_until(self.fleet.now + seconds)

    @rule(node=st.sampled_from(["n1", "n2", "n3"]))
    def lies_or_is_mended(self, node: str) -> None:
        self.fleet.lying ^= {node}

    @rule(node=st.sampled_from(["n2", "n3"]))
    def falls_silent_or_comes_back(self, node: str) -> None:
        self.fleet.silent_nodes ^= {node}

    @rule(data=st.data(), in_flight=st.integers(0, 2))
    def instance_works(self, data: st.DataObject, in_flight: int) -> None:
        ready = [k for k, s in self.fleet.slots.items() if s.seen is not None and s.seen.ready]
        if ready:
            fields: dict[str, Any] = {"in_flight": in_flight, "idle_since": None} if in_flight else {"in_flight": 0}
            self.fleet.report(data.draw(st.sampled_from(ready)), InstanceState.READY, **fields)
            self._decide()

    def teardown(self) -> None:
        """Left alone, with nodes that tell the truth, what is asked for is reached, and then nothing moves any more."""
        if not hasattr(self, "fleet"):
            return
        self.fleet.lying.clear()
        self.fleet.silent_nodes.clear()
        for name, slot in self.fleet.slots.items():
            if slot.seen is not None and slot.seen.ready:
                self.fleet.report(name, InstanceState.READY)
        for name in ("a", "b"):
            self.fleet.ask(name, in_flight=1)
        self.fleet.run_until(self.fleet.now + 120.0)
        for name in ("a", "b"):
            assert self.fleet.state_of(name).count("ready") >= 1
            assert self.fleet.status_of(name) is EndpointStatus.IN_SERVICE
        seen = len(self.fleet.climbs())
        self.fleet.run_until(self.fleet.now + 40.0)
        assert len(self.fleet.climbs()) == seen

    def _decide(self) -> None:
        """Decide; what works is never sent down while something idle of the same part stays up."""
        view = self.fleet.view()
        before = {p.key: p for e in view.endpoints.values() for p in e.placed}
        made = self.fleet.decide()
        climbs = Counter(a.key for a in made.actions if isinstance(a, Retarget) and a.rung > a.before)
        assert all(count == 1 for count in climbs.values()), "two starts for one intent"
        down = [
            before[a.key] for a in made.actions if isinstance(a, Unassign) or (isinstance(a, Retarget) and a.rung < a.before)
        ]
        for placed in down:
            if placed.busy and view.alive(placed, self.fleet.now):
                stays = [
                    p for p in before.values() if p.part == placed.part and p.assignment.endpoint == placed.assignment.endpoint
                ]
                assert not [
                    p for p in stays if p.wants_ready and p not in down and not p.busy and view.alive(p, self.fleet.now)
                ]

    @invariant()
    def the_short_way_decides_as_the_long_one_does(self) -> None:
        view, now = self.fleet.view(), self.fleet.now
        for later in (0.0, 3.0, 70.0):
            assert plan(view, now + later) == without_the_short_way(view, now + later)

    @invariant()
    def bounds_hold(self) -> None:
        view = self.fleet.view()
        for endpoint in view.endpoints.values():
            up = [p for p in endpoint.placed if p.wants_ready and view.alive(p, self.fleet.now)]
            returned = [p for p in up if p.assignment.node in {"n2", "n3"}]
            refused = [p for p in up if p.failed or (p.instance is not None and p.instance.record.failure is not None)]
            assert len(up) <= self.most + len(returned) + len(refused)


AnyFleet.TestCase.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyFleet = AnyFleet.TestCase


def test_one_of_each_state_by_the_long_way_as_well() -> None:
    for state in State:
        view = a_cluster(60, 6, 5, state)
        assert plan(view, NOW) == without_the_short_way(view, NOW)
        assert f"{TENANT}.e0" in view.endpoints
