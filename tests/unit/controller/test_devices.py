"""Placement by what a node has measured, and on GPUs: which are fit, what they lack, and in what words."""

from __future__ import annotations

import pytest

from standby.controller import placement
from standby.controller.sites import Sites
from standby.controller.view import ObservedNode
from standby.domain.endpoint import EndpointStatus, Variant
from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind, MemoryLedger
from support.cluster import GIB, MIB, TENANT, Cluster, cached, make_model, make_node

pytestmark = pytest.mark.decision

MODEL = make_model("smol", size=100 * MIB)
DIGEST = MODEL.manifest.digest
ON_GPU = {EngineKind.FAKE: DeviceKind.GPU}


def gpu(name: str = "GPU-1", total: int = GIB, **fields: object) -> Device:
    return Device.model_validate({"id": name, "kind": DeviceKind.GPU, "memory_total": total, **fields})


def mig(name: str, parent: str, total: int = GIB, **fields: object) -> Device:
    return gpu(name, total, kind=DeviceKind.MIG, parent=parent, **fields)


def node(name: str = "n1", *devices: Device, **fields: object) -> ObservedNode:
    record = make_node(name, engine_devices=ON_GPU, devices=devices, **fields)  # type: ignore[arg-type]
    return ObservedNode(record, seen_at=100.0, confirmed=True)


def choose(*nodes: ObservedNode) -> placement.Choice | placement.NoFit:
    return placement.choose(Variant(model="smol"), MODEL, Sites({n.record.name: n for n in nodes}, {}, 101.0), (), TENANT)


def placed_on(*nodes: ObservedNode) -> str:
    choice = choose(*nodes)
    assert isinstance(choice, placement.Choice), choice.reason
    return choice.node


# ---- measured memory -------------------------------------------------------------------------------------


def test_a_nodes_measured_footprint_counts_more_than_the_guess() -> None:
    measured = ObservedNode(make_node(footprints={DIGEST: 700 * MIB}), 100.0, confirmed=True)
    assert placement.memory_need(None, MODEL, measured) == 700 * MIB
    assert placement.memory_need(None, MODEL) == 130 * MIB
    assert placement.memory_need(64, MODEL, measured) == 64 * MIB, "what is configured is configured"


def test_each_node_is_asked_for_what_it_has_measured_itself() -> None:
    small = {"memory": MemoryLedger(capacity=500 * MIB)}
    heavy = ObservedNode(make_node("heavy", footprints={DIGEST: 700 * MIB}, **small), 100.0, confirmed=True)  # type: ignore[arg-type]
    light = ObservedNode(make_node("light", footprints={DIGEST: 90 * MIB}, **small), 100.0, confirmed=True)  # type: ignore[arg-type]
    choice = choose(heavy, light)
    assert isinstance(choice, placement.Choice)
    assert (choice.node, choice.need_bytes) == ("light", 90 * MIB)
    refused = choose(heavy)
    assert isinstance(refused, placement.NoFit)
    assert "needs 700 MiB, largest free 500 MiB" in refused.reason


# ---- GPUs ------------------------------------------------------------------------------------------------


def test_an_engine_that_computes_on_gpus_goes_where_one_has_room() -> None:
    assert placed_on(node("none"), node("full", gpu(memory_used=GIB)), node("free", gpu())) == "free"


def test_an_engine_that_computes_on_processors_needs_no_gpu() -> None:
    on_cpu = ObservedNode(make_node(devices=(gpu(cordoned="Xid 79"),)), 100.0, confirmed=True)
    assert placed_on(on_cpu) == "n1"


def test_promised_memory_of_a_gpu_is_not_free_before_it_is_used() -> None:
    assert gpu(memory_used=10, memory_reserved=GIB - 5).memory_free == 5
    assert gpu(memory_used=2 * GIB).memory_free == 0
    assert isinstance(choose(node("n1", gpu(memory_reserved=GIB))), placement.NoFit)


def test_measured_device_memory_counts_more_than_the_guess() -> None:
    assert isinstance(choose(node("n1", gpu(), device_footprints={DIGEST: 2 * GIB})), placement.NoFit)
    assert placed_on(node("n1", gpu(total=100 * MIB), device_footprints={DIGEST: 90 * MIB})) == "n1"


def test_a_cordoned_gpu_gets_nothing_new() -> None:
    assert placed_on(node("broken", gpu(cordoned="Xid 79")), node("fit", gpu("GPU-2"))) == "fit"
    refused = choose(node("n1", gpu(cordoned="Xid 79"), gpu("GPU-2", total=64 * MIB)))
    assert isinstance(refused, placement.NoFit)
    assert refused.reason == (
        "no GPU takes model smol, which needs 130 MiB of its memory: GPU-2 64 MiB free; GPU-1 cordoned: Xid 79"
    )
    assert "none is known" in choose(node("n1")).reason


def test_a_gpu_in_parts_is_its_parts_and_its_fault_is_theirs() -> None:
    whole = node("n1", gpu(total=80 * GIB), mig("MIG-1", "GPU-1", 64 * MIB), mig("MIG-2", "GPU-1"))
    assert [device.id for device in whole.fit_gpus] == ["MIG-1", "MIG-2"]
    assert placed_on(whole) == "n1"
    assert isinstance(choose(node("n1", gpu(total=80 * GIB), mig("MIG-1", "GPU-1", 64 * MIB))), placement.NoFit)
    broken = node("n1", gpu(cordoned="ECC"), mig("MIG-1", "GPU-1"))
    assert broken.fit_gpus == ()


def a_cluster(*devices: Device) -> Cluster:
    """An endpoint that was served on a GPU and sleeps there."""
    cluster = Cluster()
    cluster.add_node(engine_devices=ON_GPU, devices=devices, artifacts=(cached(MODEL),))
    cluster.add_endpoint("e", model=MODEL, keep_ready=1)
    cluster.ask(queued=1)
    cluster.run_until(1002.5)
    cluster.ask()
    cluster.run_until(1010.0)
    assert cluster.state_of() == ["asleep"]
    return cluster


def test_a_sleeper_is_woken_also_where_its_gpu_is_full_as_its_node_makes_room() -> None:
    cluster = a_cluster(gpu())
    cluster.add_node(engine_devices=ON_GPU, devices=(gpu(memory_used=GIB),))
    cluster.ask(queued=1)
    cluster.run_until(1013.0)
    assert cluster.state_of() == ["ready"]


def test_what_has_no_process_does_not_climb_on_a_cordoned_gpu() -> None:
    cluster = a_cluster(gpu())
    (name,) = cluster.slots
    cluster.report(name, InstanceState.STAGED)
    cluster.add_node(engine_devices=ON_GPU, devices=(gpu(cordoned="Xid 79"),))
    cluster.ask(queued=1)
    cluster.decide()
    assert cluster.slots[name].assignment.rung is Rung.ASLEEP
    assert cluster.status_of() is EndpointStatus.FAILED
    cluster.add_node("n2", engine_devices=ON_GPU, devices=(gpu("GPU-2"),))
    cluster.run_until(1013.0)
    assert cluster.state_of() == ["ready", "staged"]
