"""Climbs ahead of demand of one plan, weighed against each other; and who on a node lacks memory."""

from __future__ import annotations

import pytest

from standby.controller.actions import Action, Assign, Retarget
from standby.controller.ahead import granted
from standby.controller.demotion import Step
from standby.controller.economy import Ahead, Economy
from standby.controller.market import Market
from standby.controller.prewarm import Budget, Wish
from standby.controller.view import ClusterView, ObservedNode, observe_instance
from standby.domain.assignment import Assignment
from standby.domain.endpoint import NO_MEMORY, Failure
from standby.domain.instance import Instance, InstanceState, Rung
from support.cluster import GIB, TENANT, make_model, make_node

pytestmark = pytest.mark.decision
STEP = Step(Rung.READY, 100.0, "ready: climbed ahead of demand")


def wish(name: str, saves: float, gb: float = 1.0, node: str = "n1") -> Retarget:
    return Retarget(
        key=f"{node}.{name}-1",
        revision=1,
        tenant=TENANT,
        endpoint=name,
        before=Rung.STAGED,
        rung=Rung.READY,
        slots=4,
        reason=STEP.reason,
        wish=Wish(f"{node}.{name}-1", Rung.STAGED, STEP, gb, saves),
    )


def demanded(node: str) -> Retarget:
    return Retarget(
        key=f"{node}.d-1",
        revision=1,
        tenant=TENANT,
        endpoint="d",
        before=Rung.STAGED,
        rung=Rung.READY,
        slots=4,
        reason="1 requests wait",
    )


def view(budget: Budget, economy: Economy | None = None) -> ClusterView:
    nodes = {name: ObservedNode(make_node(name, 16 * GIB), seen_at=0.0, confirmed=True) for name in ("n1", "n2")}
    return ClusterView(endpoints={}, nodes=nodes, economy=economy or Economy(budget=budget))


def names(actions: list[Action]) -> list[str]:
    return [action.endpoint for action in actions]


def test_who_saves_most_per_gb_climbs_first() -> None:
    asked = [wish("a", 5.0), wish("b", 50.0), wish("c", 90.0, gb=10.0)]
    kept, refused = granted(view(Budget(share=1.0, at_once=1)), asked)
    assert names(kept) == ["b"]
    assert [(one.endpoint, one.action) for one in refused] == [("a", "hold"), ("c", "hold")]
    assert "as many climb" in refused[0].reason


def test_each_node_has_its_own_budget() -> None:
    kept, _ = granted(view(Budget(share=0.1, at_once=9)), [wish("a", 1.0), wish("b", 2.0), wish("c", 1.0, node="n2")])
    assert names(kept) == ["b", "c"], "a tenth of 16 GiB is 1.7 GB"


def test_what_climbed_before_counts() -> None:
    economy = Economy(budget=Budget(share=0.1, at_once=9), ahead={"n1": Ahead(1.0, 0)})
    kept, refused = granted(view(economy.budget, economy), [wish("a", 1.0)])
    assert not kept
    assert "have 0.8" in refused[0].reason


@pytest.mark.parametrize("wanted", [True, False])
def test_start_that_somebody_waits_for_beats_them_all(*, wanted: bool) -> None:
    """Whether it lacks memory since long, or is a part of this very plan."""
    budget = Budget(share=1.0, at_once=9)
    economy = Economy(budget=budget, wanted=frozenset({"n1"}) if wanted else frozenset())
    others: list[Action] = [] if wanted else [demanded("n1")]
    kept, refused = granted(view(budget, economy), [*others, wish("a", 1.0), wish("b", 1.0, node="n2")])
    assert names(kept) == [*names(others), "b"]
    assert "a request waits" in refused[0].reason


def test_new_instance_on_the_node_beats_them_as_well() -> None:
    model = make_model()
    fresh = Assign(
        tenant=TENANT,
        endpoint="f",
        generation=1,
        variant="v",
        served_name="f",
        model=model,
        node="n1",
        rung=Rung.READY,
        slots=1,
        memory_mb=None,
        drain_limit=1.0,
        activation_limit=1.0,
        demand_at=None,
        reason="1 requests wait",
    )
    kept, _ = granted(view(Budget(share=1.0)), [fresh, wish("a", 1.0)])
    assert names(kept) == ["f"]


# ---- the market --------------------------------------------------------------------------------------------------


def assigned(ahead: Rung | None = None, rung: Rung = Rung.READY) -> Assignment:
    return Assignment(
        node="n1",
        instance="e-1",
        tenant=TENANT,
        endpoint="e",
        variant="v",
        served_name="e",
        model=make_model(size=GIB),
        rung=rung,
        slots=1,
        intent="i",
        leader_epoch=1,
        ahead=ahead,
    )


def seen(state: InstanceState, code: str = "") -> Instance:
    return Instance(
        node="n1",
        id="e-1",
        tenant=TENANT,
        endpoint="e",
        variant="v",
        served_name="e",
        model_digest="d",
        state=state,
        epoch=1,
        door="127.0.0.1:7000",
        slots=1,
        rung_since=0.0,
        updated_at=0.0,
        failure=Failure(reason="no memory", code=code) if code else None,
    )


def test_only_what_somebody_waits_for_lacks_memory() -> None:
    market = Market(Economy())
    nodes = {"n1": ObservedNode(make_node("n1"), seen_at=0.0)}
    lacking = observe_instance(None, seen(InstanceState.STAGED, NO_MEMORY), 0.0)
    assert not market.track("n1.e-1", assigned(ahead=Rung.STAGED), lacking)
    found = market.economy(nodes, {"n1.e-1": lacking})
    assert (found.wanted, found.ahead["n1"].climbing) == (frozenset(), 1)
    assert found.ahead["n1"].held_gb == pytest.approx(1.3 * GIB / 1e9, rel=1e-6)
    assert market.track("n1.e-1", assigned(), lacking)
    assert not market.track("n1.e-1", assigned(), lacking), "it is known already"
    found = market.economy(nodes, {"n1.e-1": lacking})
    assert (found.wanted, found.ahead) == (frozenset({"n1"}), {})
    ready = observe_instance(None, seen(InstanceState.READY), 0.0)
    assert market.track("n1.e-1", assigned(), ready)
    assert not market.track("n1.e-1", None, None)
    assert market.economy(nodes, {}).wanted == frozenset()
