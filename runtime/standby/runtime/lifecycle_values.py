"""What goes into the life of an instance and what comes out: its state, events and effects, all frozen.

``run`` numbers the engine processes of an instance: an effect carries the run that it means, and the event that answers
it carries the same number, so that news of an engine that is gone cannot be taken for news of the present one.
"""

from __future__ import annotations

from dataclasses import dataclass

from standby.domain.endpoint import Failure
from standby.domain.instance import InstanceState, Rung


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """One instance on this node. Times are seconds by the node's clock, the same that ``step`` is given as ``now``.

    ``epoch`` grows each time the door opens, ``run`` each time an engine is spawned. ``target`` is what the controller
    wants; ``can_sleep`` is False for engines without sleep, and after a failed suspend: asleep then means zygote, or
    staged where ``can_zygote`` is False, i.e. this node has no zygote for the engine.
    ``reserving`` is True while the memory ledger has not answered; ``waking`` from the wake until its probe has passed.
    ``holds_zygote`` is True from Hatch to LeaveZygote, ``hatched_at`` since when the instance rests at zygote.
    ``healthy_since`` is the first good probe of this run; ``retry_at`` is set while a retry is scheduled.
    """

    state: InstanceState = InstanceState.COLD
    target: Rung = Rung.COLD
    epoch: int = 0
    run: int = 0
    generation: int = 0
    can_sleep: bool = True
    can_zygote: bool = False
    holds_zygote: bool = False
    hatched_at: float | None = None
    reserving: bool = False
    waking: bool = False
    failures: int = 0
    healthy_since: float | None = None
    retry_at: float | None = None
    failure: Failure | None = None

    @property
    def wanted(self) -> Rung:
        """The rung to be on: the target, with rungs that this engine does not have replaced by the next lower one."""
        rung = self.target
        if rung is Rung.ASLEEP and not self.can_sleep:
            rung = Rung.ZYGOTE
        return Rung.STAGED if rung is Rung.ZYGOTE and not self.can_zygote else rung


# ---- events: what happened ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Targeted:
    """The controller wants this rung; ``generation`` is the endpoint's, a new one is a new beginning after failures."""

    rung: Rung
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Fetched:
    """The artifact is complete and verified on this node."""


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The artifact could not be fetched."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Hatched:
    """The node's zygote for this engine is ready to fork."""


@dataclass(frozen=True, slots=True)
class HatchFailed:
    """The node's zygote for this engine could not be made ready."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class ZygoteLost:
    """The node's zygote, on which this instance rests, has ended."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The memory ledger has granted what was asked."""


@dataclass(frozen=True, slots=True)
class ReservationRefused:
    """There is no memory now, even after eviction."""

    reason: str


@dataclass(frozen=True, slots=True)
class Spawned:
    """The engine's process runs; it has not loaded yet."""

    run: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine listens and has loaded."""

    run: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The engine could not be spawned, ended, or did not load in time."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Probed:
    """The engine has generated one token."""

    run: int


@dataclass(frozen=True, slots=True)
class ProbeFailed:
    """The engine listens but does not generate."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Drained:
    """Nothing of this epoch is in flight any more: all ended, or the limit came and the rest was cut off."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Suspended:
    """The process is stopped and its memory given back."""

    run: int


@dataclass(frozen=True, slots=True)
class SuspendFailed:
    """The process could not be put to sleep."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Resumed:
    """The process runs again."""

    run: int


@dataclass(frozen=True, slots=True)
class ResumeFailed:
    """The process could not be continued."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Exited:
    """The engine's process has ended by itself."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Sick:
    """The engine's process lives, but it serves nobody any more, and will not by itself."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Stopped:
    """Every process of this run's group is gone."""

    run: int


@dataclass(frozen=True, slots=True)
class StopFailed:
    """The engine of this run cannot be ended yet; whoever stops it goes on trying, and it keeps its memory meanwhile."""

    run: int
    failure: Failure


@dataclass(frozen=True, slots=True)
class Evicted:
    """The node needs the memory of this sleeper for a climb."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """The time of a scheduled retry has come; ``freed``: or memory has, which ends a wait for memory early."""

    freed: bool = False


Event = (
    Targeted | Fetched | FetchFailed | Hatched | HatchFailed | ZygoteLost | Reserved | ReservationRefused | Spawned
    | Loaded | StartFailed | Probed | ProbeFailed | Drained | Suspended | SuspendFailed | Resumed | ResumeFailed | Exited
    | Sick | Stopped | StopFailed | Evicted | RetryDue
)  # fmt: skip

# ---- effects: what is to be done ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetch:
    """Make the artifact complete on this node and pin it. Answer: Fetched or FetchFailed."""


@dataclass(frozen=True, slots=True)
class CancelFetch:
    """Nobody wants the artifact any more; no answer."""


@dataclass(frozen=True, slots=True)
class Hatch:
    """Make sure that the node's zygote for this engine is there, until LeaveZygote; replaces an earlier, unanswered one.

    Answer: Hatched or HatchFailed; later perhaps ZygoteLost.
    """


@dataclass(frozen=True, slots=True)
class LeaveZygote:
    """This instance needs the zygote no longer; an unanswered Hatch is cancelled; no answer."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Promise the memory that this rung needs, evicting if need be; withdrawn by Stop and Release.

    Answer: Reserved or ReservationRefused.
    """

    rung: Rung


@dataclass(frozen=True, slots=True)
class Release:
    """Give memory back to the ledger, all but what this rung needs; no answer."""

    keep: Rung


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start an engine process. Answer: Spawned or StartFailed; later perhaps Exited."""

    run: int


@dataclass(frozen=True, slots=True)
class WaitLoaded:
    """Answer: Loaded or StartFailed."""

    run: int


@dataclass(frozen=True, slots=True)
class Probe:
    """Answer: Probed or ProbeFailed."""

    run: int


@dataclass(frozen=True, slots=True)
class OpenDoor:
    """Let requests of this epoch in; no answer."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FenceDoor:
    """Let no new request in; no answer."""


@dataclass(frozen=True, slots=True)
class CloseDoor:
    """The engine is gone: end what is in flight with an explicit error and forget the engine; no answer."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until nothing is in flight, and at the drain limit cut off the rest. Answer: Drained."""

    epoch: int


@dataclass(frozen=True, slots=True)
class CancelDrain:
    """Stop waiting, cut nothing off; no answer."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """Answer: Suspended or SuspendFailed."""

    run: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Answer: Resumed or ResumeFailed."""

    run: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Cancel what is being waited for and end the whole group; a run that was never spawned is gone. Answer: Stopped."""

    run: int


@dataclass(frozen=True, slots=True)
class ScheduleRetry:
    """Send RetryDue at this time; replaces an earlier one; no answer."""

    at: float


@dataclass(frozen=True, slots=True)
class Forget:
    """The instance is gone: unpin the artifact and remove its records; no answer."""


Effect = (
    Fetch | CancelFetch | Hatch | LeaveZygote | Reserve | Release | Spawn | WaitLoaded | Probe | OpenDoor | FenceDoor
    | CloseDoor | Drain | CancelDrain | Suspend | Resume | Stop | ScheduleRetry | Forget
)  # fmt: skip
