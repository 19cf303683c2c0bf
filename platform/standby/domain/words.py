"""What endpoints, instances and nodes do, in one line each: pure translations of their records, shared by all that show them.

What is said here does not change with the clock, so that a page which is told of changes is told nothing while nothing
happens; who shows a moment only adds how long it has been so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from standby.domain.durations import format_duration
from standby.domain.endpoint import Endpoint, EndpointStatus
from standby.domain.instance import Instance, InstanceState, Rung
from standby.domain.node import Node, NodeMode

CLIMBING: Final = frozenset({InstanceState.FETCHING, InstanceState.STARTING, InstanceState.PROBING, InstanceState.WAKING})

_DOING: Final[Mapping[InstanceState, str]] = MappingProxyType(
    {
        InstanceState.COLD: "cold: its bytes are in the store only",
        InstanceState.FETCHING: "fetching the model",
        InstanceState.STAGED: "staged: verified bytes on the node's disk",
        InstanceState.ZYGOTE: "zygote",
        InstanceState.STARTING: "starting the engine",
        InstanceState.PROBING: "probing with one token",
        InstanceState.READY: "ready",
        InstanceState.DRAINING: "draining: no new requests",
        InstanceState.SUSPENDING: "falling asleep",
        InstanceState.ASLEEP: "asleep: process kept",
        InstanceState.WAKING: "waking",
        InstanceState.STOPPING: "stopping",
        InstanceState.FAILED: "failed",
        InstanceState.GONE: "gone",
    }
)


def warmth(instance: Instance) -> tuple[int, bool, str]:
    """Order instances by rung; of two at the same one, who is climbing says more about what a caller waits for."""
    return instance.rung, instance.state in CLIMBING, instance.id


def climb_seconds(instance: Instance, nodes: Mapping[str, Node]) -> float | None:
    """Return how long its node needed, measured, from the instance's rung until ready; None: not measured, or it is ready."""
    node = nodes.get(instance.node)
    if node is None or instance.rung is Rung.READY:
        return None
    return node.costs.get(instance.model_digest, {}).get(instance.rung)


def instance_doing(instance: Instance, climb_s: float | None = None) -> str:
    """Return what the instance does; ``climb_s`` as ``climb_seconds`` tells it."""
    words = _DOING[instance.state]
    match instance.state:
        case InstanceState.FAILED if instance.failure is not None:
            words = f"failed: {instance.failure.reason}"
        case InstanceState.ZYGOTE:
            engine = "engine" if instance.engine is None else instance.engine.value
            until = "" if climb_s is None else f" ({format_duration(climb_s)} until ready)"
            words = f"zygote: a pre-imported {engine} process forks it{until}"
        case InstanceState.ASLEEP:
            words = f"{words}, {instance.resident_bytes / 2**20:.0f} MiB of memory still held"
        case InstanceState.READY:
            words = f"ready, {instance.in_flight} of {instance.slots} slots busy"
        case InstanceState.DRAINING:
            words = f"draining, {instance.in_flight} in flight"
        case state if state in CLIMBING and instance.progress is not None:
            words = f"{words}, {instance.progress:.0%}"
    return words


def endpoint_doing(endpoint: Endpoint, instances: Sequence[Instance], nodes: Mapping[str, Node]) -> str:
    """Return what the endpoint does; ``instances`` warmest first, ``nodes`` by name tell what a climb takes."""
    gone = endpoint_without(endpoint, instances)
    if gone is not None:
        return gone
    return instance_doing(instances[0], climb_seconds(instances[0], nodes)) + others(instances)


def endpoint_without(endpoint: Endpoint, instances: Sequence[Instance]) -> str | None:
    """Return what an endpoint does where no instance says it; None: its warmest instance does."""
    if endpoint.status is EndpointStatus.DELETING:
        return "being deleted"
    if endpoint.status is EndpointStatus.FAILED and endpoint.failure is not None:
        return f"failed: {endpoint.failure.reason}"
    return None if instances else "cold: nothing runs; the next request starts it"


def others(instances: Sequence[Instance]) -> str:
    """Return how many there are beside the first one."""
    return f" (and {len(instances) - 1} more)" if len(instances) > 1 else ""


def node_doing(node: Node, instances: Sequence[Instance]) -> str:
    """Return what the node takes, and what it still waits for where it is being emptied."""
    why = f" ({node.mode_reason})" if node.mode_reason else ""
    if node.mode is NodeMode.OPEN:
        return "open"
    if node.mode is NodeMode.CORDONED:
        return f"cordoned{why}: nothing new comes"
    if node.mode is NodeMode.DRAINED or not instances:
        return f"{node.mode}{why}: nothing is left"
    return f"{node.mode}{why}: {len(instances)} instances, {sum(item.in_flight for item in instances)} in flight"
