"""An instance: one engine process tree serving one model on one node, and the rungs of the warm ladder."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from pydantic import Field

from standby.domain.endpoint import Failure
from standby.domain.model import EngineKind
from standby.domain.values import Record, Value


class Rung(IntEnum):
    """How warm an instance is, from bytes in S3 to answering."""

    COLD = 0
    STAGED = 1
    ZYGOTE = 2
    ASLEEP = 3
    READY = 4

    @property
    def label(self) -> str:
        """The rung's name in lower case, as people and metrics write it."""
        return self.name.lower()


class InstanceState(StrEnum):
    """Where an instance is in its life; the transition table is in standby.runtime.lifecycle."""

    COLD = "cold"
    FETCHING = "fetching"
    STAGED = "staged"
    ZYGOTE = "zygote"
    STARTING = "starting"
    PROBING = "probing"
    READY = "ready"
    DRAINING = "draining"
    SUSPENDING = "suspending"
    ASLEEP = "asleep"
    WAKING = "waking"
    STOPPING = "stopping"
    FAILED = "failed"
    GONE = "gone"


# The rung that an instance in this state has already reached: what an interruption would leave behind.
RUNG_OF: Final[Mapping[InstanceState, Rung]] = MappingProxyType(
    {
        InstanceState.COLD: Rung.COLD,
        InstanceState.FETCHING: Rung.COLD,
        InstanceState.STAGED: Rung.STAGED,
        InstanceState.ZYGOTE: Rung.ZYGOTE,
        InstanceState.STARTING: Rung.STAGED,
        InstanceState.PROBING: Rung.STAGED,
        InstanceState.READY: Rung.READY,
        InstanceState.DRAINING: Rung.READY,
        InstanceState.SUSPENDING: Rung.ASLEEP,
        InstanceState.ASLEEP: Rung.ASLEEP,
        InstanceState.WAKING: Rung.ASLEEP,
        InstanceState.STOPPING: Rung.STAGED,
        InstanceState.FAILED: Rung.COLD,
        InstanceState.GONE: Rung.COLD,
    }
)

HAS_PROCESS: Final = frozenset(
    {
        InstanceState.STARTING,
        InstanceState.PROBING,
        InstanceState.READY,
        InstanceState.DRAINING,
        InstanceState.SUSPENDING,
        InstanceState.ASLEEP,
        InstanceState.WAKING,
        InstanceState.STOPPING,
    }
)


class Phase(StrEnum):
    """The parts of an activation, in order."""

    QUEUED = "queued"
    PLACED = "placed"
    FETCHED = "fetched"
    FORKED = "forked"
    LOADED = "loaded"
    CAPTURED = "captured"
    PROBED = "probed"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a token of text


class Activation(Value):
    """One climb from a lower rung to ready, as the node measured it."""

    id: str
    from_rung: Rung
    phases_ms: Mapping[Phase, float] = Field(default_factory=dict)
    demand_at: float | None = Field(default=None, description="arrival of the request that asked, by the gateway's clock")
    called_at: float | None = Field(default=None, description="when the agent called for the climb, by the node's clock")
    ready_at: float | None = None


class Instance(Record):
    """What a node says of one instance; only that node writes it."""

    node: str
    id: str
    tenant: str
    endpoint: str
    variant: str
    served_name: str
    model_digest: str
    version: str = Field(default="", description="of the assignment; empty: its node did not say")
    engine: EngineKind | None = Field(default=None, description="None: its node did not say")
    backend: str = Field(default="", description="which of the variant's backends it is; empty: the variant has none")
    prioritised: bool = Field(default=False, description="its engine works by the priority that a request names")
    adapters: tuple[str, ...] = Field(default=(), description="LoRA adapters that it has loaded")
    memory_pressure: float | None = Field(
        default=None, ge=0, description="used share of the engine's own cache, in steps of 0.02; None: it cannot say"
    )
    state: InstanceState
    epoch: int = Field(ge=0, description="grows each time the door opens for this instance")
    door: str = Field(description="host:port of the node's door")
    slots: int = Field(description="requests that the door lets in at once")
    in_flight: int = 0
    drain_until: float | None = Field(
        default=None, description="while it drains: when what is in flight will be cut off, by the node's clock"
    )
    idle_since: float | None = Field(default=None, description="ready or last request end, whichever is later; None: busy")
    rung_since: float = Field(description="when the present rung was reached, by the node's clock")
    resident_bytes: int = 0
    progress: float | None = Field(default=None, ge=0, le=1, description="of the present phase, where it can be measured")
    activation: Activation | None = None
    failure: Failure | None = None
    assignment_intent: str = Field(default="", description="the last intent that this node has taken up")
    updated_at: float

    @property
    def rung(self) -> Rung:
        """The rung that this state has reached."""
        return RUNG_OF[self.state]

    @property
    def address(self) -> tuple[str, int]:
        """The door as (host, port)."""
        return _host_and_port(self.door)


@lru_cache(maxsize=1024)
def _host_and_port(door: str) -> tuple[str, int]:
    # Remembered, since each request asks for it.
    host, _, port = door.rpartition(":")
    return host, int(port)
