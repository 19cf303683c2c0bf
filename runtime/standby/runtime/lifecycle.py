"""The life of an instance: a pure state machine. Events go in, the next life and the effects to carry out come out.

========== ============================== ============ =================================================================
state      event                          next         effects
========== ============================== ============ =================================================================
cold       Targeted staged or higher      fetching     Fetch; zygote or higher: Hatch, beside it
fetching   Fetched                        staged       then on, as from staged
fetching   FetchFailed                    failed       ScheduleRetry
fetching   Targeted cold                  gone         CancelFetch, LeaveZygote, Forget
staged     Targeted asleep or ready       starting     Hatch, Reserve(ready); what Hatch answers is not waited for
staged     Targeted zygote                staged       Hatch
staged     Targeted staged                staged       LeaveZygote
staged     Hatched, zygote wanted         zygote
staged     HatchFailed, zygote wanted     staged       ScheduleRetry; no failed instance: it can climb without
staged     RetryDue                       as Targeted  sooner: ScheduleRetry again
staged     Targeted cold                  gone         LeaveZygote, Forget
zygote     Targeted asleep or ready       starting     Reserve(ready)
zygote     Targeted staged                staged       LeaveZygote
zygote     Targeted cold                  gone         LeaveZygote, Forget
zygote     ZygoteLost                     staged       Hatch; again within a minute: ScheduleRetry
starting   Reserved                       starting     Spawn(run + 1)
starting   ReservationRefused             staged       ScheduleRetry
starting   Spawned                        starting     WaitLoaded
starting   Loaded                         probing      Probe
starting   StartFailed, Exited, Sick      failed       CloseDoor, Stop, Release, ScheduleRetry
starting   Targeted zygote or lower       stopping     CloseDoor, Stop
starting   StopFailed, memory not granted failed       Release, ScheduleRetry; the run before does not end
probing    Probed, ready wanted           ready        OpenDoor(epoch + 1)
probing    Probed, asleep wanted          suspending   Suspend
probing    ProbeFailed after a start      failed       CloseDoor, Stop, Release, ScheduleRetry
probing    ProbeFailed after a wake       stopping     CloseDoor, Stop; then a start from staged
probing    Exited, Sick                   failed       CloseDoor, Stop, Release, ScheduleRetry
probing    Targeted zygote or lower       stopping     CloseDoor, Stop
ready      Targeted lower                 draining     FenceDoor, Drain(epoch)
ready      Exited, Sick                   failed       CloseDoor, Stop, Release, ScheduleRetry
draining   Targeted ready                 ready        CancelDrain, OpenDoor(epoch + 1)
draining   Drained                        suspending   Suspend; where asleep is not wanted: stopping, CloseDoor, Stop
draining   Exited, Sick                   failed       CloseDoor, Stop, Release, ScheduleRetry; lower wanted: stopping
suspending Suspended                      asleep       Release(asleep), then on, as from asleep
suspending SuspendFailed                  stopping     CloseDoor, Stop; asleep means zygote or staged from now on
suspending Exited                         failed       CloseDoor, Stop, Release, ScheduleRetry; lower wanted: stopping
asleep     Targeted ready                 waking       Reserve(ready)
asleep     RetryDue                       waking       Reserve(ready); sooner: ScheduleRetry again
asleep     Targeted zygote or lower       stopping     CloseDoor, Stop
asleep     Exited, Sick                   failed       CloseDoor, Stop, Release, ScheduleRetry
asleep     Evicted                        stopping     CloseDoor, Stop; zygote or staged, until the next target
waking     Reserved                       waking       Resume
waking     ReservationRefused             asleep       ScheduleRetry
waking     Resumed                        probing      Probe
waking     ResumeFailed                   stopping     CloseDoor, Stop; then a start from staged
waking     Exited, Sick                   failed       CloseDoor, Stop, Release, ScheduleRetry
waking     Targeted zygote or lower       stopping     CloseDoor, Stop
stopping   Stopped                        staged       Release(staged), then on, as from staged
stopping   StopFailed                     failed       Release, ScheduleRetry; cold wanted: gone, LeaveZygote, Forget
failed     RetryDue                       fetching     as from cold; sooner: ScheduleRetry again
failed     Targeted, new generation       fetching     as from cold
failed     Targeted cold                  gone         LeaveZygote, Forget
gone       Targeted staged or higher      fetching     as from cold
========== ============================== ============ =================================================================

A target that is not named for a state is remembered, and acted on when the state is left. Everything else is ignored,
with the reason in ``IGNORED``. A rung that the engine does not have means the next lower one that it has.

The zygote is the node's, shared by all instances of an engine kind. One that ``can_zygote`` asks for it (Hatch) when a
fetch or a climb begins, so that imports run beside the download, and before it rests at zygote. It lets go (LeaveZygote)
where it comes to rest at staged because staged is wanted, and where it is forgotten: nowhere else, so that what is ready,
asleep or failed keeps the zygote that its next start will fork from. Neither is ordered of an engine that has none, and
LeaveZygote only after a Hatch.

Whoever runs this machine owns the life and does three things: it carries effects out in the order in which they came;
it lets no wait block that order (Fetch, Hatch, WaitLoaded, Probe, Drain and Suspend run as tasks, which CancelFetch,
LeaveZygote, CancelDrain and Stop end); and it feeds every answer back as an event. While a stop is under way, also one
that failed and is tried again, it holds Reserve, Release and Forget back: what the engine holds is not free before::

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

from standby.domain.instance import InstanceState as S
from standby.runtime import lifecycle_rules as rules
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle_moves import Step, retry_delay
from standby.runtime.lifecycle_values import Event, Lifecycle


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


def _rule(handle: Callable[[Lifecycle, Event, float], Step], *leads_to: S) -> Rule:
    return Rule(handle, frozenset(leads_to))


_BROKEN: Final = _rule(rules.broken, S.FAILED, S.STOPPING)
_SICK: Final = _rule(rules.sick, S.FAILED, S.STOPPING)

TABLE: Final[Mapping[tuple[S, type[Event]], Rule]] = MappingProxyType(
    {
        (S.COLD, v.Targeted): _rule(rules.begin, S.COLD, S.FETCHING),
        (S.FETCHING, v.Fetched): _rule(rules.fetched, S.STAGED, S.STARTING, S.GONE),
        (S.FETCHING, v.FetchFailed): _rule(rules.fetch_failed, S.FAILED),
        (S.FETCHING, v.Targeted): _rule(rules.target_while_fetching, S.FETCHING, S.GONE),
        (S.STAGED, v.Targeted): _rule(rules.target_at_rest, S.STAGED, S.STARTING, S.GONE),
        (S.STAGED, v.RetryDue): _rule(rules.retry, S.STAGED, S.STARTING, S.GONE),
        (S.STAGED, v.Hatched): _rule(rules.hatched, S.STAGED, S.ZYGOTE),
        (S.STAGED, v.HatchFailed): _rule(rules.hatch_failed, S.STAGED),
        (S.ZYGOTE, v.Targeted): _rule(rules.target_at_rest, S.ZYGOTE, S.STAGED, S.STARTING, S.GONE),
        (S.ZYGOTE, v.ZygoteLost): _rule(rules.zygote_lost, S.STAGED),
        (S.STARTING, v.Reserved): _rule(rules.reserved, S.STARTING),
        (S.STARTING, v.ReservationRefused): _rule(rules.refused, S.STAGED, S.STARTING),
        (S.STARTING, v.Spawned): _rule(rules.spawned, S.STARTING),
        (S.STARTING, v.Loaded): _rule(rules.loaded, S.PROBING),
        (S.STARTING, v.StartFailed): _BROKEN,
        (S.STARTING, v.Exited): _BROKEN,
        (S.STARTING, v.Sick): _rule(rules.sick, S.STARTING, S.FAILED, S.STOPPING),
        (S.STARTING, v.StopFailed): _rule(rules.stop_failed, S.STARTING, S.FAILED),
        (S.STARTING, v.Targeted): _rule(rules.target_while_climbing, S.STARTING, S.STOPPING),
        (S.PROBING, v.Probed): _rule(rules.probed, S.READY, S.SUSPENDING),
        (S.PROBING, v.ProbeFailed): _rule(rules.probe_failed, S.FAILED, S.STOPPING),
        (S.PROBING, v.Exited): _BROKEN,
        (S.PROBING, v.Sick): _SICK,
        (S.PROBING, v.Targeted): _rule(rules.target_while_climbing, S.PROBING, S.STOPPING),
        (S.READY, v.Targeted): _rule(rules.target_while_ready, S.READY, S.DRAINING),
        (S.READY, v.Exited): _BROKEN,
        (S.READY, v.Sick): _SICK,
        (S.DRAINING, v.Targeted): _rule(rules.target_while_draining, S.DRAINING, S.READY),
        (S.DRAINING, v.Drained): _rule(rules.drained, S.SUSPENDING, S.STOPPING),
        (S.DRAINING, v.Exited): _BROKEN,
        (S.DRAINING, v.Sick): _SICK,
        (S.SUSPENDING, v.Suspended): _rule(rules.suspended, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.SUSPENDING, v.SuspendFailed): _rule(rules.suspend_failed, S.STOPPING),
        (S.SUSPENDING, v.Exited): _BROKEN,
        (S.SUSPENDING, v.Targeted): _rule(rules.remember, S.SUSPENDING),
        (S.ASLEEP, v.Targeted): _rule(rules.target_at_rest, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.ASLEEP, v.RetryDue): _rule(rules.retry, S.ASLEEP, S.WAKING, S.STOPPING),
        (S.ASLEEP, v.Exited): _BROKEN,
        (S.ASLEEP, v.Sick): _SICK,
        (S.ASLEEP, v.Evicted): _rule(rules.evicted, S.ASLEEP, S.STOPPING),
        (S.WAKING, v.Reserved): _rule(rules.reserved, S.WAKING),
        (S.WAKING, v.ReservationRefused): _rule(rules.refused, S.ASLEEP, S.WAKING),
        (S.WAKING, v.Resumed): _rule(rules.resumed, S.PROBING),
        (S.WAKING, v.ResumeFailed): _rule(rules.resume_failed, S.STOPPING),
        (S.WAKING, v.Exited): _BROKEN,
        (S.WAKING, v.Sick): _SICK,
        (S.WAKING, v.Targeted): _rule(rules.target_while_climbing, S.WAKING, S.STOPPING),
        (S.STOPPING, v.Stopped): _rule(rules.stopped, S.STAGED, S.STARTING, S.GONE),
        (S.STOPPING, v.StopFailed): _rule(rules.stop_failed, S.FAILED, S.GONE),
        (S.STOPPING, v.Targeted): _rule(rules.remember, S.STOPPING),
        (S.FAILED, v.RetryDue): _rule(rules.retry, S.FAILED, S.FETCHING),
        (S.FAILED, v.Targeted): _rule(rules.target_while_failed, S.FAILED, S.FETCHING, S.GONE),
        (S.GONE, v.Targeted): _rule(rules.begin, S.GONE, S.FETCHING),
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
        v.Hatched: (_all_but(S.STAGED), "no zygote is waited for, or it rests on it already"),
        v.HatchFailed: (_all_but(S.STAGED), "no zygote is waited for: a start does without"),
        v.ZygoteLost: (_all_but(S.ZYGOTE), "nothing rests on the zygote"),
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
        v.Sick: (
            _all_but(S.STARTING, S.PROBING, S.READY, S.DRAINING, S.ASLEEP, S.WAKING),
            "it is being stopped, or falls asleep, which tells by itself whether it works",
        ),
        v.Stopped: (_all_but(S.STOPPING), "nobody waits for the stop"),
        v.StopFailed: (_all_but(S.STARTING, S.STOPPING), "it has been said that the engine does not end"),
        v.Evicted: (_all_but(S.ASLEEP), "it does not sleep any more"),
        v.RetryDue: (_all_but(S.STAGED, S.ASLEEP, S.FAILED), "the climb is under way, or nothing is wanted"),
    }
)
