"""The node's metrics, set from what its parts know: with every beat, and when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Counter

from standby.domain.instance import InstanceState, Rung
from standby.domain.model import EngineKind
from standby.domain.node import Device, DeviceKind
from standby.runtime.engines.base import EngineAdapter
from standby.telemetry import metrics
from standby.warm_pool.agent import Agent
from standby.warm_pool.cache import ArtifactCache
from standby.warm_pool.memory import MemoryDesk

_MEMORY = (metrics.DEVICE_MEMORY_TOTAL, metrics.DEVICE_MEMORY_USED, metrics.DEVICE_MEMORY_RESERVED)


@dataclass
class Figures:
    """Owned by the agent's loop. ``engines`` are those that can run here; ``bus`` sets what is told of the bus."""

    node: str
    engines: Sequence[EngineKind]
    agent: Agent
    cache: ArtifactCache
    memory: MemoryDesk
    bus: Callable[[], None]
    _told: dict[Counter, int] = field(default_factory=dict)
    _devices: Mapping[str, DeviceKind] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin at zero: a counter that appears with its first event shows no increase."""
        metrics.ORPHANS.labels(self.node)
        for kind in self.engines:
            metrics.ENGINE_FAILURES.labels(self.node, kind.value)
        for rung in Rung:
            for outcome in ("ready", "failed"):
                metrics.ACTIVATIONS.labels(self.node, rung.label, outcome)

    def refresh(self) -> None:
        """Set all of them to what is now."""
        self.bus()
        self._count_instances()
        self._weigh()
        self._look_at_devices(self.agent.effects.engines.berths.devices.list())
        self._add_up()

    def _count_instances(self) -> None:
        every = list(self.agent.instances.values())
        states = [managed.life.state for managed in every]
        rungs = [managed.rung for managed in every]
        for state in InstanceState:
            metrics.INSTANCES.labels(self.node, state.value).set(states.count(state))
        for rung in Rung:
            metrics.LADDER_INSTANCES.labels(self.node, rung.label).set(rungs.count(rung))

    def _weigh(self) -> None:
        """What instances hold now, and have held."""
        ledger = self.memory.snapshot()
        metrics.MEMORY_CAPACITY.labels(self.node).set(ledger.capacity)
        metrics.RESIDENT_BYTES.labels(self.node).set(ledger.resident)
        metrics.RESERVED_BYTES.labels(self.node).set(ledger.reserved)
        metrics.CACHE_BYTES.labels(self.node).set(self.cache.used_bytes)
        for managed in self.agent.instances.values():
            self.agent.note_held(managed)
        held = self.agent.held
        for series, spent in held.take().items():
            labels = (self.node, series.tenant, series.endpoint, series.rung.label)
            metrics.RESIDENT_BYTE_SECONDS.labels(*labels).inc(spent.held)
            metrics.IDLE_BYTE_SECONDS.labels(*labels).inc(spent.idle)
        for tenant, endpoint in held.forgotten(self.agent.monotonic()):
            for counter in (metrics.RESIDENT_BYTE_SECONDS, metrics.IDLE_BYTE_SECONDS):
                counter.remove_by_labels({"tenant": tenant, "endpoint": endpoint})

    def _look_at_devices(self, devices: tuple[Device, ...]) -> None:
        ledger = self.memory.ledger
        present = {device.id: device.kind for device in devices}
        for gone in self._devices.keys() - present.keys():
            _forget(self.node, gone, self._devices[gone])
        self._devices = present
        for device in devices:
            labels = (self.node, device.id, device.kind.value)
            reserved = ledger.reserved_of(device.id) if device.id in ledger.devices else device.memory_reserved
            for gauge, amount in zip(_MEMORY, (device.memory_total, device.memory_used, reserved), strict=True):
                gauge.labels(*labels).set(amount)
            metrics.DEVICE_CORDONED.labels(self.node, device.id).set(bool(device.cordoned))
        fit = any(device.kind is not DeviceKind.CPU and not device.cordoned for device in devices)
        off = [one for one in self.agent.instances.values() if one.has_process and _is_off_device(one.adapter)]
        metrics.OFF_DEVICE_INSTANCES.labels(self.node).set(len(off) if fit else 0)

    def _add_up(self) -> None:
        """Let the counters follow what the parts count by themselves."""
        results = self.agent.effects.door.slots.results
        door = {"served": results.served, "failed": results.failed, "refused": results.refused, "cut_off": results.cut_off}
        for result, total in door.items():
            self._follow(metrics.DOOR_REQUESTS, (self.node, result), total)
        evicted = {**self.memory.pushed_out, "artifact": self.cache.statistics().evictions}
        for what, total in evicted.items():
            self._follow(metrics.EVICTIONS, (self.node, what), total)
        self._follow(metrics.CANARY_MISMATCHES, (self.node,), self.agent.effects.engines.keepsakes.mismatches)

    def _follow(self, counter: Counter, labels: tuple[str, ...], total: int) -> None:
        child = counter.labels(*labels)
        child.inc(total - self._told.get(child, 0))
        self._told[child] = total


def _is_off_device(adapter: EngineAdapter) -> bool:
    able = adapter.capabilities
    return able.for_gpus and able.device is DeviceKind.CPU


def _forget(node: str, device: str, kind: DeviceKind) -> None:
    for gauge in _MEMORY:
        gauge.remove(node, device, kind.value)
    metrics.DEVICE_CORDONED.remove(node, device)
