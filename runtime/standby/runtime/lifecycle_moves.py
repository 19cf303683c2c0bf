"""The moves of the life of an instance: what several rows of the transition table have in common. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from standby.domain.endpoint import NO_ZYGOTE, Failure
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
    if life.state == S.ASLEEP:
        return _settle_asleep(life, reason, *done)
    if life.state not in (S.STAGED, S.ZYGOTE):
        return Step(life, done, reason)
    if wanted > Rung.ZYGOTE:
        return _start(life, f"{reason}; {wanted.label} is wanted", *done)
    if wanted == Rung.ZYGOTE:
        return _settle_on_zygote(life, reason, *done)
    if wanted == Rung.COLD:
        return forget(life, f"{reason}; cold is wanted", *done)
    left = (v.LeaveZygote(),) if life.holds_zygote else ()
    rests = replace(life, state=S.STAGED, holds_zygote=False, hatched_at=None, retry_at=None)
    return Step(rests, (*done, *left), reason)


def _settle_on_zygote(life: Lifecycle, reason: str, *done: Effect) -> Step:
    if life.state == S.ZYGOTE:
        return Step(life, done, reason)
    after = replace(life, holds_zygote=True, retry_at=None)
    return Step(after, (*done, v.Hatch()), f"{reason}; zygote is wanted")


def _settle_asleep(life: Lifecycle, reason: str, *done: Effect) -> Step:
    if life.wanted == Rung.READY:
        return Step(
            replace(life, state=S.WAKING, reserving=True, waking=True, retry_at=None),
            (*done, v.Reserve(Rung.READY)),
            f"{reason}; ready is wanted",
        )
    if life.wanted < Rung.ASLEEP:
        return stop(life, f"{reason}; {life.wanted.label} is wanted", *done)
    return Step(life, done, reason)


def _start(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """Begin the climb to an engine of its own. The start uses the zygote if it is there in time, and does without if not."""
    hatch = (v.Hatch(),) if life.can_zygote and life.state == S.STAGED else ()
    # What was wrong with the zygote says nothing about this start.
    failure = None if life.failure is not None and life.failure.code == NO_ZYGOTE else life.failure
    return Step(
        replace(
            life, state=S.STARTING, reserving=True, retry_at=None, failure=failure, hatched_at=None,
            holds_zygote=life.holds_zygote or bool(hatch),
        ),
        (*done, *hatch, v.Reserve(Rung.READY)),
        reason,
    )  # fmt: skip


def forget(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """Become cold for good; nothing that the node shares is held any longer."""
    left = (v.LeaveZygote(),) if life.holds_zygote else ()
    after = replace(life, state=S.GONE, retry_at=None, holds_zygote=False, hatched_at=None)
    return Step(after, (*done, *left, v.Forget()), reason)


def hatch_later(life: Lifecycle, failure: Failure, now: float) -> Step:
    """Rest staged and try the zygote again after a while: the instance can still climb without it."""
    before = life.failure
    attempts = before.attempts + 1 if before is not None and before.code == NO_ZYGOTE else 1
    retry_at = now + retry_delay(attempts)
    told = failure.model_copy(update={"code": NO_ZYGOTE, "attempts": attempts, "at": now, "next_retry_at": retry_at})
    after = replace(life, state=S.STAGED, hatched_at=None, retry_at=retry_at, failure=told)
    return Step(after, (v.ScheduleRetry(retry_at),), failure.reason)


def stop(life: Lifecycle, reason: str, *done: Effect) -> Step:
    """End the engine."""
    return Step(
        replace(life, state=S.STOPPING, reserving=False, waking=False), (*done, v.CloseDoor(), v.Stop(life.run)), reason
    )


def fetch(life: Lifecycle, reason: str) -> Step:
    """Begin at the bottom; an artifact that is there already costs nothing, and the zygote hatches beside the download."""
    hatches = life.can_zygote and life.wanted > Rung.STAGED
    return Step(
        replace(life, state=S.FETCHING, retry_at=None, holds_zygote=life.holds_zygote or hatches),
        (v.Fetch(), v.Hatch()) if hatches else (v.Fetch(),),
        reason,
    )


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
