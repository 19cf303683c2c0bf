"""Decides whether an engine that runs is well. Pure: what was seen is folded into a ``History``, and judged with ``now``.

Health is progress, not HTTP 200 (field case B31). In order: what proves that nothing will come any more (nobody listens, 503
for ever, an essential process gone) is sickness at once; bytes that have just passed outrank every slow question; work
without progress is suspicion, which one probe confirms or lifts; an idle engine is asked rarely, and fails by strikes. What
was never heard of is no sickness: unknown is not dead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from standby.warm_pool.door_load import DoorLoad


class Health(Enum):
    """SUSPICIOUS: do a canary probe, and judge again with what it says."""

    HEALTHY = "healthy"
    SUSPICIOUS = "suspicious"
    SICK = "sick"


@dataclass(frozen=True, slots=True)
class Verdict:
    """``code`` names the kind of sickness, e.g. ``engine_stalled``; empty for the others."""

    health: Health
    reason: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class HealthLimits:
    """Seconds and counts.

    ``stall_s``: work without progress until suspicion; ``crunch_s``: the same while the engine, which tells no progress of
    its own, uses the processor (a long prompt on a CPU); ``probe_s``: deadline of the probe that follows. ``unavailable``
    answers with 503 in a row over ``unavailable_s``, ``errors`` broken ones over ``errors_s``, ``refused`` connections.
    An idle engine is asked every ``idle_every_s`` with the deadline ``ask_s``, and has ``strikes``.
    """

    stall_s: float = 60.0
    crunch_s: float = 180.0
    probe_s: float = 45.0
    unavailable: int = 5
    unavailable_s: float = 10.0
    errors: int = 5
    errors_s: float = 10.0
    refused: int = 2
    idle_every_s: float = 30.0
    ask_s: float = 5.0
    strikes: int = 3


# ---- what is seen; ``at`` by the loop's clock, in seconds ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DoorSeen:
    """What passes through the door."""

    at: float
    load: DoorLoad


@dataclass(frozen=True, slots=True)
class Told:
    """The engine told its load. ``progress`` grows with its work; None: it cannot say."""

    at: float
    busy: int = 0
    progress: float | None = None


@dataclass(frozen=True, slots=True)
class Silent:
    """The engine did not tell its load; ``refused``: nobody listened."""

    at: float
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Probed:
    """A probe has ended; ``failure`` is empty when it generated."""

    began: float
    at: float
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Crunched:
    """Processor seconds that the engine's processes have used in all."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class HelperEnded:
    """A process of the engine has ended; ``certain``: it was essential and broke."""

    at: float
    reason: str
    certain: bool


_NOTHING: Final = DoorLoad()
Seen = DoorSeen | Told | Silent | Probed | Crunched | HelperEnded


@dataclass(frozen=True, slots=True)
class History:
    """All that a judgement needs of what was seen since this run became ready (``since``)."""

    since: float
    load: DoorLoad = _NOTHING
    asked_at: float | None = None
    told_at: float | None = None
    engine_busy: int = 0
    counter: float | None = None
    counter_moved: float | None = None
    strikes: int = 0
    silence: str = ""
    refusals: int = 0
    processor: float | None = None
    processor_moved: float | None = None
    probe_passed: float | None = None
    probe_failed: Probed | None = None
    helper: HelperEnded | None = None

    @property
    def progress(self) -> float | None:
        """When work was last seen to move; None: never."""
        known = [at for at in (self.load.last_progress, self.counter_moved, self.probe_passed) if at is not None]
        return max(known, default=None)

    @property
    def busy(self) -> int:
        """Requests that the engine works on, or should."""
        return max(self.load.in_flight, self.engine_busy)

    @property
    def quiet_since(self) -> float:
        """Since when work has waited without progress; what came before this run was ready does not count."""
        moments = (self.since, self.progress, self.load.waiting_since)
        return max(at for at in moments if at is not None)


# Less than this many processor seconds between two looks is housekeeping.
_CRUNCH_S: Final = 0.05
_CRUNCH_FRESH_S: Final = 15.0
_PROBE_LASTS_S: Final = 10.0


def note(history: History, seen: Seen) -> History:  # noqa: PLR0911 - one for each kind
    """Return the history with what has just been seen."""
    match seen:
        case DoorSeen(load=load):
            return replace(history, load=load)
        case Told(at=at, busy=busy, progress=progress):
            moved = progress is not None and history.counter is not None and progress != history.counter
            return replace(
                history,
                asked_at=at,
                told_at=at,
                engine_busy=busy,
                counter=progress,
                counter_moved=at if moved else history.counter_moved,
                strikes=0,
                refusals=0,
            )
        case Silent(at=at, reason=reason, refused=refused):
            refusals = history.refusals + 1 if refused else 0
            return replace(history, asked_at=at, strikes=history.strikes + 1, silence=reason, refusals=refusals, engine_busy=0)
        case Probed(at=at, failure=""):
            return replace(history, probe_passed=at, probe_failed=None, strikes=0, refusals=0, helper=None)
        case Probed():
            return replace(history, probe_failed=seen)
        case Crunched(at=at, seconds=seconds):
            moved = history.processor is not None and seconds - history.processor >= _CRUNCH_S
            return replace(history, processor=seconds, processor_moved=at if moved else history.processor_moved)
        case HelperEnded():
            kept = history.helper is not None and history.helper.certain
            return history if kept else replace(history, helper=seen)


def judge(history: History, limits: HealthLimits, now: float) -> Verdict:
    """Say how the engine is."""
    return (
        _gone(history, limits)
        or _probe_failed(history, now)
        or _stalled(history, limits, now)
        or _doubtful(history, limits, now)
        or _mute(history, limits)
        or Verdict(Health.HEALTHY, _why_healthy(history, now))
    )


def ask_due(history: History, limits: HealthLimits, now: float) -> bool:
    """Return whether to ask the engine for its load: rarely while idle, not at all while bytes flow, often in between."""
    since_asked = now - (history.since if history.asked_at is None else history.asked_at)
    if not history.busy:
        # After one strike the others follow sooner: what is gone should not take minutes to be known.
        return since_asked >= (limits.idle_every_s / 3 if history.strikes else limits.idle_every_s)
    return now - history.quiet_since >= limits.stall_s / 3 and since_asked >= limits.stall_s / 6


def _gone(history: History, limits: HealthLimits) -> Verdict | None:
    load = history.load
    if history.helper is not None and history.helper.certain:
        return Verdict(Health.SICK, history.helper.reason, "engine_helper_ended")
    if max(load.refused, history.refusals) >= limits.refused:
        return Verdict(Health.SICK, "the engine's process lives but nobody accepts connections", "engine_refuses")
    over = _span(load.unavailable_since, load.unavailable_at)
    if (
        load.unavailable >= limits.unavailable
        and over >= limits.unavailable_s
        and not _probed_after(history, load.unavailable_at)
    ):
        words = f"the engine answered {load.unavailable} requests in a row with 503, for {over:.0f} s"
        return Verdict(Health.SICK, words, "engine_unavailable")
    return None


def _probe_failed(history: History, now: float) -> Verdict | None:
    failed, progress = history.probe_failed, history.progress
    if failed is None or (progress is not None and progress >= failed.began):
        return None  # bytes that passed meanwhile outrank a slow probe
    quiet = now - history.quiet_since
    doing = f"with {history.busy} requests in flight nothing has moved for {quiet:.0f} s" if history.busy else "it is idle"
    return Verdict(Health.SICK, f"the engine does not generate: {failed.failure}; {doing}", "engine_stalled")


def _stalled(history: History, limits: HealthLimits, now: float) -> Verdict | None:
    unanswered = history.load.waiting_since
    given_up = unanswered is not None and (history.progress is None or unanswered > history.progress)
    if not history.busy and not given_up:
        return None
    quiet = now - history.quiet_since
    moved = history.processor_moved
    crunches = history.counter is None and moved is not None and now - moved <= _CRUNCH_FRESH_S
    if quiet < (limits.crunch_s if crunches else limits.stall_s):
        return None
    what = f"{history.busy} requests in flight" if history.busy else "requests that were given up"
    return Verdict(Health.SUSPICIOUS, f"no byte of an answer for {quiet:.0f} s, with {what}")


def _doubtful(history: History, limits: HealthLimits, now: float) -> Verdict | None:
    load = history.load
    if history.helper is not None:
        return Verdict(Health.SUSPICIOUS, history.helper.reason)
    # Few callers make few such answers: a probe says at once whether it is the engine or their requests.
    refuses = load.unavailable_since is not None and now - load.unavailable_since >= limits.unavailable_s
    if refuses and not _probed_after(history, load.unavailable_at):
        return Verdict(Health.SUSPICIOUS, f"{load.unavailable} answers with 503 in a row")
    breaks = load.errors >= limits.errors and _span(load.errors_since, load.errors_at) >= limits.errors_s
    if breaks and not _probed_after(history, load.errors_at):
        return Verdict(Health.SUSPICIOUS, f"{load.errors} broken answers in a row")
    return None


def _span(first: float | None, last: float | None) -> float:
    return 0.0 if first is None or last is None else last - first


def _probed_after(history: History, moment: float | None) -> bool:
    """Return whether a good probe is younger, or hardly older: else bad requests would mean a probe every second."""
    passed = history.probe_passed
    return passed is not None and moment is not None and passed > moment - _PROBE_LASTS_S


def _mute(history: History, limits: HealthLimits) -> Verdict | None:
    if history.busy or history.strikes < limits.strikes:
        return None
    last = history.asked_at
    if last is not None and history.progress is not None and history.progress > last:
        return None
    words = f"the idle engine did not answer {history.strikes} questions in a row: {history.silence}"
    return Verdict(Health.SICK, words, "engine_mute")


def _why_healthy(history: History, now: float) -> str:
    progress = history.progress
    if progress is not None:
        return f"progress {max(0.0, now - progress):.0f} s ago"
    return "idle" if history.told_at is not None else "nothing is known yet"
