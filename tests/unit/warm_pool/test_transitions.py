"""When a step of the ladder counts as measured: the real state machine is driven, the clock is the test's."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from standby.domain.endpoint import Failure
from standby.domain.instance import InstanceState as S
from standby.domain.instance import Rung
from standby.domain.prices import Transition
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle import step
from standby.runtime.lifecycle_values import Event, Lifecycle
from standby.warm_pool.transitions import Observation, Tracker, note

pytestmark = pytest.mark.decision

T = Transition
FAILURE = Failure(reason="no")
TO_READY: tuple[tuple[Event, float], ...] = ((v.Spawned(1), 1.0), (v.Loaded(1), 2.0), (v.Probed(1), 0.5))


@dataclass
class Walk:
    """One instance's life and what was measured of it."""

    life: Lifecycle = field(default_factory=Lifecycle)
    tracker: Tracker = field(default_factory=Tracker)
    on_disk: bool = False
    zygote_ready: bool = False
    forked: bool | None = None
    now: float = 0.0
    seen: list[Observation] = field(default_factory=list)

    def feed(self, event: Event, after_s: float = 0.0) -> Walk:
        self.now += after_s
        before, self.life = self.life, step(self.life, event, self.now).life
        self.tracker, found = note(
            self.tracker,
            before,
            self.life,
            self.now,
            on_disk=self.on_disk,
            zygote_ready=self.zygote_ready,
            forked=self.forked,
        )
        self.seen += [] if found is None else [found]
        return self

    def ready(self) -> Walk:
        """Climb from nothing until ready: 3 s of fetch, 7 s of waiting for memory, 3.5 s of start."""
        self.feed(v.Targeted(Rung.READY)).feed(v.Fetched(), 3.0).feed(v.Reserved(), 7.0)
        self.on_disk = True
        for event, seconds in TO_READY:
            self.feed(event, seconds)
        assert self.life.state is S.READY
        return self

    def asleep(self) -> Walk:
        """… and fall asleep: 50 s of drain, 0.25 s of sleep."""
        self.ready().feed(v.Targeted(Rung.ASLEEP)).feed(v.Drained(1), 50.0).feed(v.Suspended(1), 0.25)
        assert self.life.state is S.ASLEEP
        self.seen.clear()
        return self


def test_fetch_and_start_are_two_steps_without_the_wait_for_memory() -> None:
    assert Walk().ready().seen == [Observation(T.FETCH, 3.0), Observation(T.START, 3.5)]


def test_what_lay_on_disk_was_not_fetched() -> None:
    assert Walk(on_disk=True).ready().seen == [Observation(T.START, 3.5)]


def test_a_sleep_is_measured_without_its_drain() -> None:
    walk = Walk().ready()
    walk.feed(v.Targeted(Rung.ASLEEP)).feed(v.Drained(1), 50.0).feed(v.Suspended(1), 0.25)
    assert walk.seen[-1] == Observation(T.SLEEP, 0.25)


def test_a_wake_is_measured_until_its_probe() -> None:
    walk = Walk().asleep()
    walk.feed(v.Targeted(Rung.READY)).feed(v.Reserved(), 9.0).feed(v.Resumed(1), 0.5).feed(v.Probed(1), 0.25)
    assert walk.seen == [Observation(T.WAKE, 0.75)]


def test_a_sleep_that_is_called_back_at_once_counts() -> None:
    walk = Walk().ready()
    walk.feed(v.Targeted(Rung.ASLEEP)).feed(v.Drained(1)).feed(v.Targeted(Rung.READY)).feed(v.Suspended(1), 0.5)
    assert walk.life.state is S.WAKING
    assert walk.seen[-1] == Observation(T.SLEEP, 0.5)


def test_an_engine_that_goes_to_sleep_right_after_its_probe_has_been_started() -> None:
    walk = Walk(on_disk=True).feed(v.Targeted(Rung.ASLEEP)).feed(v.Fetched()).feed(v.Reserved())
    for event, seconds in TO_READY:
        walk.feed(event, seconds)
    walk.feed(v.Suspended(1), 0.25)
    assert walk.seen == [Observation(T.START, 3.5), Observation(T.SLEEP, 0.25)]


def test_a_sleeper_that_is_pushed_out_or_stopped_has_a_price() -> None:
    walk = Walk().asleep().feed(v.Targeted(Rung.STAGED)).feed(v.Stopped(1), 0.5)
    assert walk.seen == [Observation(T.PUSH_OUT, 0.5)]
    walk = Walk(life=Lifecycle(can_sleep=False)).ready().feed(v.Targeted(Rung.STAGED)).feed(v.Drained(1), 9.0)
    assert walk.feed(v.Stopped(1), 0.75).seen[-1] == Observation(T.STOP, 0.75)


@pytest.mark.parametrize(
    "ending",
    [
        (v.StartFailed(1, FAILURE),),
        (v.Exited(1, FAILURE),),
        (v.Targeted(Rung.STAGED), v.Stopped(1)),
        (v.Loaded(1), v.ProbeFailed(1, FAILURE)),
        (v.Loaded(1), v.Targeted(Rung.COLD), v.Stopped(1)),
    ],
    ids=str,
)
def test_a_start_that_fails_or_is_cut_short_is_no_measurement(ending: tuple[Event, ...]) -> None:
    walk = Walk(on_disk=True).feed(v.Targeted(Rung.READY)).feed(v.Fetched()).feed(v.Reserved())
    for event in (v.Spawned(1), *ending):
        walk.feed(event, 1.0)
    assert walk.seen == []


def test_a_failed_start_does_not_lengthen_the_next_one() -> None:
    walk = Walk(on_disk=True).feed(v.Targeted(Rung.READY)).feed(v.Fetched()).feed(v.Reserved())
    walk.feed(v.StartFailed(1, FAILURE), 60.0).feed(v.RetryDue(), 5.0).feed(v.Fetched()).feed(v.Reserved())
    for event in (v.Spawned(2), v.Loaded(2), v.Probed(2)):
        walk.feed(event, 1.0)
    assert walk.seen == [Observation(T.START, 3.0)]


def test_a_failed_wake_is_no_wake_and_the_start_after_it_is_a_start() -> None:
    walk = Walk().asleep().feed(v.Targeted(Rung.READY)).feed(v.Reserved()).feed(v.ResumeFailed(1, FAILURE), 30.0)
    walk.feed(v.Stopped(1), 1.0).feed(v.Reserved())
    for event in (v.Spawned(2), v.Loaded(2), v.Probed(2)):
        walk.feed(event, 1.0)
    assert walk.seen == [Observation(T.START, 3.0)]


def test_a_failed_or_cancelled_fetch_is_no_measurement() -> None:
    assert Walk().feed(v.Targeted(Rung.READY)).feed(v.FetchFailed(FAILURE), 9.0).seen == []
    assert Walk().feed(v.Targeted(Rung.READY)).feed(v.Targeted(Rung.COLD), 9.0).seen == []


def test_a_refused_climb_is_measured_from_the_later_grant() -> None:
    walk = Walk(on_disk=True).feed(v.Targeted(Rung.READY)).feed(v.Fetched()).feed(v.ReservationRefused("full"), 1.0)
    assert walk.life.state is S.STAGED
    walk.feed(v.RetryDue(), 10.0).feed(v.Reserved(), 1.0)
    for event, seconds in TO_READY:
        walk.feed(event, seconds)
    assert walk.seen == [Observation(T.START, 3.5)]


def test_a_climb_with_a_zygote_at_hand_is_a_fork() -> None:
    """Also of an instance that rests at staged: another model's had kept the zygote."""
    assert Walk(on_disk=True, zygote_ready=True).ready().seen == [Observation(T.FORK, 3.5)]
    resting = Walk(life=Lifecycle(state=S.ZYGOTE, target=Rung.ZYGOTE, can_zygote=True), on_disk=True, zygote_ready=True)
    resting.feed(v.Targeted(Rung.READY)).feed(v.Reserved(), 4.0)
    for event, seconds in TO_READY:
        resting.feed(event, seconds)
    assert resting.seen == [Observation(T.FORK, 3.5)]


def test_a_zygote_that_hatches_during_the_climb_or_did_not_fork_makes_it_a_start() -> None:
    walk = Walk(on_disk=True).feed(v.Targeted(Rung.READY)).feed(v.Fetched()).feed(v.Reserved())
    walk.zygote_ready = walk.forked = True
    for event, seconds in TO_READY:
        walk.feed(event, seconds)
    assert walk.seen == [Observation(T.START, 3.5)]
    assert Walk(on_disk=True, zygote_ready=True, forked=False).ready().seen == [Observation(T.START, 3.5)]
