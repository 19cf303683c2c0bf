"""What is kept beside a model of AWS's clients about the look at its artifact, and what follows from it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from standby.domain.aws import AwsResource

INSPECTION: Final = "inspection"
REASON: Final = "reason"
NOTES: Final = "notes"
BY: Final = "by"
BEAT: Final = "beat"


class Inspection(StrEnum):
    """How far the look at a model's artifact is.

    ========  ==========================================  =========
    from      event                                       to
    ========  ==========================================  =========
    (new)     CreateModel                                 running
    running   the artifact is good                        good
    running   it is not, or no engine can serve it        failed
    failed    an endpoint is made of it: looked at again  running
    good      our record of it was removed meanwhile      running
    ========  ==========================================  =========
    """

    RUNNING = "running"
    GOOD = "good"
    FAILED = "failed"


class Servable(StrEnum):
    """Whether a model can be served, as far as is known."""

    GOOD = "good"
    WAITING = "waiting"
    FAILED = "failed"
    MISSING = "missing"


class Verdict(NamedTuple):
    """What is known of a model; ``reason`` says why it cannot be served."""

    servable: Servable
    reason: str = ""


def running(by: str, beat: int = 0) -> dict[str, Any]:
    """Return the state while ``by`` looks; ``beat`` grows while it lives."""
    return {INSPECTION: Inspection.RUNNING.value, BY: by, BEAT: beat}


def good(notes: tuple[str, ...]) -> dict[str, Any]:
    """Return the state of a model that can be served."""
    return {INSPECTION: Inspection.GOOD.value, NOTES: list(notes)}


def failed(reason: str, code: str) -> dict[str, Any]:
    """Return the state of a model that cannot be served; the reason is never lost."""
    return {INSPECTION: Inspection.FAILED.value, REASON: reason, "code": code}


def is_running(resource: AwsResource) -> bool:
    """Whether somebody looks at it, or should."""
    return resource.state.get(INSPECTION) == Inspection.RUNNING


def beat_of(state: Mapping[str, Any]) -> int:
    """Return how often whoever looks has said that it lives."""
    return int(state.get(BEAT, 0))
