"""What an operator orders of a node as a whole, and what the node answers."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from standby.domain.node import NodeMode
from standby.domain.values import Record


class NodeAction(StrEnum):
    """What to do; the modes that they lead to are in ``standby.domain.node.NodeMode``."""

    CORDON = "cordon"
    DRAIN = "drain"
    UNCORDON = "uncordon"


class NodeOrder(Record):
    """One order to one node. It says a state, not a step: repeated, it changes nothing."""

    action: NodeAction
    by: str = Field(default="operator", max_length=200, description="who asks, kept with the mode")


class NodeAnswer(Record):
    """How the node is now: ``instances`` are those it still has, ``in_flight`` their running requests."""

    node: str
    action: NodeAction
    mode: NodeMode
    reason: str = ""
    changed: bool = Field(default=False, description="false where it already was as asked for")
    instances: int = 0
    in_flight: int = 0
