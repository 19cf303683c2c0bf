"""The life of an instance: a pure state machine. Events go in, the next life and the effects to carry out come out.

========== ============================== ============ =================================================================
state      event                          next         effects
========== ============================== ============ =================================================================
cold       Targeted staged or higher      fetching     Fetch
fetching   Fetched                        staged       then on, as from staged
fetching   FetchFailed                    failed       ScheduleRetry
fetching   Targeted cold                  gone         CancelFetch, Forget
staged     Targeted asleep or ready       starting     Reserve(ready)
staged     RetryDue                       starting     Reserve(ready); sooner: ScheduleRetry again
staged     Targeted cold                  gone         Forget
starting   Reserved                       starting     Spawn(run + 1)
starting   ReservationRefused             staged       ScheduleRetry
starting   Spawned                        starting     WaitLoaded
starting   Loaded                         probing      Probe
starting   StartFailed, Exited            failed       CloseDoor, Stop, Release, ScheduleRetry
starting   Targeted staged or cold        stopping     CloseDoor, Stop
starting   StopFailed, memory not granted failed       Release, ScheduleRetry; the run before does not end
probing    Probed, ready wanted           ready        OpenDoor(epoch + 1)
probing    Probed, asleep wanted          suspending   Suspend
probing    ProbeFailed after a start      failed       CloseDoor, Stop, Release, ScheduleRetry
probing    ProbeFailed after a wake       stopping     CloseDoor, Stop; then a start from staged
probing    Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry
probing    Targeted staged or cold        stopping     CloseDoor, Stop
ready      Targeted lower                 draining     FenceDoor, Drain(epoch)
ready      Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry
draining   Targeted ready                 ready        CancelDrain, OpenDoor(epoch + 1)
draining   Drained                        suspending   Suspend; where asleep is not wanted: stopping, CloseDoor, Stop
draining   Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry; lower wanted: stopping
suspending Suspended                      asleep       Release(asleep), then on, as from asleep
suspending SuspendFailed                  stopping     CloseDoor, Stop; asleep means staged from now on
suspending Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry; lower wanted: stopping
asleep     Targeted ready                 waking       Reserve(ready)
asleep     RetryDue                       waking       Reserve(ready); sooner: ScheduleRetry again
asleep     Targeted staged or cold        stopping     CloseDoor, Stop
asleep     Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry
asleep     Evicted                        stopping     CloseDoor, Stop; asleep means staged until the next target
waking     Reserved                       waking       Resume
waking     ReservationRefused             asleep       ScheduleRetry
waking     Resumed                        probing      Probe
waking     ResumeFailed                   stopping     CloseDoor, Stop; then a start from staged
waking     Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry
waking     Targeted staged or cold        stopping     CloseDoor, Stop
stopping   Stopped                        staged       Release(staged), then on, as from staged
stopping   StopFailed                     failed       Release, ScheduleRetry; cold wanted: gone, Forget
failed     RetryDue                       fetching     Fetch; sooner: ScheduleRetry again
failed     Targeted, new generation       fetching     Fetch
failed     Targeted cold                  gone         Forget
gone       Targeted staged or higher      fetching     Fetch
========== ============================== ============ =================================================================

A target that is not named for a state is remembered, and acted on when the state is left. Everything else is ignored,
with the reason in ``IGNORED``.

Whoever runs this machine owns the life and does three things: it carries effects out in the order in which they came;
it lets no wait block that order (Fetch, WaitLoaded, Probe, Drain and Suspend run as tasks, which CancelFetch,
CancelDrain and Stop end); and it feeds every answer back as an event. While a stop is under way, also one that failed
and is tried again, it holds Reserve, Release and Forget back: what the engine holds is not free before::

    life, effects, reason = step(life, Targeted(Rung.READY, generation=1), now=clock())
    for effect in effects:
        match effect:
            case Reserve(rung=rung):
                feed(Reserved() if ledger.reserve(instance, rung) else ReservationRefused("12 MiB free"))
            case Spawn(run=run):
                handle = await adapter.start(spec)
                handle.exited.add_done_callback(lambda status: feed(Exited(run, describe_exit(...))))
                feed(Spawned(run))
            ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.domain.endpoint import NO_MEMORY, Failure
from standby.domain.instance import InstanceState as S
from standby.domain.instance import Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle_moves import LONGEST_RETRY_S, Step, fail, fetch, open_door, retry_delay, settle, stop
from standby.runtime.lifecycle_values import Event, Lifecycle

LONGEST_MEMORY_RETRY_S: Final = 15.0


class Rule(NamedTuple):
    """What handles an event in a state, and every state that it can lead to."""

    handle: Callable[[Lifecycle, Event, float], Step]
    leads_to: frozenset[S]


def step(life: Lifecycle, event: Event, now: float) -> Step:
    """Return what follows from ``event``; ``now`` in seconds by the node's clock."""
    if (stale := _stale(life, event)) is not None:
        return Step(life, (), stale)
    if isinstance(event, v.Targeted):
        life = _take_up(life, event)
    rule = TABLE.get((life.state, type(event)))
    if rule is None:
        _, reason = IGNORED[type(event)]
        return Step(life, (), f"ignored in {life.state}: {reason}")
    return rule.handle(life, event, now)


def _stale(life: Lifecycle, event: Event) -> str | None:
    run, epoch = getattr(event, "run", life.run), getattr(event, "epoch", life.epoch)
    if run != life.run:
        return f"ignored: {type(event).__name__} is of run {run}, the present one is {life.run}"
    if epoch != life.epoch:
        return f"ignored: {type(event).__name__} is of epoch {epoch}, the present one is {life.epoch}"
    return None


def _take_up(life: Lifecycle, event: v.Targeted) -> Lifecycle:
    renewed = event.generation != life.generation
    return replace(
        life, target=event.rung, generation=event.generation, failures=0 if renewed else life.failures,
        retry_at=None if renewed else life.retry_at,
    )  # fmt: skip


__all__ = ["IGNORED", "TABLE", "Lifecycle", "Rule", "Step", "retry_delay", "step"]

# ---- one function for each kind of row of the table -----------------------------------------------------------------


def _begin(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.COLD:
        return Step(life, (), "cold is wanted, and cold it is")
    return fetch(life, f"{life.wanted.label} is wanted")


def _fetched(life: Lifecycle, _event: Event, _now: float) -> Step:
    return settle(replace(life, state=S.STAGED), "artifact is complete")


def _fetch_failed(life: Lifecycle, event: Event, now: float) -> Step:
    assert isinstance(event, v.FetchFailed)
    return fail(life, event.failure, now)


def _target_while_fetching(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.COLD:
        return Step(replace(life, state=S.GONE), (v.CancelFetch(), v.Forget()), "cold is wanted; fetch is cancelled")
    return Step(life, (), f"{life.wanted.label} is remembered")


def _target_at_rest(life: Lifecycle, _event: Event, _now: float) -> Step:
    return settle(life, f"on {life.state}")


def _retry(life: Lifecycle, event: Event, now: float) -> Step:
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


def _reserved(life: Lifecycle, _event: Event, _now: float) -> Step:
    if not life.reserving:  # one grant starts one engine
        return Step(life, (), "memory had been reserved already")
    if life.state == S.WAKING:
        return Step(replace(life, reserving=False), (v.Resume(life.run),), "memory is reserved")
    run = life.run + 1
    return Step(replace(life, run=run, reserving=False, healthy_since=None), (v.Spawn(run),), "memory is reserved")


def _refused(life: Lifecycle, event: Event, now: float) -> Step:
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


def _spawned(life: Lifecycle, _event: Event, _now: float) -> Step:
    return Step(life, (v.WaitLoaded(life.run),), "process runs")


def _loaded(life: Lifecycle, _event: Event, _now: float) -> Step:
    return Step(replace(life, state=S.PROBING), (v.Probe(life.run),), "engine has loaded")


def _resumed(life: Lifecycle, _event: Event, _now: float) -> Step:
    return Step(replace(life, state=S.PROBING), (v.Probe(life.run),), "process runs again")


def _target_while_climbing(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted <= Rung.STAGED:
        return stop(life, f"{life.wanted.label} is wanted; the climb is cut short")
    return Step(life, (), f"{life.wanted.label} is remembered")


def _probed(life: Lifecycle, _event: Event, now: float) -> Step:
    life = life if life.healthy_since is not None else replace(life, healthy_since=now)
    if life.wanted == Rung.READY:
        return open_door(life, "engine generates")
    # Only asleep is left: anything lower has stopped the climb already.
    return Step(replace(life, state=S.SUSPENDING, waking=False), (v.Suspend(life.run),), "asleep is wanted")


def _probe_failed(life: Lifecycle, event: Event, now: float) -> Step:
    assert isinstance(event, v.ProbeFailed)
    if life.waking:
        return stop(life, f"probe after the wake failed, the engine is started anew: {event.failure.reason}")
    return _broken(life, event, now)


def _target_while_ready(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.READY:
        return Step(life, (), "ready is wanted, and ready it is")
    return Step(replace(life, state=S.DRAINING), (v.FenceDoor(), v.Drain(life.epoch)), f"{life.wanted.label} is wanted")


def _target_while_draining(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.READY:
        return open_door(life, "ready is wanted again", v.CancelDrain())
    return Step(life, (), f"{life.wanted.label} is remembered")


def _drained(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.ASLEEP:
        return Step(replace(life, state=S.SUSPENDING), (v.Suspend(life.run),), "nothing is in flight")
    return stop(life, "nothing is in flight")


def _suspended(life: Lifecycle, _event: Event, _now: float) -> Step:
    return settle(replace(life, state=S.ASLEEP), "memory is given back", v.Release(Rung.ASLEEP))


def _suspend_failed(life: Lifecycle, event: Event, _now: float) -> Step:
    assert isinstance(event, v.SuspendFailed)
    return stop(replace(life, can_sleep=False), f"suspend failed, the engine is stopped instead: {event.failure.reason}")


def _resume_failed(life: Lifecycle, event: Event, _now: float) -> Step:
    assert isinstance(event, v.ResumeFailed)
    return stop(life, f"wake failed, the engine is started anew: {event.failure.reason}")


def _broken(life: Lifecycle, event: Event, now: float) -> Step:
    assert isinstance(event, v.StartFailed | v.ProbeFailed | v.Exited)
    if life.wanted <= Rung.STAGED:  # it was on its way down: nobody wants a retry
        return stop(life, f"{event.failure.reason}; {life.wanted.label} is wanted")
    return fail(life, event.failure, now, v.CloseDoor(), v.Stop(life.run), v.Release(Rung.STAGED))


def _remember(life: Lifecycle, _event: Event, _now: float) -> Step:
    return Step(life, (), f"{life.wanted.label} is remembered")


def _stopped(life: Lifecycle, _event: Event, _now: float) -> Step:
    return settle(replace(life, state=S.STAGED, healthy_since=None), "whole group is gone", v.Release(Rung.STAGED))


def _stop_failed(life: Lifecycle, event: Event, now: float) -> Step:
    """Say it, instead of waiting without a word; Stopped is not waited for any more, the owner holds back what must be."""
    assert isinstance(event, v.StopFailed)
    if life.state == S.STARTING and not life.reserving:
        return Step(life, (), "the run before has ended since")
    if life.wanted == Rung.COLD:
        return Step(replace(life, state=S.GONE, retry_at=None), (v.Forget(),), f"cold is wanted; {event.failure.reason}")
    return fail(replace(life, reserving=False), event.failure, now, v.Release(Rung.STAGED))


def _evicted(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted != Rung.ASLEEP:
        return Step(life, (), f"{life.wanted.label} is wanted: it is no sleeper to push out")
    return stop(replace(life, target=Rung.STAGED), "its memory is needed for a climb")


def _target_while_failed(life: Lifecycle, _event: Event, _now: float) -> Step:
    if life.wanted == Rung.COLD:
        return Step(replace(life, state=S.GONE, retry_at=None), (v.Forget(),), "cold is wanted")
    if life.retry_at is None:  # a new generation has taken it away
        return fetch(life, "new generation of the endpoint")
    return Step(life, (), f"{life.wanted.label} is remembered until the retry")


def _rule(handle: Callable[[Lifecycle, Event, float], Step], *leads_to: S) -> Rule:
    return Rule(handle, frozenset(leads_to))


_BROKEN: Final = _rule(_broken, S.FAILED, S.STOPPING)

TABLE: Final[Mapping[tuple[S, type[Event]], Rule]] = MappingProxyType(
    {
        (S.COLD, v.Targeted): _rule(_begin, S.COLD, S.FETCHING),
        (S.FETCHING, v.Fetched): _rule(_fetched, S.STAGED, S.STARTING, S.GONE),
        (S.FETCHING, v.FetchFailed): _rule(_fetch_failed, S.FAILED),
        (S.FETCHING, v.Targeted): _rule(_target_while_fetching, S.FETCHING, S.GONE),
        (S.STAGED, v.Targeted): _rule(_target_at_rest, S.STAGED, S.STARTING, S.GONE),
        (S.STAGED, v.RetryDue): _rule(_retry, S.STAGED, S.STARTING, S.GONE),
        (S.STARTING, v.Reserved): _rule(_reserved, S.STARTING),
        (S.STARTING, v.ReservationRefused): _rule(_refused, S.STAGED, S.STARTING),
        (S.STARTING, v.Spawned): _rule(_spawned, S.STARTING),
        (S.STARTING, v.Loaded): _rule(_loaded, S.PROBING),
        (S.STARTING, v.StartFailed): _BROKEN,
        (S.STARTING, v.Exited): _BROKEN,
        (S.STARTING, v.StopFailed): _rule(_stop_failed, S.STARTING, S.FAILED),
        (S.STARTING, v.Targeted): _rule(_target_while_climbing, S.STARTING, S.STOPPING),
        (S.PROBING, v.Probed): _rule(_probed, S.READY, S.SUSPENDING),
        (S.PROBING, v.ProbeFailed): _rule(_probe_failed, S.FAILED, S.STOPPING),
        (S.PROBING, v.Exited): _BROKEN,
        (S.PROBING, v.Targeted): _rule(_target_while_climbing, S.PROBING, S.STOPPING),
        (S.READY, v.Targeted): _rule(_target_while_ready, S.READY, S.DRAINING),
        (S.READY, v.Exited): _BROKEN,
        (S.DRAINING, v.Targeted): _rule(_target_while_draining, S.DRAINING, S.READY),
        (S.DRAINING, v.Drained): _rule(_drained, S.SUSPENDING, S.STOPPING),
        (S.DRAINING, v.Exited): _BROKEN,
        (S.SUSPENDING, v.Suspended): _rule(_suspended, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.SUSPENDING, v.SuspendFailed): _rule(_suspend_failed, S.STOPPING),
        (S.SUSPENDING, v.Exited): _BROKEN,
        (S.SUSPENDING, v.Targeted): _rule(_remember, S.SUSPENDING),
        (S.ASLEEP, v.Targeted): _rule(_target_at_rest, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.ASLEEP, v.RetryDue): _rule(_retry, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.ASLEEP, v.Exited): _BROKEN,
        (S.ASLEEP, v.Evicted): _rule(_evicted, S.ASLEEP, S.STOPPING),
        (S.WAKING, v.Reserved): _rule(_reserved, S.WAKING),
        (S.WAKING, v.ReservationRefused): _rule(_refused, S.ASLEEP, S.WAKING),
        (S.WAKING, v.Resumed): _rule(_resumed, S.PROBING),
        (S.WAKING, v.ResumeFailed): _rule(_resume_failed, S.STOPPING),
        (S.WAKING, v.Exited): _BROKEN,
        (S.WAKING, v.Targeted): _rule(_target_while_climbing, S.WAKING, S.STOPPING),
        (S.STOPPING, v.Stopped): _rule(_stopped, S.STAGED, S.STARTING, S.GONE),
        (S.STOPPING, v.StopFailed): _rule(_stop_failed, S.FAILED, S.GONE),
        (S.STOPPING, v.Targeted): _rule(_remember, S.STOPPING),
        (S.FAILED, v.RetryDue): _rule(_retry, S.FAILED, S.FETCHING),
        (S.FAILED, v.Targeted): _rule(_target_while_failed, S.FAILED, S.FETCHING, S.GONE),
        (S.GONE, v.Targeted): _rule(_begin, S.GONE, S.FETCHING),
    }
)


def _all_but(*states: S) -> frozenset[S]:
    return frozenset(S) - frozenset(states)


_HAVE_RUNNING: Final = (S.STARTING, S.PROBING, S.READY, S.DRAINING, S.SUSPENDING, S.ASLEEP, S.WAKING)

IGNORED: Final[Mapping[type[Event], tuple[frozenset[S], str]]] = MappingProxyType(
    {
        v.Targeted: (frozenset(), ""),
        v.Fetched: (_all_but(S.FETCHING), "the fetch was cancelled or has been answered"),
        v.FetchFailed: (_all_but(S.FETCHING), "the fetch was cancelled or has been answered"),
        v.Reserved: (_all_but(S.STARTING, S.WAKING), "the climb was cut short, and what was granted is released"),
        v.ReservationRefused: (_all_but(S.STARTING, S.WAKING), "the climb was cut short"),
        v.Spawned: (_all_but(S.STARTING), "the start was cut short"),
        v.Loaded: (_all_but(S.STARTING), "the start was cut short"),
        v.StartFailed: (_all_but(S.STARTING), "the start was cut short, or its end has been seen"),
        v.Probed: (_all_but(S.PROBING), "the probe was cut short"),
        v.ProbeFailed: (_all_but(S.PROBING), "the probe was cut short, or the engine's end has been seen"),
        v.Drained: (_all_but(S.DRAINING), "the drain was called off or has been answered"),
        v.Suspended: (_all_but(S.SUSPENDING), "the engine's end has been seen"),
        v.SuspendFailed: (_all_but(S.SUSPENDING), "the engine's end has been seen"),
        v.Resumed: (_all_but(S.WAKING), "the wake was cut short"),
        v.ResumeFailed: (_all_but(S.WAKING), "the wake was cut short, or the engine's end has been seen"),
        v.Exited: (_all_but(*_HAVE_RUNNING), "it is being stopped, or its end has been seen"),
        v.Stopped: (_all_but(S.STOPPING), "nobody waits for the stop"),
        v.StopFailed: (_all_but(S.STARTING, S.STOPPING), "it has been said that the engine does not end"),
        v.Evicted: (_all_but(S.ASLEEP), "it does not sleep any more"),
        v.RetryDue: (_all_but(S.STAGED, S.ASLEEP, S.FAILED), "the climb is under way, or nothing is wanted"),
    }
)
