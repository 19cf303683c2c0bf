"""What an operator asks of a node's artifact cache, and what the node answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from standby.domain.node import CachedArtifact
from standby.domain.values import Record

MIN_PREFIX: Final = 4
"""Digits of a digest that name an artifact at least, if no other begins like that."""


class CacheAction(StrEnum):
    """What to do."""

    LIST = "list"
    PIN = "pin"
    UNPIN = "unpin"
    EVICT = "evict"


class CacheOrder(Record):
    """One order to one node. Repeated with the same ``intent`` it is carried out once and answered alike."""

    intent: str = Field(min_length=1, max_length=128, description="made up by whoever asks, new for each new wish")
    action: CacheAction
    artifact: str = Field(default="", pattern=r"^[0-9a-f]{0,64}$", description="digest or unique prefix of it; empty: list")
    by: str = Field(default="operator", max_length=200, description="who asks, kept with a pin")


class CacheAnswer(Record):
    """What was done. ``artifacts`` holds all of them for a list, else the one meant, as it is now or was before it went."""

    node: str
    intent: str
    action: CacheAction
    artifacts: tuple[CachedArtifact, ...] = ()
    changed: bool = Field(default=False, description="false where it already was as asked for")
    freed_bytes: int = 0
    used_bytes: int = Field(default=0, description="of the whole cache, afterwards")
    capacity_bytes: int = 0
