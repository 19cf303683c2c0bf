"""An assignment: what the controller wants of one instance on one node."""

from __future__ import annotations

from pydantic import Field

from standby.domain.instance import Rung
from standby.domain.model import Model
from standby.domain.values import Record


class Assignment(Record):
    """The desired rung of an instance; only the leading controller writes it, fenced by ``leader_epoch``.

    Idempotent: the same ``intent`` twice is one command; an older ``leader_epoch`` than one already seen is ignored.
    A removed assignment means cold: the node stops what runs and forgets the instance.
    """

    node: str
    instance: str
    tenant: str
    endpoint: str
    endpoint_generation: int = 1
    variant: str
    backend: str = Field(default="", description="which of the variant's backends it is; empty: the variant has none")
    served_name: str
    model: Model
    rung: Rung
    slots: int = Field(description="requests that the engine is started for at once")
    admits: int | None = Field(default=None, ge=0, description="requests that the door lets in at once; None: ``slots``")
    version: str = Field(default="", description="what is served, as ``serving.version_of`` tells it; empty: not told")
    memory_mb: int | None = None
    drain_limit: float = 300.0
    activation_limit: float = 180.0
    intent: str = Field(description="id of the decision; changes with every change of this assignment")
    leader_epoch: int = Field(ge=0)
    reason: str = ""
    demand_at: float | None = Field(default=None, description="arrival of the request that asked, by the gateway's clock")
    ahead: Rung | None = Field(
        default=None,
        description="the rung from which it climbed ahead of demand; None: it did not, or somebody has asked since",
    )

    @property
    def door_slots(self) -> int:
        """How many requests the door lets in at once."""
        return self.slots if self.admits is None else self.admits
