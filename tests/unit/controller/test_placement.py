"""Placement against a slow oracle, and its rules one by one: alike climbs, reclaimed memory, devices, tenants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller import placement
from standby.controller.sites import Sites
from standby.controller.topology import Seat, seat
from standby.controller.view import ObservedInstance, ObservedNode, Placed
from standby.domain.endpoint import NO_MEMORY, Failure, ScalePolicy, Variant
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind, Link, MemoryLedger, NodeMode, Zygote
from support import slow_placement
from support.builders import an_assignment, an_instance
from support.cluster import GIB, MIB, TENANT, cached, make_model, make_node

pytestmark = pytest.mark.decision
NOW = 101.0
MODEL = make_model(size=100 * MIB)
OTHER = make_model("other", size=70 * MIB)
DIGEST = MODEL.manifest.digest
RESTS = {
    InstanceState.READY: Rung.READY,
    InstanceState.STARTING: Rung.READY,
    InstanceState.FAILED: Rung.READY,
    InstanceState.ASLEEP: Rung.ASLEEP,
    InstanceState.ZYGOTE: Rung.ZYGOTE,
    InstanceState.STAGED: Rung.STAGED,
}


def a_node(name: str = "n1", *, confirmed: bool = True, seen_at: float = 100.0, **fields: Any) -> ObservedNode:
    return ObservedNode(make_node(name, **fields), seen_at=seen_at, confirmed=confirmed)


def a_sibling(node: str, state: InstanceState, number: int = 0, held: int = 0, **fields: Any) -> Placed:
    name = f"i{number}"
    assignment = an_assignment(node=node, instance=name, rung=RESTS[state], model=MODEL)
    record = an_instance(node=node, id=name, state=state, resident_bytes=held, assignment_intent=assignment.intent, **fields)
    return Placed(f"{node}.{name}", assignment, 1, 50.0, ObservedInstance(record, 50.0, 50.0, 50.0))


def sites(
    *nodes: ObservedNode, promised: dict[str, int] | None = None, residents: dict[str, dict[str, bool]] | None = None
) -> Sites:
    return Sites({node.record.name: node for node in nodes}, promised or {}, NOW, residents)


def chosen(*nodes: ObservedNode, siblings: tuple[Placed, ...] = (), variant: Variant | None = None) -> placement.Choice:
    choice = placement.choose(variant or Variant(model="smol"), MODEL, sites(*nodes), siblings, TENANT)
    assert isinstance(choice, placement.Choice), choice.reason
    return choice


# ---- against the oracle ----------------------------------------------------------------------------------

costs = st.dictionaries(st.sampled_from(list(Rung)[:4]), st.sampled_from([0.2, 1.0, 1.1, 5.0, 9.0]), max_size=3)


@st.composite
def nodes(draw: st.DrawFn) -> list[ObservedNode]:
    found = []
    for number in range(draw(st.integers(0, 7))):
        gpus = draw(st.lists(st.sampled_from([0, 50, 120, 150, 300]), max_size=3))
        devices = tuple(
            Device(id=f"G{at}", kind=DeviceKind.GPU, memory_total=total * MIB, memory_reserved=draw(st.sampled_from([0, MIB])))
            for at, total in enumerate(gpus)
        )
        on_gpu = draw(st.booleans())
        found.append(
            a_node(
                f"n{number}",
                confirmed=draw(st.booleans()),
                seen_at=draw(st.sampled_from([100.0, 100.0, 100.0, 80.0])),
                capacity=draw(st.sampled_from([50, 130, 140, 500])) * MIB,
                engines=draw(st.sampled_from([(EngineKind.FAKE,), (EngineKind.FAKE,), (EngineKind.VLLM,)])),
                mode=draw(st.sampled_from([NodeMode.OPEN, NodeMode.OPEN, NodeMode.CORDONED])),
                artifacts=tuple(cached(model) for model in (MODEL, OTHER) if draw(st.booleans())),
                costs={DIGEST: draw(costs)} if draw(st.booleans()) else {},
                footprints=draw(st.sampled_from([{}, {}, {DIGEST: 45 * MIB}])),
                zygotes=draw(st.sampled_from([{}, {EngineKind.FAKE: Zygote(state="ready")}])),
                engine_devices={EngineKind.FAKE: DeviceKind.GPU} if on_gpu else {},
                devices=devices,
            )
        )
    return found


@st.composite
def siblings(draw: st.DrawFn) -> tuple[Placed, ...]:
    found = []
    for number in range(draw(st.integers(0, 4))):
        state, node = draw(st.sampled_from(list(RESTS))), f"n{draw(st.integers(0, 7))}"
        found.append(a_sibling(node, state, number, held=draw(st.sampled_from([0, 20 * MIB]))))
    return tuple(found)


@given(
    cluster=nodes(),
    placed=siblings(),
    promised=st.dictionaries(st.sampled_from([f"n{at}" for at in range(7)]), st.sampled_from([0, 20 * MIB, 400 * MIB])),
    climbs=st.integers(1, 5),
    memory=st.sampled_from([None, None, 128, 200]),
)
@settings(max_examples=300, deadline=None)
def test_it_chooses_what_looking_at_every_node_each_time_would_choose(
    cluster: list[ObservedNode], placed: tuple[Placed, ...], promised: dict[str, int], climbs: int, memory: int | None
) -> None:
    """Several climbs in one plan: each takes memory, and what one climb is given the next one cannot have."""
    variant, index, taken = Variant(model="smol", memory_mb=memory), sites(*cluster, promised=promised), dict(promised)
    for climb in range(climbs):
        choice = placement.choose(variant, MODEL, index, placed, TENANT)
        expected = slow_placement.best(variant, MODEL, cluster, placed, taken, NOW)
        if expected is None:
            assert isinstance(choice, placement.NoFit)
            return
        assert isinstance(choice, placement.Choice)
        assert (choice.node, "" if choice.wake is None else choice.wake.key, choice.from_rung) == expected[:3]
        index.place(choice.node, choice.need_bytes, TENANT, isolate=False)
        taken[choice.node] = taken.get(choice.node, 0) + choice.need_bytes
        placed = tuple(one for one in placed if one is not choice.wake)
        if choice.wake is None and climb % 2:
            placed = (*placed, a_sibling(choice.node, InstanceState.STARTING, 10 + climb))


@given(cluster=nodes(), placed=siblings())
@settings(max_examples=100, deadline=None)
def test_the_cheapest_seconds_are_the_least_of_all_nodes(cluster: list[ObservedNode], placed: tuple[Placed, ...]) -> None:
    able = {n.record.name: n for n in cluster if n.alive(NOW) and n.open and EngineKind.FAKE in n.record.engines}
    every = []
    for name, node in able.items():
        rungs = [Rung.STAGED if any(a.digest == DIGEST for a in node.record.artifacts) else Rung.COLD]
        for one in placed:
            fits = not node.needs_gpu(EngineKind.FAKE) or node.fit_gpus
            assert one.instance is not None
            rung = one.instance.record.rung
            if one.assignment.node == name and not one.wants_ready and not one.failed and (rung >= Rung.ASLEEP or fits):
                rungs.append(rung)
        for rung in rungs:
            forked = rung is Rung.STAGED and node.zygote_ready(EngineKind.FAKE)
            begins = Rung.ZYGOTE if forked else rung
            every.append(placement.seconds_to_ready(node, DIGEST, begins, MODEL.manifest.total_bytes))
    found = placement.cheapest_seconds(Variant(model="smol"), MODEL, sites(*cluster), placed, TENANT)
    assert found == min(every, default=placement.DEFAULT_COSTS_S[Rung.COLD])


# ---- alike climbs ----------------------------------------------------------------------------------------


def test_of_climbs_that_take_about_as_long_the_one_away_from_siblings_is_taken() -> None:
    beside = a_node("a", costs={DIGEST: {Rung.COLD: 10.0}})
    alone = a_node("b", costs={DIGEST: {Rung.COLD: 11.9}})
    slower = a_node("b", costs={DIGEST: {Rung.COLD: 12.1}})
    up = (a_sibling("a", InstanceState.READY),)
    assert chosen(beside, alone, siblings=up).node == "b"
    assert chosen(beside, slower, siblings=up).node == "a"
    assert chosen(beside, alone).node == "a", "without siblings the sooner one"


def test_somebody_elses_memory_is_taken_only_where_that_gains_enough() -> None:
    """A wake that needs others pushed out takes 3 s more, and counts one and a half times that."""
    full = a_node("full", memory=MemoryLedger(capacity=GIB, reserved=GIB), costs={DIGEST: {Rung.ASLEEP: 1.0}})
    sleeper = (a_sibling("full", InstanceState.ASLEEP),)
    assert chosen(full, a_node("free", costs={DIGEST: {Rung.COLD: 5.9}}), siblings=sleeper).node == "free"
    woken = chosen(full, a_node("free", costs={DIGEST: {Rung.COLD: 6.1}}), siblings=sleeper)
    assert (woken.node, woken.seconds) == ("full", 4.0)


def test_a_node_that_refused_it_is_left_alone() -> None:
    refusal = Failure(reason="no memory", code=NO_MEMORY, attempts=4)
    refused = replace(a_sibling("a", InstanceState.STAGED, failure=refusal))
    wanted = replace(refused, assignment=refused.assignment.model_copy(update={"rung": Rung.READY}))
    assert wanted.failed
    assert chosen(a_node("a", artifacts=(cached(MODEL),)), a_node("b"), siblings=(wanted,)).node == "b"
    alone = placement.choose(Variant(model="smol"), MODEL, sites(a_node("a")), (wanted,), TENANT)
    assert isinstance(alone, placement.NoFit)
    assert "failed on each node" in alone.reason


# ---- devices ---------------------------------------------------------------------------------------------


def gpu(name: str, free: int = 100, used: int = 0, **links: str) -> Device:
    found = tuple(Link(peer=peer, kind=kind.replace("_", "-")) for peer, kind in links.items())
    return Device(id=name, kind=DeviceKind.GPU, memory_total=free + used, memory_reserved=used, links=found)


def test_linked_devices_are_near_one_another() -> None:
    four = [gpu("A", B="pcie_host", C="nvlink"), gpu("B", D="system"), gpu("C", A="nvlink"), gpu("D")]
    assert seat(four, 2, 100) == Seat(0, 2)
    assert seat([one for one in four if one.id != "C"], 2, 100) == Seat(2, 2)
    assert seat(four, 4, 100) == Seat(5, 4), "two of them have no link on record"
    assert seat(four, 2, 101) is None


def test_devices_in_use_are_filled_before_idle_ones_are_touched() -> None:
    assert seat([gpu("A"), gpu("B", used=1)], 1, 100) == Seat(0, 0)
    assert seat([gpu("A"), gpu("B", free=50, used=1)], 1, 100) == Seat(0, 1)


def test_a_node_with_linked_devices_is_preferred_then_one_that_leaves_whole_devices_idle() -> None:
    two = make_model(size=100 * MIB)
    model = two.model_copy(update={"engine_options": {"tensor_parallel": 2}})
    on: dict[str, Any] = {"engine_devices": {EngineKind.FAKE: DeviceKind.GPU}}
    size = 200 * MIB
    far = a_node("far", capacity=64 * GIB, devices=(gpu("A", size), gpu("B", size)), **on)
    near = a_node("near", devices=(gpu("A", size, B="nvlink"), gpu("B", size)), **on)
    packed = a_node("packed", devices=(gpu("A", size, used=1, B="nvlink"), gpu("B", size)), **on)

    def picked(*several: ObservedNode) -> str:
        choice = placement.choose(Variant(model="smol"), model, sites(*several), (), TENANT)
        assert isinstance(choice, placement.Choice)
        return choice.node

    assert picked(far, near) == "near"
    assert picked(far, near, packed) == "packed"


# ---- tenants ---------------------------------------------------------------------------------------------

ALONE = Variant(model="smol", policy=ScalePolicy(isolate=True))


def test_who_wants_no_neighbours_gets_none_and_is_nobodys() -> None:
    strangers = {"n1": {"111111111111": False}, "n2": {TENANT: False}}
    both = sites(a_node("n1"), a_node("n2", capacity=GIB), residents=strangers)
    alone = placement.choose(ALONE, MODEL, both, (), TENANT)
    assert isinstance(alone, placement.Choice)
    assert alone.node == "n2"
    shared = placement.choose(Variant(model="smol"), MODEL, both, (), TENANT)
    assert isinstance(shared, placement.Choice)
    assert shared.node == "n1", "who does not mind goes where most is free"
    guarded = sites(a_node("n1"), residents={"n1": {"111111111111": True}})
    kept_out = placement.choose(Variant(model="smol"), MODEL, guarded, (), TENANT)
    assert isinstance(kept_out, placement.NoFit)
    assert "free of other tenants" in kept_out.reason


def test_what_the_same_plan_has_placed_counts_as_a_neighbour() -> None:
    index = sites(a_node("n1"))
    first = placement.choose(ALONE, MODEL, index, (), "111111111111")
    assert isinstance(first, placement.Choice)
    index.place(first.node, first.need_bytes, "111111111111", isolate=True)
    assert isinstance(placement.choose(Variant(model="smol"), MODEL, index, (), TENANT), placement.NoFit)
