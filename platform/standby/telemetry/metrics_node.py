"""What a node counts of its instances, memory and devices."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram, Summary

from standby.telemetry.lean import LeanCounter
from standby.telemetry.metrics_registries import NODE, WAIT_BUCKETS

ACTIVATIONS: Final = Counter(
    "standby_activations",
    "Climbs to ready, by the rung they started from",
    ("node", "rung", "outcome"),
    registry=NODE,
)
ACTIVATION_SECONDS: Final = Histogram(
    "standby_activation_seconds",
    "Seconds from the assignment to ready",
    ("node", "rung"),
    buckets=WAIT_BUCKETS,
    registry=NODE,
)
VERSION_ACTIVATION_SECONDS: Final = Summary(
    "standby_version_activation_seconds",
    "Seconds from the assignment to ready, by the engine and version of the model: of the last 500 of them that climbed",
    ("node", "rung", "engine", "version"),
    registry=NODE,
)
INSTANCES: Final = Gauge("standby_instances", "Instances on this node, by state", ("node", "state"), registry=NODE)
RESIDENT_BYTES: Final = Gauge("standby_resident_bytes", "Host memory held by engines", ("node",), registry=NODE)
RESERVED_BYTES: Final = Gauge("standby_reserved_bytes", "Host memory promised to instances", ("node",), registry=NODE)
CACHE_BYTES: Final = Gauge("standby_cache_bytes", "Bytes in the artifact cache", ("node",), registry=NODE)
ORPHANS: Final = Counter(
    "standby_orphans_reaped",
    "Engine processes of an earlier life that were ended",
    ("node",),
    registry=NODE,
)
ACTIVATION_PHASE_SECONDS: Final = Histogram(
    "standby_activation_phase_seconds",
    "The parts of a climb to ready, by the rung it started from",
    ("node", "rung", "phase"),
    buckets=WAIT_BUCKETS,
    registry=NODE,
)
LADDER_INSTANCES: Final = Gauge(
    "standby_ladder_instances", "Instances on this node, by the rung they have reached", ("node", "rung"), registry=NODE
)
MEMORY_CAPACITY: Final = Gauge("standby_memory_capacity_bytes", "Host memory that instances may have", ("node",), registry=NODE)
DEVICE_MEMORY_TOTAL: Final = Gauge(
    "standby_device_memory_total_bytes", "Memory of a device", ("node", "device", "kind"), registry=NODE
)
DEVICE_MEMORY_USED: Final = Gauge(
    "standby_device_memory_used_bytes",
    "Memory of a device that is held, by whomever",
    ("node", "device", "kind"),
    registry=NODE,
)
DEVICE_MEMORY_RESERVED: Final = Gauge(
    "standby_device_memory_reserved_bytes",
    "Memory of a device that is promised to instances",
    ("node", "device", "kind"),
    registry=NODE,
)
DEVICE_CORDONED: Final = Gauge(
    "standby_device_cordoned", "1 where nothing new is placed on a device", ("node", "device"), registry=NODE
)
RESIDENT_BYTE_SECONDS: Final = Counter(
    "standby_resident_byte_seconds",
    "Host memory that engines held, times how long, by the rung they were on",
    ("node", "tenant", "endpoint", "rung"),
    registry=NODE,
)
IDLE_BYTE_SECONDS: Final = Counter(
    "standby_idle_byte_seconds",
    "The part of the byte-seconds in which nothing was in flight: what was wasted",
    ("node", "tenant", "endpoint", "rung"),
    registry=NODE,
)
EVICTIONS: Final = Counter(
    "standby_evictions",
    "What was taken out of memory or off the disk before its time: a sleeper, a zygote or an artifact",
    ("node", "what"),
    registry=NODE,
)
OFF_DEVICE_INSTANCES: Final = Gauge(
    "standby_off_device_instances",
    "Instances with a process whose engine is made for GPUs but computes on processors, although the node has fit GPUs",
    ("node",),
    registry=NODE,
)
ENGINE_FAILURES: Final = Counter(
    "standby_engine_failures", "Engines that died, stalled or did not start", ("node", "engine"), registry=NODE
)
CANARY_MISMATCHES: Final = Counter(
    "standby_canary_mismatches", "Engines that did not generate what they should", ("node",), registry=NODE
)
DOOR_REQUESTS: Final = LeanCounter(
    "standby_door_requests",
    "Requests at the node's door: served, refused before the engine saw them, failed by the engine, or cut_off from outside",
    ("node", "result"),
    registry=NODE,
)
