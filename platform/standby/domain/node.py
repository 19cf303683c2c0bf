"""A node: a machine that runs the node agent."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from standby.domain.instance import Rung
from standby.domain.model import EngineKind
from standby.domain.values import Record, Value


class MemoryLedger(Value):
    """Host memory in bytes: what may be used, what is promised, what instances really hold."""

    capacity: int = Field(ge=0)
    reserved: int = Field(default=0, ge=0)
    resident: int = Field(default=0, ge=0)

    @property
    def free(self) -> int:
        """Bytes that can still be promised."""
        return max(0, self.capacity - self.reserved)


class DeviceKind(StrEnum):
    """What computes."""

    CPU = "cpu"
    GPU = "gpu"
    MIG = "mig"


class Link(Value):
    """How a device reaches another one of its node."""

    peer: str = Field(description="the other device's id")
    kind: str = Field(description="nvlink, pcie-switch, pcie-host, numa or system: the nearest first")
    lanes: int = Field(default=0, ge=0, description="active NVLinks")


class Device(Value):
    """One thing that engines compute on: a GPU, a MIG instance of one, or the host's processors. Memory in bytes."""

    id: str = Field(description="the vendor's UUID (GPU-…, MIG-…); cpu-<n> for the processors of one NUMA node")
    kind: DeviceKind
    name: str = ""
    parent: str = Field(default="", description="of a MIG instance: the GPU's id")
    memory_total: int = Field(default=0, ge=0)
    memory_used: int = Field(default=0, ge=0, description="measured, by whomever")
    memory_reserved: int = Field(default=0, ge=0, description="promised to instances by the node's ledger")
    utilisation: float | None = Field(default=None, ge=0, le=1, description="None: it cannot say")
    numa_node: int | None = None
    compute_capability: str = ""
    driver: str = ""
    cores: tuple[int, ...] = Field(default=(), description="processors near it; of a CPU device: its own")
    links: tuple[Link, ...] = ()
    cordoned: str = Field(default="", description="why nothing new is placed on it (Xid, ECC, memory not returned); empty: fit")

    @property
    def memory_free(self) -> int:
        """Bytes that can still be promised: neither promised already nor held by anybody."""
        return max(0, self.memory_total - max(self.memory_used, self.memory_reserved))


class Zygote(Value):
    """A pre-imported engine process that forks instances; shared by all models of one engine kind on a node."""

    state: str = Field(description="hatching, ready, broken")
    resident_bytes: int = 0
    version: str = ""
    forks: int = 0
    hatch_s: float | None = Field(default=None, description="measured seconds of the last hatching")
    failure: str = ""


class NodeMode(StrEnum):
    """What a node takes.

    | mode | becomes | when |
    |---|---|---|
    | OPEN | CORDONED | an operator cordons it: what it has goes on, nothing new comes |
    | OPEN, CORDONED | DRAINING | an operator drains it: doors are fenced, what runs may end |
    | DRAINING | DRAINED | nothing is left |
    | CORDONED, DRAINING, DRAINED | OPEN | an operator uncordons it |
    | any | LEAVING | the agent was told to stop; the next one begins in the mode before |
    """

    OPEN = "open"
    CORDONED = "cordoned"
    DRAINING = "draining"
    DRAINED = "drained"
    LEAVING = "leaving"

    @property
    def sheds(self) -> bool:
        """Whether what answers requests there has to answer them elsewhere."""
        return self in {NodeMode.DRAINING, NodeMode.DRAINED, NodeMode.LEAVING}


class EngineAbsence(Value):
    """Why an engine cannot run on a node, and how to get it."""

    reason: str
    remedy: str = ""


class CachedArtifact(Value):
    """One artifact in a node's cache."""

    digest: str
    bytes: int
    pinned: bool = Field(description="never evicted now: in use, or pinned by an operator")
    used_by: tuple[str, ...] = Field(default=(), description="the node's instances that hold it")
    pinned_by: str = Field(default="", description="which operator pinned it; empty: none")
    source_uri: str = ""
    files: int | None = Field(default=None, description="how many")
    resident_bytes: int | None = Field(default=None, description="in the page cache when last measured; None: not yet")
    last_used_at: float | None = Field(default=None, description="seconds since the epoch")


class Node(Record):
    """What a node says of itself; only that node writes it."""

    name: str
    boot_id: str = Field(description="changes at each start of the agent")
    door: str = Field(description="host:port")
    engines: tuple[EngineKind, ...] = ()
    engine_options: Mapping[EngineKind, tuple[str, ...]] = Field(
        default_factory=dict,
        description="names of the options that a model may set, by engine; an engine that is missing says none",
    )
    engine_versions: Mapping[EngineKind, str] = Field(default_factory=dict, description="what is installed of each engine")
    absent_engines: Mapping[EngineKind, EngineAbsence] = Field(
        default_factory=dict, description="engines that cannot run here, of those that this version knows"
    )
    memory: MemoryLedger
    cache_bytes: int = 0
    cache_capacity: int = 0
    artifacts: tuple[CachedArtifact, ...] = ()
    costs: Mapping[str, Mapping[Rung, float]] = Field(
        default_factory=dict, description="model digest → rung it started from → measured seconds until ready"
    )
    heartbeat: int = Field(default=0, description="grows with every beat; the receiver's own clock tells its age")
    devices: tuple[Device, ...] = ()
    zygotes: Mapping[EngineKind, Zygote] = Field(
        default_factory=dict, description="engines that have a zygote rung here, and how theirs is"
    )
    engine_devices: Mapping[EngineKind, DeviceKind] = Field(
        default_factory=dict, description="what each engine computes on; an engine that is missing: the processors"
    )
    footprints: Mapping[str, int] = Field(
        default_factory=dict,
        description="model digest → measured bytes of host memory of an awake instance, the most of all its options",
    )
    device_footprints: Mapping[str, int] = Field(default_factory=dict, description="the same of device memory")
    isolation: str = Field(default="", description="how engines are kept apart here, in words")
    mode: NodeMode = Field(default=NodeMode.OPEN, description="whether it takes anything new, and whether it is being emptied")
    mode_reason: str = Field(default="", description="who ordered that, or what did")
    started_at: float
    version: str = ""
