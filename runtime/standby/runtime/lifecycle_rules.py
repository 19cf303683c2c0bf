"""What each kind of row of the transition table does: one function each, all pure and of one shape."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from standby.domain.endpoint import NO_MEMORY, NO_ZYGOTE, Failure
from standby.domain.instance import InstanceState as S
from standby.domain.instance import Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle_moves import (
    LASTED_S,
    LONGEST_RETRY_S,
    Step,
    fail,
    fetch,
    forget,
    hatch_later,
    open_door,
    retry_delay,
    settle,
    stop,
)
from standby.runtime.lifecycle_values import Event, Lifecycle

LONGEST_MEMORY_RETRY_S: Final = 15.0


def begin(life: Lifecycle, _event: Event, _now: float) -> Step:
    """Cold or gone, and a target came."""
    if life.wanted == Rung.COLD:
        return Step(life, (), "cold is wanted, and cold it is")
    return fetch(life, f"{life.wanted.label} is wanted")


def fetched(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The artifact is there."""
    return settle(replace(life, state=S.STAGED), "artifact is complete")


def fetch_failed(life: Lifecycle, event: Event, now: float) -> Step:
    """The artifact could not be fetched."""
    assert isinstance(event, v.FetchFailed)
    return fail(life, event.failure, now)


def target_while_fetching(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed during the fetch."""
    if life.wanted == Rung.COLD:
        return forget(life, "cold is wanted; fetch is cancelled", v.CancelFetch())
    return Step(life, (), f"{life.wanted.label} is remembered")


def target_at_rest(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed while nothing was under way."""
    return settle(life, f"on {life.state}")


def hatched(life: Lifecycle, _event: Event, now: float) -> Step:
    """The zygote is ready: rest on it if that is wanted."""
    if life.wanted != Rung.ZYGOTE:
        return Step(life, (), f"{life.wanted.label} is wanted, and that needs no zygote")
    return Step(replace(life, state=S.ZYGOTE, hatched_at=now, retry_at=None), (), "its zygote is ready")


def hatch_failed(life: Lifecycle, event: Event, now: float) -> Step:
    """There is no zygote: stay staged, which is no failure of the instance."""
    assert isinstance(event, v.HatchFailed)
    if life.wanted != Rung.ZYGOTE:
        return Step(life, (), f"{life.wanted.label} is wanted, and that needs no zygote")
    return hatch_later(life, event.failure, now)


def zygote_lost(life: Lifecycle, event: Event, now: float) -> Step:
    """Its zygote ended: the next one at once, or later where the one before did not last either."""
    assert isinstance(event, v.ZygoteLost)
    failure = Failure(reason=event.reason, code=NO_ZYGOTE, at=now)
    lasted = life.hatched_at is not None and now - life.hatched_at >= LASTED_S
    if not lasted and life.failure is not None and life.failure.code == NO_ZYGOTE:
        return hatch_later(life, failure, now)
    return settle(replace(life, state=S.STAGED, hatched_at=None, failure=failure), event.reason)


def retry(life: Lifecycle, event: Event, now: float) -> Step:
    """The time of a retry has come."""
    assert isinstance(event, v.RetryDue)
    if life.retry_at is None:
        return Step(life, (), "no retry is due")
    freed = event.freed and life.state != S.FAILED and life.failure is not None and life.failure.code == NO_MEMORY
    # A timer may fire a little early; without this the retry would be lost. More than the longest wait: the clock was set back.
    if not freed and life.retry_at - LONGEST_RETRY_S <= now < life.retry_at:
        return Step(life, (v.ScheduleRetry(life.retry_at),), "too early")
    after = replace(life, retry_at=None)
    if life.state != S.FAILED:
        return settle(after, "retry")
    return fetch(after, f"retry after failure {life.failures}")


def reserved(life: Lifecycle, _event: Event, _now: float) -> Step:
    """Memory was granted: start, or continue."""
    if not life.reserving:  # one grant starts one engine
        return Step(life, (), "memory had been reserved already")
    if life.state == S.WAKING:
        return Step(replace(life, reserving=False), (v.Resume(life.run),), "memory is reserved")
    run = life.run + 1
    return Step(replace(life, run=run, reserving=False, healthy_since=None), (v.Spawn(run),), "memory is reserved")


def refused(life: Lifecycle, event: Event, now: float) -> Step:
    """No memory now: rest where it was, and ask again later."""
    assert isinstance(event, v.ReservationRefused)
    if not life.reserving:
        return Step(life, (), "memory had been reserved already")
    before = life.failure
    attempts = before.attempts + 1 if before is not None and before.code == NO_MEMORY else 1
    retry_at = now + min(LONGEST_MEMORY_RETRY_S, retry_delay(attempts))
    failure = Failure(reason=event.reason, code=NO_MEMORY, attempts=attempts, at=now, next_retry_at=retry_at)
    rest = S.ASLEEP if life.state == S.WAKING else S.STAGED
    after = replace(life, state=rest, reserving=False, waking=False, retry_at=retry_at, failure=failure)
    return Step(after, (v.ScheduleRetry(retry_at),), event.reason)


def spawned(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The process runs."""
    return Step(life, (v.WaitLoaded(life.run),), "process runs")


def loaded(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The engine listens."""
    return Step(replace(life, state=S.PROBING), (v.Probe(life.run),), "engine has loaded")


def resumed(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The process runs again."""
    return Step(replace(life, state=S.PROBING), (v.Probe(life.run),), "process runs again")


def target_while_climbing(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed during a climb: it is cut short where nobody wants a process any more."""
    if life.wanted < Rung.ASLEEP:
        return stop(life, f"{life.wanted.label} is wanted; the climb is cut short")
    return Step(life, (), f"{life.wanted.label} is remembered")


def probed(life: Lifecycle, _event: Event, now: float) -> Step:
    """The engine generates."""
    life = life if life.healthy_since is not None else replace(life, healthy_since=now)
    if life.wanted == Rung.READY:
        return open_door(life, "engine generates")
    # Only asleep is left: anything lower has stopped the climb already.
    return Step(replace(life, state=S.SUSPENDING, waking=False), (v.Suspend(life.run),), "asleep is wanted")


def probe_failed(life: Lifecycle, event: Event, now: float) -> Step:
    """The engine listens and does not generate."""
    assert isinstance(event, v.ProbeFailed)
    if life.waking:
        return stop(life, f"probe after the wake failed, the engine is started anew: {event.failure.reason}")
    return broken(life, event, now)


def target_while_ready(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed while it served."""
    if life.wanted == Rung.READY:
        return Step(life, (), "ready is wanted, and ready it is")
    return Step(replace(life, state=S.DRAINING), (v.FenceDoor(), v.Drain(life.epoch)), f"{life.wanted.label} is wanted")


def target_while_draining(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed while it emptied."""
    if life.wanted == Rung.READY:
        return open_door(life, "ready is wanted again", v.CancelDrain())
    return Step(life, (), f"{life.wanted.label} is remembered")


def drained(life: Lifecycle, _event: Event, _now: float) -> Step:
    """Nothing is in flight: go down."""
    if life.wanted == Rung.ASLEEP:
        return Step(replace(life, state=S.SUSPENDING), (v.Suspend(life.run),), "nothing is in flight")
    return stop(life, "nothing is in flight")


def suspended(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The engine sleeps."""
    return settle(replace(life, state=S.ASLEEP), "memory is given back", v.Release(Rung.ASLEEP))


def suspend_failed(life: Lifecycle, event: Event, _now: float) -> Step:
    """The engine could not be put to sleep: it will not be tried again in this life."""
    assert isinstance(event, v.SuspendFailed)
    return stop(replace(life, can_sleep=False), f"suspend failed, the engine is stopped instead: {event.failure.reason}")


def resume_failed(life: Lifecycle, event: Event, _now: float) -> Step:
    """The sleeper could not be continued: a fresh start."""
    assert isinstance(event, v.ResumeFailed)
    return stop(life, f"wake failed, the engine is started anew: {event.failure.reason}")


def broken(life: Lifecycle, event: Event, now: float) -> Step:
    """The engine broke: clean up behind it, and try again if somebody still wants it."""
    assert isinstance(event, v.StartFailed | v.ProbeFailed | v.Exited | v.Sick)
    if life.wanted < Rung.ASLEEP:  # it was on its way down: nobody wants a retry
        return stop(life, f"{event.failure.reason}; {life.wanted.label} is wanted")
    return fail(life, event.failure, now, v.CloseDoor(), v.Stop(life.run), v.Release(Rung.STAGED))


def sick(life: Lifecycle, event: Event, now: float) -> Step:
    """The engine serves nobody: it is as good as dead, and is ended."""
    if life.state == S.STARTING and life.reserving:
        return Step(life, (), "the run before is gone, the next one has not begun")
    return broken(life, event, now)


def remember(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target is acted on when the state is left."""
    return Step(life, (), f"{life.wanted.label} is remembered")


def stopped(life: Lifecycle, _event: Event, _now: float) -> Step:
    """Nothing is left of the engine."""
    return settle(replace(life, state=S.STAGED, healthy_since=None), "whole group is gone", v.Release(Rung.STAGED))


def stop_failed(life: Lifecycle, event: Event, now: float) -> Step:
    """Say it, instead of waiting without a word; Stopped is not waited for any more, the owner holds back what must be."""
    assert isinstance(event, v.StopFailed)
    if life.state == S.STARTING and not life.reserving:
        return Step(life, (), "the run before has ended since")
    if life.wanted == Rung.COLD:
        return forget(life, f"cold is wanted; {event.failure.reason}")
    return fail(replace(life, reserving=False), event.failure, now, v.Release(Rung.STAGED))


def evicted(life: Lifecycle, _event: Event, _now: float) -> Step:
    """A climb needs the memory of this sleeper."""
    if life.wanted != Rung.ASLEEP:
        return Step(life, (), f"{life.wanted.label} is wanted: it is no sleeper to push out")
    return stop(replace(life, target=Rung.ZYGOTE), "its memory is needed for a climb")


def target_while_failed(life: Lifecycle, _event: Event, _now: float) -> Step:
    """The target changed while it waited for its retry."""
    if life.wanted == Rung.COLD:
        return forget(life, "cold is wanted")
    if life.retry_at is None:  # a new generation has taken it away
        return fetch(life, "new generation of the endpoint")
    return Step(life, (), f"{life.wanted.label} is remembered until the retry")
