"""A node: a machine that runs the node agent."""

from __future__ import annotations

from collections.abc import Mapping

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
    memory: MemoryLedger
    cache_bytes: int = 0
    cache_capacity: int = 0
    artifacts: tuple[CachedArtifact, ...] = ()
    costs: Mapping[str, Mapping[Rung, float]] = Field(
        default_factory=dict, description="model digest → rung it started from → measured seconds until ready"
    )
    heartbeat: int = Field(default=0, description="grows with every beat; the receiver's own clock tells its age")
    started_at: float
    version: str = ""
