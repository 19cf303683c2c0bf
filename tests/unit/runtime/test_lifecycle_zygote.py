"""The rung between bytes and a process: a zygote that the node shares, asked for, rested on, lost and let go."""

from __future__ import annotations

from dataclasses import replace

import pytest

from standby.domain.endpoint import NO_ZYGOTE
from standby.domain.instance import InstanceState, Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle import Lifecycle, step
from support.life import BROKEN, NOW, play, ready, resting, tell

pytestmark = pytest.mark.decision

S = InstanceState


def lost(seconds: float = 0.0) -> tuple[v.ZygoteLost, float]:
    return v.ZygoteLost("the zygote was killed"), NOW + seconds


def hatchling(**fields: object) -> Lifecycle:
    """A life of an engine that has a zygote, cold."""
    return replace(Lifecycle(can_zygote=True), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("target", "can_zygote", "can_sleep", "wanted"),
    [
        (Rung.ASLEEP, True, True, Rung.ASLEEP),
        (Rung.ASLEEP, True, False, Rung.ZYGOTE),
        (Rung.ASLEEP, False, False, Rung.STAGED),
        (Rung.ZYGOTE, True, False, Rung.ZYGOTE),
        (Rung.ZYGOTE, False, True, Rung.STAGED),
        (Rung.READY, False, False, Rung.READY),
        (Rung.STAGED, True, True, Rung.STAGED),
        (Rung.COLD, True, True, Rung.COLD),
    ],
)
def test_a_rung_that_the_engine_does_not_have_means_the_next_lower_one(
    target: Rung, can_zygote: bool, can_sleep: bool, wanted: Rung
) -> None:
    assert Lifecycle(target=target, can_zygote=can_zygote, can_sleep=can_sleep).wanted is wanted


def test_from_cold_to_the_zygote_rung_imports_run_beside_the_download() -> None:
    life, effects = tell(hatchling(), v.Targeted(Rung.ZYGOTE))
    assert (life.state, effects) == (S.FETCHING, [v.Fetch(), v.Hatch()])
    life, effects = tell(life, v.Hatched())
    assert (life.state, effects) == (S.FETCHING, []), "the bytes are not there yet"
    life, effects = tell(life, v.Fetched())
    assert (life.state, effects) == (S.STAGED, [v.Hatch()]), "asked again, as the first answer came too early"
    life, effects = tell(life, v.Hatched())
    assert (life.state, effects) == (S.ZYGOTE, [])


def test_a_climb_asks_for_the_zygote_and_waits_for_no_answer() -> None:
    life, effects = tell(hatchling(), v.Targeted(Rung.READY), v.Fetched())
    assert (life.state, effects) == (S.STARTING, [v.Fetch(), v.Hatch(), v.Hatch(), v.Reserve(Rung.READY)])
    assert tell(life, v.HatchFailed(BROKEN)) == (life, [])
    assert tell(life, v.Hatched()) == (life, [])


def test_only_staged_is_wanted_so_no_zygote_is_asked_for() -> None:
    life, effects = play(hatchling(), v.Targeted(Rung.STAGED))
    assert (life.state, effects) == (S.STAGED, [v.Fetch()])


def test_an_engine_without_a_zygote_never_asks_for_one() -> None:
    life = Lifecycle()
    for rung in (Rung.ZYGOTE, Rung.READY, Rung.ASLEEP, Rung.ZYGOTE, Rung.STAGED, Rung.COLD):
        life, effects = play(life, v.Targeted(rung))
        assert not [effect for effect in effects if isinstance(effect, v.Hatch | v.LeaveZygote)]
        assert life.state is not S.ZYGOTE


def test_up_from_the_zygote_is_a_start() -> None:
    zygote = resting(Rung.ZYGOTE, can_zygote=True)
    assert zygote.state is S.ZYGOTE
    life, effects = play(zygote, v.Targeted(Rung.READY))
    assert effects == [v.Reserve(Rung.READY), v.Spawn(2), v.WaitLoaded(2), v.Probe(2), v.OpenDoor(2)]
    assert life.state is S.READY


def test_a_sleeper_is_made_from_the_zygote_without_opening_its_door() -> None:
    life, effects = play(resting(Rung.ZYGOTE, can_zygote=True), v.Targeted(Rung.ASLEEP))
    assert life.state is S.ASLEEP
    assert not [effect for effect in effects if isinstance(effect, v.OpenDoor)]


def test_down_from_ready_to_the_zygote_ends_the_process_and_keeps_the_zygote() -> None:
    life, effects = play(resting(Rung.READY, can_zygote=True), v.Targeted(Rung.ZYGOTE))
    assert effects == [v.FenceDoor(), v.Drain(1), v.CloseDoor(), v.Stop(1), v.Release(Rung.STAGED), v.Hatch()]
    assert life.state is S.ZYGOTE


def test_the_zygote_is_let_go_once_where_only_bytes_are_wanted() -> None:
    life, effects = play(resting(Rung.ZYGOTE, can_zygote=True), v.Targeted(Rung.STAGED))
    assert (life.state, effects) == (S.STAGED, [v.LeaveZygote()])
    assert tell(life, v.Targeted(Rung.STAGED)) == (life, [])
    life, effects = play(resting(Rung.ASLEEP, can_zygote=True), v.Targeted(Rung.STAGED))
    assert (life.state, effects[-2:]) == (S.STAGED, [v.Release(Rung.STAGED), v.LeaveZygote()])


@pytest.mark.parametrize("rung", [Rung.ZYGOTE, Rung.ASLEEP, Rung.READY])
def test_what_goes_for_good_lets_the_zygote_go_first(rung: Rung) -> None:
    life, effects = play(resting(rung, can_zygote=True), v.Targeted(Rung.COLD))
    assert (life.state, life.holds_zygote) == (S.GONE, False)
    assert effects[-2:] == [v.LeaveZygote(), v.Forget()]


def test_a_fetch_that_is_called_off_lets_the_zygote_go() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.READY))
    _, effects = tell(life, v.Targeted(Rung.COLD))
    assert effects == [v.CancelFetch(), v.LeaveZygote(), v.Forget()]


@pytest.mark.parametrize("rung", [Rung.ASLEEP, Rung.READY])
def test_what_has_its_own_process_keeps_the_zygote_for_its_next_start(rung: Rung) -> None:
    assert resting(rung, can_zygote=True).holds_zygote


def test_no_zygote_is_no_failed_instance_and_is_tried_again_later_and_later() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.ZYGOTE), v.Fetched())
    now, waits = NOW, []
    for _ in range(8):
        life, effects = tell(life, v.HatchFailed(BROKEN), now=now)
        assert life.state is S.STAGED
        assert life.retry_at is not None
        assert effects == [v.ScheduleRetry(life.retry_at)]
        waits.append(life.retry_at - now)
        now = life.retry_at
        life, effects = tell(life, v.RetryDue(), now=now)
        assert effects == [v.Hatch()]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert life.failures == 0
    assert life.failure is not None
    assert (life.failure.code, life.failure.reason, life.failure.attempts) == (NO_ZYGOTE, BROKEN.reason, 8)


def test_without_a_zygote_it_climbs_all_the_same() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.ZYGOTE), v.Fetched(), v.HatchFailed(BROKEN))
    life, _ = play(life, v.Targeted(Rung.READY))
    assert (life.state, life.failure) == (S.READY, None)


def test_memory_that_frees_up_does_not_end_the_wait_for_a_zygote() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.ZYGOTE), v.Fetched(), v.HatchFailed(BROKEN))
    _, effects = tell(life, v.RetryDue(freed=True))
    assert effects == [v.ScheduleRetry(NOW + 1)]


def test_giving_the_zygote_up_ends_its_retries() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.ZYGOTE), v.Fetched(), v.HatchFailed(BROKEN))
    life, effects = tell(life, v.Targeted(Rung.STAGED))
    assert (life.retry_at, effects) == (None, [v.LeaveZygote()])
    assert tell(life, v.RetryDue(), now=NOW + 1) == (life, [])
    assert tell(life, v.Hatched()) == (life, []), "an answer that came too late moves nothing"


def test_a_zygote_that_dies_is_hatched_again_at_once() -> None:
    life = resting(Rung.ZYGOTE, can_zygote=True)
    after, effects, reason = step(life, *lost())
    assert (after.state, effects) == (S.STAGED, (v.Hatch(),))
    assert "killed" in reason
    assert tell(after, v.Hatched())[0].state is S.ZYGOTE


def test_zygotes_that_die_soon_are_not_hatched_in_a_tight_loop() -> None:
    """A zygote that is ready and dies, again and again, must not load the machine with imports (field case B12)."""
    life, waits, now = resting(Rung.ZYGOTE, can_zygote=True), [], NOW
    for _ in range(4):
        life, effects, _ = step(life, v.ZygoteLost("the zygote was killed"), now)
        assert life.state is S.STAGED
        waits.append(0.0 if effects == (v.Hatch(),) else (life.retry_at or 0.0) - now)
        now += waits[-1]
        life, _ = play(life, v.RetryDue(), v.Hatched(), now=now)
        assert life.state is S.ZYGOTE
    assert waits == [0, 2, 4, 8]
    _, effects, _ = step(life, v.ZygoteLost("the zygote was killed"), now + 60)
    assert effects == (v.Hatch(),), "the last one has lasted"


@pytest.mark.parametrize("rung", [Rung.READY, Rung.ASLEEP])
def test_an_engine_of_its_own_does_not_mind_the_zygotes_end(rung: Rung) -> None:
    life = resting(rung, can_zygote=True)
    assert tell(life, lost()[0]) == (life, [])


def test_an_engine_that_cannot_sleep_rests_on_the_zygote_where_asleep_is_wanted() -> None:
    life, effects = play(resting(Rung.READY, can_zygote=True, can_sleep=False), v.Targeted(Rung.ASLEEP))
    assert life.state is S.ZYGOTE
    assert not [effect for effect in effects if isinstance(effect, v.Suspend)]
    life, _ = tell(resting(Rung.READY, can_zygote=True), v.Targeted(Rung.ASLEEP), v.Drained(1), v.SuspendFailed(1, BROKEN))
    assert play(life, v.Stopped(1))[0].state is S.ZYGOTE


def test_an_evicted_sleeper_keeps_the_zygote() -> None:
    life, _ = play(resting(Rung.ASLEEP, can_zygote=True), v.Evicted())
    assert (life.state, life.run) == (S.ZYGOTE, 1)


def test_a_climb_is_cut_short_where_the_zygote_is_enough() -> None:
    life, _ = tell(hatchling(), v.Targeted(Rung.READY), v.Fetched(), v.Reserved(), v.Spawned(1))
    life, effects = play(life, v.Targeted(Rung.ZYGOTE))
    assert (life.state, effects) == (S.ZYGOTE, [v.CloseDoor(), v.Stop(1), v.Release(Rung.STAGED), v.Hatch()])


def test_a_death_on_the_way_down_to_the_zygote_is_no_failure() -> None:
    life, _ = tell(resting(Rung.READY, can_zygote=True), v.Targeted(Rung.ZYGOTE), v.Exited(1, BROKEN))
    assert (life.state, life.failures) == (S.STOPPING, 0)
    assert play(life, v.Stopped(1))[0].state is S.ZYGOTE


# ---- engines that live and serve nobody ----------------------------------------------------------------------------


def climbing(*events: v.Event) -> Lifecycle:
    return tell(Lifecycle(), v.Targeted(Rung.READY), v.Fetched(), v.Reserved(), *events)[0]


@pytest.mark.parametrize(
    "life",
    [
        climbing(v.Spawned(1)),
        climbing(v.Spawned(1), v.Loaded(1)),
        ready(),
        resting(Rung.ASLEEP),
        tell(resting(Rung.ASLEEP), v.Targeted(Rung.READY), v.Reserved())[0],
    ],
    ids=lambda life: life.state.value,
)
def test_an_engine_that_serves_nobody_is_ended_like_one_that_died(life: Lifecycle) -> None:
    """Health answers, nothing is generated, and it will not heal by itself: table F of the engines' faults."""
    life, _ = tell(life, v.Targeted(Rung.ASLEEP if life.state is S.ASLEEP else Rung.READY))
    after, effects = tell(life, v.Sick(1, BROKEN))
    assert effects == [v.CloseDoor(), v.Stop(1), v.Release(Rung.STAGED), v.ScheduleRetry(NOW + 1)]
    assert (after.state, after.failures) == (S.FAILED, 1)
    assert play(after, v.RetryDue(), now=NOW + 1)[0].run == 2


def test_one_that_sickens_on_its_way_down_is_only_ended() -> None:
    life, _ = tell(ready(), v.Targeted(Rung.STAGED))
    assert life.state is S.DRAINING
    after, effects = tell(life, v.Sick(1, BROKEN))
    assert (after.state, after.failures, effects) == (S.STOPPING, 0, [v.CloseDoor(), v.Stop(1)])


def test_bad_news_of_the_run_before_does_not_hurt_the_next_one() -> None:
    life, _ = play(ready(), v.Targeted(Rung.STAGED))
    life, _ = tell(life, v.Targeted(Rung.READY))
    assert (life.state, life.run, life.reserving) == (S.STARTING, 1, True)
    assert tell(life, v.Sick(1, BROKEN)) == (life, [])
