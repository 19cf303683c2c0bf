"""The moves of the life of an instance: what several rows of the transition table have in common. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from standby.domain.endpoint import Failure
from standby.domain.instance import InstanceState as S
from standby.domain.instance import Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle_values import Effect, Lifecycle

LONGEST_RETRY_S: Final = 60.0
LASTED_S: Final = 60.0


class Step(NamedTuple):
    """The life after an event, what to do now, and why."""

    life: Lifecycle
    effects: tuple[Effect, ...]
    reason: str


def retry_delay(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: 1, 2, 4 … at most 60."""
    return min(LONGEST_RETRY_S, 2.0 ** min(failures - 1, 10)) if failures > 0 else 0.0


def settle(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """Go on from a state in which nothing is under way, to where the target lies."""
    wanted = life.wanted
    if life.state == S.STAGED and wanted == Rung.COLD:
        return Step(replace(life, state=S.GONE), (*done, v.Forget()), f"{reason}; cold is wanted")
    if life.state == S.STAGED and wanted > Rung.STAGED:
        return Step(
            replace(life, state=S.STARTING, reserving=True, retry_at=None),
            (*done, v.Reserve(Rung.READY)),
            f"{reason}; {wanted.label} is wanted",
        )
    if life.state == S.ASLEEP and wanted == Rung.READY:
        return Step(
            replace(life, state=S.WAKING, reserving=True, waking=True, retry_at=None),
            (*done, v.Reserve(Rung.READY)),
            f"{reason}; ready is wanted",
        )
    if life.state == S.ASLEEP and wanted < Rung.ASLEEP:
        return stop(life, f"{reason}; {wanted.label} is wanted", *done)
    return Step(life, done, reason)


def stop(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """End the engine."""
    return Step(
        replace(life, state=S.STOPPING, reserving=False, waking=False), (*done, v.CloseDoor(), v.Stop(life.run)), reason
    )


def fetch(life: Lifecycle, reason: str) -> Step:
    """Begin at the bottom; an artifact that is there already costs nothing."""
    return Step(replace(life, state=S.FETCHING, retry_at=None), (v.Fetch(),), reason)


def open_door(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """Become ready under a new epoch, so that requests meant for an earlier life are refused."""
    epoch = life.epoch + 1
    return Step(
        replace(life, state=S.READY, epoch=epoch, waking=False, failure=None, retry_at=None),
        (*done, v.OpenDoor(epoch)),
        reason,
    )


def fail(life: Lifecycle, failure: Failure, now: float, *done: Effect) -> Step:
    """Go to failed with the next retry's time; an engine that had been healthy for a minute begins counting anew."""
    lasted = life.healthy_since is not None and now - life.healthy_since >= LASTED_S
    failures = 1 if lasted else life.failures + 1
    retry_at = now + retry_delay(failures)
    told = failure.model_copy(update={"attempts": failures, "at": now, "next_retry_at": retry_at})
    after = replace(life, state=S.FAILED, failures=failures, failure=told, retry_at=retry_at, healthy_since=None, waking=False)
    return Step(after, (*done, v.ScheduleRetry(retry_at)), failure.reason)
