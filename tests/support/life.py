"""The life of an instance played through: a world that answers every effect, and one that fails and is checked."""

from __future__ import annotations

from typing import get_args

from standby.domain.endpoint import Failure
from standby.domain.instance import HAS_PROCESS, InstanceState, Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle import Lifecycle, step
from standby.runtime.lifecycle_values import Effect, Event

EVENTS: tuple[type[Event], ...] = get_args(Event)
BROKEN = Failure(reason="engine ended: exit code 1")
NOW = 1000.0


def make(kind: type[Event], life: Lifecycle, rung: Rung = Rung.READY) -> Event:
    """An event of this kind that belongs to the present run and epoch."""
    if kind is v.Targeted:
        return v.Targeted(rung, life.generation)
    if kind is v.ReservationRefused:
        return v.ReservationRefused("no memory")
    if kind is v.Drained:
        return v.Drained(life.epoch)
    if kind is v.RetryDue:
        return v.RetryDue()
    if kind is v.ZygoteLost:
        return v.ZygoteLost("the zygote was killed")
    fields = {"run": life.run, "failure": BROKEN}
    return kind(**{name: fields[name] for name in kind.__dataclass_fields__})  # type: ignore[arg-type]


def tell(life: Lifecycle, *events: Event, now: float = NOW) -> tuple[Lifecycle, list[Effect]]:
    """Feed events one after the other; return the life and every effect."""
    effects: list[Effect] = []
    for event in events:
        life, more, _ = step(life, event, now)
        effects += more
    return life, effects


ANSWERS: dict[type[Effect], type[Event]] = {
    v.Fetch: v.Fetched, v.Reserve: v.Reserved, v.Spawn: v.Spawned, v.WaitLoaded: v.Loaded, v.Probe: v.Probed,
    v.Drain: v.Drained, v.Suspend: v.Suspended, v.Resume: v.Resumed, v.Stop: v.Stopped, v.Hatch: v.Hatched,
}  # fmt: skip


def answer(effect: Effect) -> Event | None:
    """What a world in which everything works answers."""
    kind = ANSWERS.get(type(effect))
    names = kind.__dataclass_fields__ if kind else ()
    return kind(**{name: getattr(effect, name) for name in names}) if kind else None


def play(life: Lifecycle, *events: Event, now: float = NOW) -> tuple[Lifecycle, list[Effect]]:
    """Feed events and every answer of a working world until nothing is left to do."""
    waiting = list(events)
    seen: list[Effect] = []
    while waiting:
        life, effects, _ = step(life, waiting.pop(0), now)
        seen += effects
        waiting += [reply for effect in effects if (reply := answer(effect)) is not None]
    return life, seen


def resting(rung: Rung, *, can_zygote: bool = False, can_sleep: bool = True) -> Lifecycle:
    """Return a life that a working world brought from cold to this rung, by way of ready where it lies below."""
    life, _ = play(Lifecycle(can_zygote=can_zygote, can_sleep=can_sleep), v.Targeted(Rung.READY))
    return life if rung is Rung.READY else play(life, v.Targeted(rung))[0]


def ready() -> Lifecycle:
    """Return a life that serves, of an engine without a zygote."""
    return resting(Rung.READY)


def asleep() -> Lifecycle:
    """Return a life that sleeps, of an engine without a zygote."""
    return resting(Rung.ASLEEP)


FAILURES: dict[type[Event], type[Event]] = {
    v.Fetched: v.FetchFailed, v.Loaded: v.StartFailed, v.Probed: v.ProbeFailed, v.Spawned: v.StartFailed,
    v.Suspended: v.SuspendFailed, v.Resumed: v.ResumeFailed, v.Reserved: v.ReservationRefused,
    v.Hatched: v.HatchFailed,
}  # fmt: skip


class World:
    """Carries effects out in name only, checks what must always hold, and keeps the answers that are still to come."""

    def __init__(self, *, can_zygote: bool = False, can_sleep: bool = True) -> None:
        self.life, self.now = Lifecycle(can_zygote=can_zygote, can_sleep=can_sleep), NOW
        self.outstanding: list[Event] = []
        self.epochs: list[int] = []
        self.living: set[int] = set()
        self.holds_zygote = False

    def feed(self, event: Event) -> None:
        """Let an event happen and carry out what follows."""
        self.life, effects, _ = step(self.life, event, self.now)
        for effect in effects:
            self.carry_out(effect)
            if (reply := answer(effect)) is not None:
                self.outstanding.append(reply)
        self.check()

    def check(self) -> None:
        """Assert what holds between any two events."""
        assert (self.life.state in HAS_PROCESS) or not self.living, "an engine that no state knows of"
        assert self.life.holds_zygote == self.holds_zygote
        if self.life.state is InstanceState.GONE or (
            self.life.state is InstanceState.STAGED and self.life.wanted is Rung.STAGED
        ):
            assert not self.holds_zygote, "a zygote kept for nobody"
        if self.life.state is InstanceState.ZYGOTE:
            assert self.holds_zygote
            assert self.life.wanted is Rung.ZYGOTE

    def carry_out(self, effect: Effect) -> None:
        """Do in name only what the effect orders."""
        match effect:
            case v.Hatch():
                assert self.life.can_zygote
                self.holds_zygote = True
                self.drop(v.Hatched)
            case v.LeaveZygote():
                assert self.holds_zygote, "left what was never held"
                self.holds_zygote = False
                self.drop(v.Hatched)
            case v.OpenDoor(epoch=epoch):
                self.epochs.append(epoch)
                assert self.life.run in self.living
            case v.Spawn(run=run):
                assert not self.living, "two engines of one instance"
                self.living.add(run)
            case v.Stop(run=run):
                self.living.discard(run)
                self.outstanding = [event for event in self.outstanding if isinstance(event, v.Fetched | v.Hatched)]
            case v.CancelDrain():
                self.drop(v.Drained)
            case v.CancelFetch():
                self.drop(v.Fetched)
            case v.Suspend(run=run) | v.Resume(run=run) | v.Probe(run=run) | v.WaitLoaded(run=run):
                assert run in self.living, "an effect for an engine that is not there"
            case v.Forget():
                assert not self.living

    def drop(self, kind: type[Event]) -> None:
        """An effect took back what this event would have answered."""
        self.outstanding = [event for event in self.outstanding if not isinstance(event, kind)]

    def answer_one(self, *, well: bool) -> None:
        """Give the oldest answer that is still owed, good or bad."""
        if not self.outstanding:
            return
        event = self.outstanding.pop(0)
        bad = None if well else FAILURES.get(type(event))
        self.feed(make(bad, self.life) if bad else event)
