"""What an operator asks of a node to see what its engines spend their time on, and what the node answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pydantic import Field

from standby.domain.values import Record, Value

DEFAULT_SECONDS: Final = 10
MOST_SECONDS: Final = 300
ID: Final = "[0-9a-f]{8,32}"
"""Pattern of a profile's id, which is also the name of its folder."""
MANIFEST: Final = "manifest.json"
"""Name of the file that says what else lies in a profile's folder."""


class ProfileAction(StrEnum):
    """What to do with a profile; they are named by their ids."""

    START = "start"
    LOOK = "look"
    STOP = "stop"


class ProfileOrder(Record):
    """One order to one node. START again with the same id is answered like LOOK.

    Who has started one looks at it again and again: without that the node ends it by itself.
    """

    id: str = Field(pattern=f"^{ID}$", description="made up by whoever asks, new for each new profile")
    action: ProfileAction
    tenant: str = ""
    endpoint: str = ""
    seconds: int = Field(default=DEFAULT_SECONDS, ge=1, le=MOST_SECONDS)
    node_too: bool = Field(default=False, description="the node agent's own process as well")
    native: bool = Field(default=False, description="also frames of C and C++: each sample pauses the engine longer")
    by: str = Field(default="operator", max_length=200, description="who asks")


class ProfileFile(Value):
    """One file of a profile."""

    name: str = Field(description="path below the profile's folder")
    bytes: int
    what: str


class LeftOut(Value):
    """What is not in a profile, and why."""

    what: str
    reason: str
    remedy: str = ""


class ProfileState(StrEnum):
    """How far a profile is: RECORDING → WRITING → DONE, whether it ran its whole time or was stopped."""

    RECORDING = "recording"
    WRITING = "writing"
    DONE = "done"


class ProfileAnswer(Record):
    """How a profile stands. The bytes stay in ``folder`` on the node: they never travel over the bus."""

    node: str
    id: str
    endpoint: str = ""
    state: ProfileState
    began_at: float = Field(description="by the node's clock")
    seconds: int = Field(description="as ordered")
    recorded_s: float = Field(default=0.0, description="so far, or in all")
    stopped: str = Field(default="", description="why it ended before its time; empty: it did not")
    folder: str = Field(description="on the node")
    files: tuple[ProfileFile, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    commands: tuple[str, ...] = Field(default=(), description="for NVIDIA's profilers; nobody has run them")
