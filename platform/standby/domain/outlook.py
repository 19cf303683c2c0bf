"""What the leading controller means to do with an endpoint as long as nobody asks; the answer to a question over the bus."""

from __future__ import annotations

from pydantic import Field

from standby.domain.instance import Rung
from standby.domain.values import Record, Value


class Intention(Value):
    """What is meant for one instance."""

    instance: str
    node: str
    variant: str
    backend: str = ""
    rung: Rung = Field(description="that it is to have now")
    for_s: float | None = Field(default=None, description="seconds from now until it is looked at again; None: no end")
    then: Rung | None = Field(default=None, description="the rung that follows; None: no other")
    by: str = Field(description="who decides: policy (balanced), or the endpoint's own time")
    idle_s: float | None = Field(default=None, description="seconds without work; None: it works, or is on its way")
    reason: str


class Outlook(Record):
    """Of one endpoint; no intention where nothing is assigned."""

    tenant: str
    endpoint: str
    controller: str
    prices: str = Field(description="the weights, in words")
    keeps: tuple[str, ...] = Field(default=(), description="rungs that the endpoint's own times decide, the others are weighed")
    intentions: tuple[Intention, ...] = ()
