"""The life of an instance: the table is complete, the stories come out, and nothing asked for is ever lost."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.instance import HAS_PROCESS, InstanceState, Rung
from standby.runtime import lifecycle_values as v
from standby.runtime.lifecycle import IGNORED, TABLE, Lifecycle, retry_delay, step
from standby.runtime.lifecycle_values import Event
from support.life import BROKEN, EVENTS, NOW, World, asleep, make, play, ready, tell

pytestmark = pytest.mark.decision

S = InstanceState
FLAG = (False, True)


@pytest.mark.parametrize(("state", "kind"), list(product(S, EVENTS)))
def test_every_pair_of_state_and_event_is_in_the_table_or_ignored_with_a_reason(state: S, kind: type[Event]) -> None:
    ignored_in, reason = IGNORED[kind]
    assert ((state, kind) in TABLE) != (state in ignored_in)
    if state in ignored_in:
        life, effects, said = step(Lifecycle(state=state, target=Rung.READY), make(kind, Lifecycle()), NOW)
        assert (life.state, effects) == (state, ())
        assert reason
        assert reason in said


@pytest.mark.parametrize("pair", TABLE, ids=lambda pair: f"{pair[0]}-{pair[1].__name__}")
def test_rules_lead_only_where_the_table_says(pair: tuple[S, type[Event]]) -> None:
    state, kind = pair
    for rung, reserving, waking, can_sleep, can_zygote in product(Rung, FLAG, FLAG, FLAG, FLAG):
        life = Lifecycle(
            state=state, target=rung, reserving=reserving, waking=waking, can_sleep=can_sleep, can_zygote=can_zygote,
            holds_zygote=can_zygote, retry_at=NOW,
        )  # fmt: skip
        if state in (S.STARTING, S.PROBING, S.WAKING) and life.wanted < Rung.ASLEEP and kind is not v.Targeted:
            continue  # a climb that nobody wants has been cut short before
        if state is S.ZYGOTE and life.wanted is not Rung.ZYGOTE and kind is not v.Targeted:
            continue  # nothing rests on a zygote that is not wanted
        after, _, reason = step(life, make(kind, life, rung), NOW)
        assert after.state in TABLE[pair].leads_to, life
        assert reason


def test_the_table_in_the_docstring_names_every_pair_of_the_table() -> None:
    from standby.runtime import lifecycle

    assert lifecycle.__doc__ is not None
    rows = [line for line in lifecycle.__doc__.splitlines() if line.split(" ", 1)[0] in set(S)]
    missing = [
        (state, kind.__name__)
        for state, kind in TABLE
        if kind is not v.Targeted and not any(row.startswith(state) and kind.__name__ in row[:42] for row in rows)
    ]
    assert missing == []


def test_a_climb_from_cold_takes_every_step_in_order() -> None:
    life, effects = play(Lifecycle(), v.Targeted(Rung.READY))
    assert effects == [
        v.Fetch(), v.Reserve(Rung.READY), v.Spawn(1), v.WaitLoaded(1), v.Probe(1), v.OpenDoor(1),
    ]  # fmt: skip
    assert (life.state, life.epoch, life.healthy_since) == (S.READY, 1, NOW)


def test_falling_asleep_drains_before_it_suspends() -> None:
    life, effects = play(ready(), v.Targeted(Rung.ASLEEP))
    assert effects == [v.FenceDoor(), v.Drain(1), v.Suspend(1), v.Release(Rung.ASLEEP)]
    assert life.state == S.ASLEEP


def test_a_wake_keeps_the_process_and_opens_the_door_under_a_new_epoch() -> None:
    life, effects = play(asleep(), v.Targeted(Rung.READY))
    assert effects == [v.Reserve(Rung.READY), v.Resume(1), v.Probe(1), v.OpenDoor(2)]
    assert (life.state, life.run) == (S.READY, 1)


def test_ready_to_staged_stops_and_releases() -> None:
    life, effects = play(ready(), v.Targeted(Rung.STAGED))
    assert effects == [v.FenceDoor(), v.Drain(1), v.CloseDoor(), v.Stop(1), v.Release(Rung.STAGED)]
    assert life.state == S.STAGED


@pytest.mark.parametrize("state", [s for s in S if s not in (S.COLD, S.GONE)])
def test_cold_is_reached_from_every_state(state: S) -> None:
    """Deleting an endpoint is accepted at any moment and cancels what is under way (field case B50)."""
    life = Lifecycle(state=state, target=Rung.READY, run=1, epoch=1, retry_at=NOW + 60 if state == S.FAILED else None)
    pending = {S.STOPPING: (v.Stopped(1),), S.SUSPENDING: (v.Suspended(1),), S.DRAINING: (v.Drained(1),)}
    life, effects = play(life, v.Targeted(Rung.COLD), *pending.get(state, ()))
    assert life.state == S.GONE
    assert effects[-1] == v.Forget()
    if state in HAS_PROCESS:
        assert v.Release(Rung.STAGED) in effects
        assert state == S.STOPPING or v.Stop(1) in effects


def test_an_instance_can_be_made_asleep_without_ever_opening_its_door() -> None:
    life, effects = play(Lifecycle(), v.Targeted(Rung.ASLEEP))
    assert life.state == S.ASLEEP
    assert not any(isinstance(effect, v.OpenDoor) for effect in effects)


def test_ready_wanted_again_while_draining_reopens_under_a_new_epoch_and_the_old_drain_is_void() -> None:
    life, effects = tell(ready(), v.Targeted(Rung.ASLEEP), v.Targeted(Rung.READY))
    assert effects[-2:] == [v.CancelDrain(), v.OpenDoor(2)]
    after, effects = tell(life, v.Drained(1))
    assert (after, effects) == (life, [])


@pytest.mark.parametrize("last", [Rung.READY, Rung.STAGED, Rung.COLD])
def test_a_target_that_changes_while_suspending_is_acted_on_afterwards(last: Rung) -> None:
    life, _ = tell(ready(), v.Targeted(Rung.ASLEEP), v.Drained(1))
    assert life.state == S.SUSPENDING
    life, _ = tell(life, v.Targeted(Rung.STAGED), v.Targeted(last))
    assert life.state == S.SUSPENDING
    life, _ = play(life, v.Suspended(1))
    assert life.state == {Rung.READY: S.READY, Rung.STAGED: S.STAGED, Rung.COLD: S.GONE}[last]


def test_ready_wanted_while_stopping_starts_again_once_the_group_is_gone() -> None:
    life, _ = tell(ready(), v.Targeted(Rung.STAGED), v.Drained(1), v.Targeted(Rung.READY))
    life, effects = tell(life, v.Stopped(1))
    assert (life.state, effects) == (S.STARTING, [v.Release(Rung.STAGED), v.Reserve(Rung.READY)])


def test_a_failed_probe_after_a_wake_starts_anew_once_and_then_backs_off() -> None:
    """A woken engine that does not generate is never offered to anybody (field case B15)."""
    life, _ = tell(asleep(), v.Targeted(Rung.READY), v.Reserved(), v.Resumed(1), v.ProbeFailed(1, BROKEN))
    assert life.state == S.STOPPING
    life, effects = tell(life, v.Stopped(1), v.Reserved(), v.Spawned(2), v.Loaded(2))
    assert v.Spawn(2) in effects
    life, effects = tell(life, v.ProbeFailed(2, BROKEN))
    assert (life.state, life.failures) == (S.FAILED, 1)
    assert effects[-1] == v.ScheduleRetry(NOW + 1)


def test_a_death_closes_the_door_sweeps_the_group_and_gives_the_memory_back() -> None:
    life, effects = tell(ready(), v.Exited(1, BROKEN))
    assert effects == [v.CloseDoor(), v.Stop(1), v.Release(Rung.STAGED), v.ScheduleRetry(NOW + 1)]
    assert life.failure is not None
    assert (life.failure.reason, life.failure.attempts, life.failure.next_retry_at) == (BROKEN.reason, 1, NOW + 1)


def test_a_death_on_the_way_down_is_no_failure() -> None:
    life, _ = tell(ready(), v.Targeted(Rung.COLD), v.Exited(1, BROKEN))
    assert (life.state, life.failures) == (S.STOPPING, 0)
    assert play(life, v.Stopped(1))[0].state == S.GONE


def test_failures_in_a_row_wait_longer_and_longer_up_to_a_minute() -> None:
    """An engine that dies at once is not started in a tight loop (field case B12)."""
    life, now, waits = play(Lifecycle(), v.Targeted(Rung.READY))[0], NOW, []
    for _ in range(9):
        life, _ = tell(life, v.Exited(life.run, BROKEN), now=now)
        assert life.retry_at is not None
        waits.append(life.retry_at - now)
        now = life.retry_at
        life, _ = play(life, v.RetryDue(), now=now)
        assert life.state == S.READY
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert retry_delay(10**6) == 60


def test_an_engine_that_was_healthy_for_a_minute_begins_counting_anew() -> None:
    life = replace(ready(), failures=5)
    assert tell(life, v.Exited(1, BROKEN), now=NOW + 59)[0].failures == 6
    assert tell(life, v.Exited(1, BROKEN), now=NOW + 60)[0].failures == 1


def test_a_new_generation_of_the_endpoint_retries_at_once() -> None:
    life, _ = tell(ready(), v.Exited(1, BROKEN))
    same, effects = tell(life, v.Targeted(Rung.READY, 0))
    assert (same.state, effects) == (S.FAILED, [])
    life, effects = tell(life, v.Targeted(Rung.READY, 1))
    assert (life.state, life.failures, effects) == (S.FETCHING, 0, [v.Fetch()])


def test_a_retry_timer_that_fires_early_is_set_again() -> None:
    life, _ = tell(ready(), v.Exited(1, BROKEN))
    early, effects = tell(life, v.RetryDue(), now=NOW + 0.999)
    assert (early.state, effects) == (S.FAILED, [v.ScheduleRetry(NOW + 1)])
    assert tell(early, v.RetryDue(), now=NOW + 1)[0].state == S.FETCHING


def test_no_memory_is_no_failure_and_is_asked_for_again() -> None:
    life, effects = tell(asleep(), v.Targeted(Rung.READY), v.ReservationRefused("12 MiB free, 300 MiB needed"))
    assert (life.state, life.failures, effects[-1]) == (S.ASLEEP, 0, v.ScheduleRetry(NOW + 1))
    assert life.failure is not None
    assert life.failure.reason == "12 MiB free, 300 MiB needed"
    assert play(life, v.RetryDue(), now=NOW + 1)[0].state == S.READY


def test_refusals_of_memory_wait_longer_and_longer_until_memory_is_freed() -> None:
    """A machine that is full for hours must not turn every waiting instance into two events a second."""
    life, now, waits = tell(Lifecycle(), v.Targeted(Rung.READY), v.Fetched())[0], NOW, []
    for _ in range(7):
        life, effects = tell(life, v.ReservationRefused("full"), now=now)
        waits += [effect.at - now for effect in effects if isinstance(effect, v.ScheduleRetry)]
        assert life.retry_at is not None
        now = life.retry_at
        asked = life
        life, _ = tell(life, v.RetryDue(), now=now)
    assert waits == [1, 2, 4, 8, 15, 15, 15]
    assert tell(asked, v.RetryDue(freed=True), now=now - 14)[0].state == S.STARTING
    failed, _ = tell(ready(), v.Exited(1, BROKEN))
    assert tell(failed, v.RetryDue(freed=True))[0].state == S.FAILED, "another kind of failure sits its back-off out"


def test_a_clock_set_back_does_not_put_a_retry_off_by_as_much() -> None:
    life, _ = tell(ready(), v.Exited(1, BROKEN))
    assert tell(life, v.RetryDue(), now=NOW - 3600)[0].state == S.FETCHING


def test_an_engine_that_does_not_end_is_a_failure_until_it_has_ended() -> None:
    stopping, _ = tell(ready(), v.Targeted(Rung.STAGED), v.Drained(1))
    life, effects = tell(stopping, v.StopFailed(1, BROKEN))
    assert (life.state, effects) == (S.FAILED, [v.Release(Rung.STAGED), v.ScheduleRetry(NOW + 1)])
    life, _ = tell(life, v.Targeted(Rung.READY), v.RetryDue(), v.Fetched(), now=NOW + 1)
    assert life.state == S.STARTING
    assert tell(life, v.StopFailed(1, BROKEN))[0].state == S.FAILED, "the next start waits for its end, and says so"
    gone, effects = tell(tell(stopping, v.Targeted(Rung.COLD))[0], v.StopFailed(1, BROKEN))
    assert (gone.state, effects) == (S.GONE, [v.Forget()])


def test_only_a_sleeper_that_nobody_wants_awake_is_evicted() -> None:
    life, effects = tell(asleep(), v.Evicted())
    assert (life.state, life.wanted, effects) == (S.STOPPING, Rung.STAGED, [v.CloseDoor(), v.Stop(1)])
    waking, _ = tell(asleep(), v.Targeted(Rung.READY))
    assert tell(waking, v.Evicted()) == (waking, [])
    refused, _ = tell(waking, v.ReservationRefused("full"))
    assert tell(refused, v.Evicted()) == (refused, [])


def test_one_grant_starts_one_engine() -> None:
    _, effects = tell(Lifecycle(), v.Targeted(Rung.READY), v.Fetched(), v.Reserved(), v.Reserved())
    assert [effect for effect in effects if isinstance(effect, v.Spawn)] == [v.Spawn(1)]


def test_news_of_an_engine_that_is_gone_is_not_taken_for_news_of_the_present_one() -> None:
    life, _ = play(ready(), v.Targeted(Rung.STAGED))
    life, _ = play(life, v.Targeted(Rung.READY))
    assert life.run == 2
    for late in (v.Exited(1, BROKEN), v.Stopped(1), v.StartFailed(1, BROKEN)):
        assert tell(life, late) == (life, [])


def test_an_engine_without_sleep_is_staged_where_asleep_is_wanted() -> None:
    life, _ = play(Lifecycle(can_sleep=False), v.Targeted(Rung.READY))
    life, effects = play(life, v.Targeted(Rung.ASLEEP))
    assert life.state == S.STAGED
    assert not any(isinstance(effect, v.Suspend) for effect in effects)


def test_a_failed_suspend_stops_and_does_not_climb_again_to_sleep() -> None:
    life, _ = tell(ready(), v.Targeted(Rung.ASLEEP), v.Drained(1), v.SuspendFailed(1, BROKEN))
    life, _ = play(life, v.Stopped(1))
    assert (life.state, life.can_sleep) == (S.STAGED, False)


OF_A_RUN = [kind for kind in EVENTS if {"run", "epoch"} & set(kind.__dataclass_fields__)]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_whatever_happens_the_last_target_is_reached_and_there_is_never_a_second_engine(data: st.DataObject) -> None:
    """The world fails at will and changes its mind; afterwards it works, and what was wanted last comes about."""
    world = World(can_zygote=data.draw(st.booleans()), can_sleep=data.draw(st.booleans()))
    for _ in range(data.draw(st.integers(1, 30))):
        world.now += data.draw(st.sampled_from([0.0, 0.5, 70.0]))
        match data.draw(st.sampled_from(["target", "answer", "fail", "exit", "sick", "lost", "retry", "evict", "stale"])):
            case "target":
                world.feed(v.Targeted(data.draw(st.sampled_from(list(Rung))), data.draw(st.integers(1, 2))))
            case "answer" | "fail" as how:
                world.answer_one(well=how == "answer")
            case "exit" if world.life.run in world.living:
                world.feed(v.Exited(world.life.run, BROKEN))
            case "sick" if world.life.run in world.living:
                world.feed(v.Sick(world.life.run, BROKEN))
            case "lost" if world.holds_zygote:
                world.feed(v.ZygoteLost("the zygote was killed"))
            case "retry":
                world.feed(v.RetryDue())
            case "evict":
                world.feed(v.Evicted())
            case "stale":
                earlier = replace(world.life, run=world.life.run - 1, epoch=world.life.epoch - 1)
                before = world.life
                world.feed(make(data.draw(st.sampled_from(OF_A_RUN)), earlier))
                assert world.life == before
    assert world.epochs == sorted(set(world.epochs))

    world.feed(v.Targeted(data.draw(st.sampled_from(list(Rung))), world.life.generation))
    for _ in range(60):
        world.now += 61
        world.feed(world.outstanding.pop(0) if world.outstanding else v.RetryDue())
    reached = {
        Rung.COLD: {S.GONE, S.COLD}, Rung.STAGED: {S.STAGED}, Rung.ZYGOTE: {S.ZYGOTE}, Rung.ASLEEP: {S.ASLEEP},
        Rung.READY: {S.READY},
    }  # fmt: skip
    assert world.life.state in reached[world.life.wanted]
