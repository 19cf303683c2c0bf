"""What a node tells of its instances, memory, devices and door."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from standby.domain.endpoint import Failure
from standby.domain.instance import InstanceState, Phase, Rung
from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind
from standby.runtime.engines.base import Capabilities
from standby.runtime.engines.llama_cpp import LlamaCpp
from standby.runtime.lifecycle_values import Exited, Lifecycle
from standby.runtime.process_ledger import ProcessLedger
from standby.telemetry import metrics
from standby.warm_pool import counted
from standby.warm_pool.byte_seconds import KEPT_S
from standby.warm_pool.climb import Climb
from standby.warm_pool.figures import Figures
from standby.warm_pool.managed import Managed
from support.agent_rig import Rig
from support.builders import TENANT, an_assignment

GPU = Device(id="GPU-1", kind=DeviceKind.GPU, memory_total=80, memory_used=30, memory_reserved=20)
CPU = Device(id="cpu-0", kind=DeviceKind.CPU, memory_total=100)


class Node:
    """An agent with scripted devices, and what it tells."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rig = Rig(1000)
        self.evictions = 0
        self.devices: tuple[Device, ...] = (CPU, GPU)
        effects = self.rig.agent.effects
        effects.engines.berths.devices.list = lambda: self.devices  # type: ignore[method-assign]
        effects.engines.keepsakes = cast("Any", SimpleNamespace(mismatches=0))
        statistics = lambda: SimpleNamespace(evictions=self.evictions)  # noqa: E731 - a stand-in's only method
        cache = cast("Any", SimpleNamespace(used_bytes=5, statistics=statistics))
        self.figures = Figures(name, (EngineKind.FAKE,), self.rig.agent, cache, self.rig.memory, bus=lambda: None)

    def add(self, instance: str, state: InstanceState, resident: int = 0, **assignment: Any) -> Managed:
        life = Lifecycle(state=state, target=Rung.READY)
        made = an_assignment(instance=instance, **assignment)
        managed = Managed(made, life, cast("Any", self.rig.engine), rung_since=1.0, resident_bytes=resident)
        self.rig.agent.instances[instance] = managed
        return managed

    def tells(self, name: str, **labels: str) -> float | None:
        self.figures.refresh()
        return metrics.NODE.get_sample_value(name, {"node": self.name, **labels})


def test_the_ladder_is_counted_by_rung_with_the_empty_ones() -> None:
    node = Node("ladder")
    for number, state in enumerate((InstanceState.READY, InstanceState.DRAINING, InstanceState.ASLEEP)):
        node.add(f"i{number}", state)
    found = {rung: node.tells("standby_ladder_instances", rung=rung.label) for rung in Rung}
    assert found == {Rung.COLD: 0, Rung.STAGED: 0, Rung.ZYGOTE: 0, Rung.ASLEEP: 1, Rung.READY: 2}
    assert node.tells("standby_memory_capacity_bytes") == 1000


def test_memory_is_weighed_by_whose_it_is_and_what_of_it_was_idle() -> None:
    node = Node("weighed")
    node.add("i1", InstanceState.READY, resident=10)
    door = node.rig.agent.effects.door
    door.open("i1", epoch=1, slots=1, address=Path("engine.sock"))
    gate = door.slots.find("i1")
    assert gate is not None
    node.figures.refresh()
    request = cast("Any", object())
    gate.take(request, node.rig.now + 2)
    node.rig.now += 5
    place = {"tenant": TENANT, "endpoint": "e", "rung": "ready"}
    assert node.tells("standby_resident_byte_seconds_total", **place) == 50
    assert node.tells("standby_idle_byte_seconds_total", **place) == 20
    gate.give_back(request, now=node.rig.now + 1, status=200, served=True, engine_failed=False)
    node.rig.now += 4
    assert node.tells("standby_resident_byte_seconds_total", **place) == 90
    assert node.tells("standby_idle_byte_seconds_total", **place) == 50


def test_an_endpoint_that_has_long_gone_from_a_node_has_no_series_there() -> None:
    node = Node("gone")
    managed = node.add("i1", InstanceState.READY, resident=10)
    node.figures.refresh()
    node.rig.now += 1
    node.figures.refresh()
    node.rig.agent.forgotten(managed)
    place = {"tenant": TENANT, "endpoint": "e", "rung": "ready"}
    assert node.tells("standby_resident_byte_seconds_total", **place) == 10
    node.rig.now += KEPT_S
    assert node.tells("standby_resident_byte_seconds_total", **place) is None
    assert node.tells("standby_idle_byte_seconds_total", **place) is None


def test_what_has_not_happened_yet_is_told_as_nothing() -> None:
    """A counter that appears with its first event shows no increase, and no alert fires."""
    node = Node("calm")
    assert node.tells("standby_orphans_reaped_total") == 0
    assert node.tells("standby_engine_failures_total", engine="fake") == 0
    assert node.tells("standby_activations_total", rung="cold", outcome="failed") == 0


def test_devices_come_and_go() -> None:
    node = Node("devices")
    labels = {"device": "GPU-1", "kind": "gpu"}
    names = [f"standby_device_memory_{what}_bytes" for what in ("total", "used", "reserved")]
    assert [node.tells(name, **labels) for name in names] == [80, 30, 20]
    assert node.tells("standby_device_cordoned", device="GPU-1") == 0
    node.devices = (CPU, GPU.model_copy(update={"cordoned": "Xid 79"}))
    assert node.tells("standby_device_cordoned", device="GPU-1") == 1
    node.devices = (CPU,)
    assert [node.tells(name, **labels) for name in names] == [None] * 3
    assert node.tells("standby_device_cordoned", device="GPU-1") is None
    assert node.tells("standby_device_memory_total_bytes", device="cpu-0", kind="cpu") == 100


def test_engines_on_processors_are_told_where_a_gpu_would_do() -> None:
    node = Node("off-device")
    node.rig.engine.capabilities = Capabilities(sleep=True, device=DeviceKind.CPU, for_gpus=True)
    node.add("i1", InstanceState.READY)
    node.add("i2", InstanceState.STAGED)
    assert node.tells("standby_off_device_instances") == 1
    node.devices = (CPU, GPU.model_copy(update={"cordoned": "Xid 79"}))
    assert node.tells("standby_off_device_instances") == 0, "no GPU is fit"
    node.devices = (CPU, GPU)
    node.rig.engine.capabilities = Capabilities(sleep=True, device=DeviceKind.GPU, for_gpus=True)
    assert node.tells("standby_off_device_instances") == 0


def test_counters_follow_what_the_parts_count() -> None:
    node = Node("followed")
    door = node.rig.agent.effects.door.slots.results
    assert node.tells("standby_door_requests_total", result="served") == 0
    door.ended, door.served, door.failed, door.refused = 9, 5, 1, 2
    found = {
        result: node.tells("standby_door_requests_total", result=result)
        for result in ("served", "failed", "refused", "cut_off")
    }
    assert found == {"served": 5, "failed": 1, "refused": 2, "cut_off": 3}
    node.rig.memory.pushed_out["sleeper"] += 2
    node.evictions = 4
    found = {what: node.tells("standby_evictions_total", what=what) for what in ("sleeper", "zygote", "artifact")}
    assert found == {"sleeper": 2, "zygote": 0, "artifact": 4}
    cast("Any", node.rig.agent.effects.engines.keepsakes).mismatches = 1
    assert node.tells("standby_canary_mismatches_total") == 1
    assert node.tells("standby_canary_mismatches_total") == 1


def test_a_climb_is_counted_by_its_rung_and_phases_and_a_failed_one_has_none() -> None:
    climb = Climb(Rung.STAGED, began=10.0, called_at=0.0, demand_at=None)
    climb.phases = {Phase.LOADED: 1500.0, Phase.PROBED: 500.0}
    told = metrics.NODE.get_sample_value
    model, climbs = an_assignment().model, counted.Climbs()
    climbs.ended("climber", climb, model, 12.5, ready=True)
    climbs.ended("climber", climb, model, 99.0, ready=False)
    place = {"node": "climber", "rung": "staged"}
    version = {"engine": model.engine.value, "version": model.manifest.digest[:12]}
    assert told("standby_version_activation_seconds_sum", {**place, **version}) == 2.5
    assert told("standby_version_activation_seconds_count", {**place, **version}) == 1
    assert told("standby_activation_seconds_sum", place) == 2.5
    assert told("standby_activation_phase_seconds_sum", {**place, "phase": "loaded"}) == 1.5
    assert told("standby_activation_phase_seconds_count", {**place, "phase": "probed"}) == 1
    assert [told("standby_activations_total", {**place, "outcome": one}) for one in ("ready", "failed")] == [1, 1]


def test_an_engines_death_is_counted_once() -> None:
    """News of an engine that is no more changes nothing, and counts nothing."""
    node = Node("n1")
    managed = node.add("i1", InstanceState.READY, node="deaths")
    before, after = managed.life, Lifecycle(state=InstanceState.FAILED)
    event = Exited(0, Failure(reason="killed"))
    counted.stepped(managed, event, before, after)
    counted.stepped(managed, event, after, after)
    labels = {"node": "deaths", "engine": managed.assignment.model.engine.value}
    assert metrics.NODE.get_sample_value("standby_engine_failures_total", labels) == 1


def test_an_engine_that_is_meant_for_processors_is_off_no_device(tmp_path: Path) -> None:
    """llama.cpp beside vLLM on a node with GPUs is no mismatch: it would compute on processors anywhere."""
    node = Node("meant-so")
    node.rig.engine.capabilities = LlamaCpp(ProcessLedger(tmp_path / "ledger")).capabilities
    node.add("i1", InstanceState.READY)
    assert node.tells("standby_off_device_instances") == 0


def test_of_ever_new_models_only_the_last_to_climb_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted, "MOST_VERSIONS", 2)
    climb, climbs, model = Climb(Rung.STAGED, began=0.0, called_at=0.0, demand_at=None), counted.Climbs(), an_assignment().model
    for letter in "abac":
        manifest = model.manifest.model_copy(update={"digest": letter * 64})
        climbs.ended("many", climb, model.model_copy(update={"manifest": manifest}), 1.0, ready=True)

    def count(letter: str) -> float | None:
        labels = {"node": "many", "rung": "staged", "engine": model.engine.value, "version": letter * 12}
        return metrics.NODE.get_sample_value("standby_version_activation_seconds_count", labels)

    assert [count(letter) for letter in "abc"] == [2, None, 1]
