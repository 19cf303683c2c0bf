"""What is asked of a node about its engines' logs, and what the node answers."""

from __future__ import annotations

from typing import Final

from pydantic import Field

from standby.domain.instance import InstanceState
from standby.domain.values import Record, Value

DEFAULT_LINES: Final = 50
MOST_LINES: Final = 2000


class LogOrder(Record):
    """One question about the logs of an endpoint's instances on one node; what belongs to others is never answered."""

    tenant: str
    endpoint: str
    instance: str = Field(default="", description="of this one only; empty: of all of the endpoint's")
    lines: int = Field(default=DEFAULT_LINES, ge=0, le=MOST_LINES, description="the last ones of each log")
    previous: bool = Field(default=False, description="of the life before this one")
    after: dict[str, str] | None = Field(
        default=None,
        description="an earlier answer's marks: what was written since, of instances without a mark everything",
    )


class EngineLog(Value):
    """The end of one engine's log, secrets masked, without control characters."""

    instance: str
    state: InstanceState
    lines: tuple[str, ...] = ()
    cut: bool = Field(default=False, description="there are earlier lines")
    missing: str = Field(default="", description="why there is no log, in words; empty: there is one")


class LogAnswer(Record):
    """The logs of the endpoint's instances that the node has, by their ids."""

    node: str
    logs: tuple[EngineLog, ...] = ()
    marks: dict[str, str] = Field(default_factory=dict, description="where each log was read to, by instance")
    renewed: tuple[str, ...] = Field(default=(), description="whose lines are of another life than the mark that was asked")
