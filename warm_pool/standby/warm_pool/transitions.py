"""Which step of the ladder begins and ends where in an instance's life, and how long it took. Pure.

A step is measured from the moment at which its work begins: a climb from the grant of its memory (a queue for memory is
the node's crowding, not the step's price), a sleep from the end of the drain. A step that fails or is cut short is no
measurement. A fetch is its own step, and none where the artifact lay on disk already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from standby.domain.instance import InstanceState as S
from standby.domain.prices import Transition
from standby.runtime.lifecycle_values import Lifecycle

# Where a step is under way, and the states that say it has been completed: what follows may begin in the same moment.
_UNDER_WAY: Final[Mapping[Transition, frozenset[S]]] = MappingProxyType(
    {
        Transition.FETCH: frozenset({S.FETCHING}),
        Transition.START: frozenset({S.STARTING, S.PROBING}),
        Transition.FORK: frozenset({S.STARTING, S.PROBING}),
        Transition.WAKE: frozenset({S.WAKING, S.PROBING}),
        Transition.SLEEP: frozenset({S.SUSPENDING}),
        Transition.PUSH_OUT: frozenset({S.STOPPING}),
        Transition.STOP: frozenset({S.STOPPING}),
    }
)
_ENDS_IN: Final[Mapping[Transition, frozenset[S]]] = MappingProxyType(
    {
        Transition.FETCH: frozenset({S.STAGED, S.ZYGOTE, S.STARTING}),
        # An instance that is to be asleep is put to sleep right after its probe: it could have served.
        Transition.START: frozenset({S.READY, S.SUSPENDING}),
        Transition.FORK: frozenset({S.READY, S.SUSPENDING}),
        Transition.WAKE: frozenset({S.READY, S.SUSPENDING}),
        # Stopping is not among them: a sleep that failed ends there, too.
        Transition.SLEEP: frozenset({S.ASLEEP, S.WAKING}),
        # Gone is not among them: it is also said of an engine that does not end.
        Transition.PUSH_OUT: frozenset({S.STAGED, S.ZYGOTE, S.STARTING}),
        Transition.STOP: frozenset({S.STAGED, S.ZYGOTE, S.STARTING}),
    }
)


@dataclass(frozen=True, slots=True)
class Tracker:
    """The step under way, if any; ``began`` in monotonic seconds."""

    step: Transition | None = None
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A completed step."""

    step: Transition
    seconds: float


NOT_UNDER_WAY: Final = Tracker()


def note(
    tracker: Tracker,
    before: Lifecycle,
    after: Lifecycle,
    now: float,
    *,
    on_disk: bool,
    zygote_ready: bool,
    forked: bool | None = None,
) -> tuple[Tracker, Observation | None]:
    """Return the tracker after one step of the life, and the measurement that it completes.

    ``now`` is monotonic seconds; ``on_disk``: the artifact is complete on this node; ``zygote_ready``: the node's zygote
    for this engine is, too. A climb that has to wait for it is no climb from a zygote. ``forked`` False: the running
    engine was started plainly after all. To be called for every event, in order.
    """
    observation = _completed(tracker, before, after, now, forked)
    step = _begun(before, after, on_disk=on_disk, zygote_ready=zygote_ready)
    if step is not None:
        return Tracker(step, now), observation
    going_on = tracker.step is not None and after.state in _UNDER_WAY[tracker.step] and after.run == before.run
    return (tracker if going_on else NOT_UNDER_WAY), observation


def _completed(tracker: Tracker, before: Lifecycle, after: Lifecycle, now: float, forked: bool | None) -> Observation | None:
    step = tracker.step
    if step is None or before.state is after.state or after.state not in _ENDS_IN[step]:
        return None
    # A climb is proved by its probe; a start that is cut short goes to stopping without one.
    if step in (Transition.START, Transition.FORK, Transition.WAKE) and before.state is not S.PROBING:
        return None
    if step is Transition.FORK and forked is False:
        step = Transition.START
    return Observation(step, max(0.0, now - tracker.began))


def _begun(before: Lifecycle, after: Lifecycle, *, on_disk: bool, zygote_ready: bool) -> Transition | None:
    """Return the step that begins here."""
    entered = before.state is not after.state
    granted = not entered and before.reserving and not after.reserving
    begins = (
        (Transition.FETCH, entered and after.state is S.FETCHING and not on_disk),
        (Transition.FORK if zygote_ready else Transition.START, granted and after.state is S.STARTING),
        (Transition.WAKE, granted and after.state is S.WAKING),
        (Transition.SLEEP, entered and after.state is S.SUSPENDING),
        (Transition.PUSH_OUT, before.state is S.ASLEEP and after.state is S.STOPPING),
        (Transition.STOP, before.state is S.DRAINING and after.state is S.STOPPING),
    )
    return next((step for step, here in begins if here), None)
