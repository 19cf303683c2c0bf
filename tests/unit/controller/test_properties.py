"""What holds of every plan, whatever the cluster looks like and whatever happens to it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from standby.controller.actions import Assign, Plan, Retarget, Unassign
from standby.controller.plan import plan
from standby.domain.endpoint import EndpointStatus
from standby.domain.instance import InstanceState, Rung
from support.cluster import GIB, HATCHED, TENANT, Cluster

pytestmark = pytest.mark.decision

durations = st.sampled_from([0, 0.5, 3, 20, 300, "forever"])
concurrency = st.none() | st.integers(1, 9)
policies = st.fixed_dictionaries(
    {
        "keep_ready": durations,
        "keep_asleep": durations,
        "keep_zygote": durations,
        "keep_staged": durations,
        "scale_in_after": st.sampled_from([0, 2, 30]),
        "slots": st.integers(1, 4),
        "min_ready": st.integers(0, 2),
        "max_instances": st.integers(2, 4),
    }
)


def lowered(made: Plan) -> list[str]:
    """Return the keys of all instances that a plan takes down a rung."""
    down = [a.key for a in made.actions if isinstance(a, Retarget) and a.rung < a.before]
    return down + [a.key for a in made.actions if isinstance(a, Unassign)]


class AnyCluster(RuleBasedStateMachine):
    """Two endpoints, two nodes, and everything that can happen to them; ``decide`` proves idempotence each time."""

    @initialize(
        first=policies,
        second=policies,
        load=st.sampled_from([0.2, 3.0, 25.0]),
        hatch=st.sampled_from([0.0, 4.0]),
        limits=st.tuples(concurrency, concurrency),
    )
    def build(
        self, first: dict[str, Any], second: dict[str, Any], load: float, hatch: float, limits: tuple[int | None, int | None]
    ) -> None:
        self.cluster = Cluster(load_s=load, back_off_s=5.0, hatch_s=hatch)
        self.cluster.add_node("n1", capacity=GIB, zygotes=HATCHED)
        self.cluster.add_node("n2", capacity=GIB)
        self.policies = {"a": first, "b": second}
        for (name, policy), limit in zip(self.policies.items(), limits, strict=True):
            self.cluster.add_endpoint(name, memory_mb=200, limit=limit, **policy)
        self.cluster.decide()

    @rule(name=st.sampled_from("ab"), queued=st.integers(0, 12), in_flight=st.integers(0, 12))
    def ask(self, name: str, queued: int, in_flight: int) -> None:
        self.cluster.ask(name, queued=queued, in_flight=in_flight)
        self.check(self.cluster.decide)

    @rule(seconds=st.sampled_from([0.3, 1.0, 7.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.cluster.run_until(self.cluster.now + seconds)

    @rule(data=st.data(), in_flight=st.integers(0, 3))
    def instance_works(self, data: st.DataObject, in_flight: int) -> None:
        ready = [k for k, s in self.cluster.slots.items() if s.seen is not None and s.seen.ready]
        if not ready:
            return
        chosen = data.draw(st.sampled_from(ready))
        fields = {"in_flight": in_flight, "idle_since": None} if in_flight else {"in_flight": 0}
        self.cluster.report(chosen, InstanceState.READY, **fields)
        self.check(self.cluster.decide)

    @rule(name=st.sampled_from("ab"))
    def breaks_or_is_mended(self, name: str) -> None:
        self.cluster.fails ^= {name}

    @rule(name=st.sampled_from("ab"))
    def retried_by_hand(self, name: str) -> None:
        self.cluster.retry(name)
        self.check(self.cluster.decide)

    @rule()
    def zygotes_break_or_are_mended(self) -> None:
        self.cluster.no_hatch ^= {"n1"}

    @rule()
    def gateway_falls_silent_or_comes_back(self) -> None:
        self.cluster.beats = not self.cluster.beats

    @rule()
    def node_falls_silent_or_comes_back(self) -> None:
        self.cluster.silent_nodes ^= {"n2"}

    @precondition(lambda self: not self.cluster.beats)
    @rule()
    def no_data_takes_nothing_away(self) -> None:
        self.cluster.run_until(self.cluster.now + 11.0)
        view = self.cluster.view()
        assert not any(e.demand.valid for e in view.endpoints.values())
        made = plan(view, self.cluster.now + 0.0)
        kept = [k for k in lowered(made) if view.nodes[k.partition(".")[0]].alive(self.cluster.now)]
        assert kept == []

    def check(self, decide: object) -> None:
        """Decide, and compare what was taken down with what the view said before."""
        view = self.cluster.view()
        made = plan(view, self.cluster.now)
        assert callable(decide)
        decide()
        for endpoint in view.endpoints.values():
            by_key = {p.key: p for p in endpoint.placed}
            down = [by_key[k] for k in lowered(made) if k in by_key]
            rests = [p for p in by_key.values() if p.wants_ready and p not in down and not p.busy]
            for one in down:
                if one.busy and view.alive(one, self.cluster.now):
                    assert not rests, "a busy instance was taken while an idle one stayed"

    @invariant()
    def bounds_hold(self) -> None:
        view = self.cluster.view()
        for endpoint in view.endpoints.values():
            policy = self.policies[endpoint.record.name]
            up = [p for p in endpoint.placed if p.wants_ready and view.alive(p, self.cluster.now)]
            most = policy["max_instances"]
            assert isinstance(most, int)
            returned = [p for p in endpoint.placed if p.assignment.node == "n2"]
            assert len(up) <= most + len(returned), "only a node that came back may bring more than the limit"
            if endpoint.record.status is EndpointStatus.FAILED:
                assert not any(p.ready and view.alive(p, self.cluster.now) for p in endpoint.placed)


AnyCluster.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestAnyCluster = AnyCluster.TestCase


@given(policy=policies, hatches=st.booleans(), hatch=st.sampled_from([0.0, 4.0]), zygote=st.booleans())
@settings(max_examples=25, deadline=None)
def test_what_nobody_asks_for_sinks_to_the_first_rung_that_is_kept_for_ever(
    policy: dict[str, Any], hatches: bool, hatch: float, zygote: bool
) -> None:
    """No rung is skipped back to, none is stuck on, whether there is a zygote, none, or one that never comes."""
    cluster = Cluster(load_s=0.2, hatch_s=hatch, no_hatch=set() if hatches else {"n1"})
    cluster.add_node(zygotes=HATCHED if zygote else {})
    cluster.add_endpoint("a", memory_mb=200, **{**policy, "min_ready": 0})
    cluster.ask("a", queued=1)
    cluster.run_until(1002.0)
    cluster.ask("a")
    cluster.run_until(2500.0)
    lasting = {"keep_ready": "ready", "keep_asleep": "asleep", "keep_zygote": "zygote", "keep_staged": "staged"}
    if not zygote:
        del lasting["keep_zygote"]
    held = next((state for name, state in lasting.items() if policy[name] == "forever"), None)
    if held == "zygote" and not hatches:
        held = "staged"
    assert cluster.state_of("a") == ([] if held is None else [held])
    sinks = [a for _, a in cluster.trace if isinstance(a, Retarget) and a.rung < a.before]
    assert len(sinks) <= len(lasting)


@given(policy=policies, idle=st.floats(0, 4000))
@settings(max_examples=100, deadline=None)
def test_min_ready_is_never_undercut(policy: dict[str, Any], idle: float) -> None:
    cluster = Cluster(load_s=0.2)
    cluster.add_node()
    cluster.add_endpoint("a", memory_mb=200, **policy)
    cluster.ask("a", queued=9)
    cluster.run_until(1020.0)
    cluster.ask("a")
    cluster.run_until(1020.0 + min(idle, 400.0))
    up = [s for s in cluster.slots.values() if s.assignment.rung is Rung.READY]
    least, most = policy["min_ready"], policy["max_instances"]
    assert isinstance(least, int)
    assert isinstance(most, int)
    assert least <= len(up) <= most


@given(queued=st.integers(1, 500), slots=st.integers(1, 8), most=st.integers(1, 20))
@settings(max_examples=100, deadline=None)
def test_the_first_activation_is_exactly_one(queued: int, slots: int, most: int) -> None:
    cluster = Cluster()
    cluster.add_node()
    cluster.add_endpoint("a", slots=slots, max_instances=most)
    cluster.ask("a", queued=queued)
    made = cluster.decide()
    assert [type(a) for a in made.actions] == [Assign]
    assert cluster.view().endpoints[f"{TENANT}.a"].placed[0].climbing
