"""Who is judged well, suspicious or sick, from what was seen (field cases B31 and B32). No process and no clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standby.warm_pool.door_load import DoorLoad, Pulse
from standby.warm_pool.health import (
    Crunched,
    DoorSeen,
    Health,
    HealthLimits,
    HelperEnded,
    History,
    Probed,
    Seen,
    Silent,
    Told,
    Verdict,
    ask_due,
    judge,
    note,
)

pytestmark = pytest.mark.decision

LIMITS = HealthLimits()


def door(at: float = 0.0, **values: Any) -> DoorSeen:
    return DoorSeen(at, DoorLoad(**values))


def judged(now: float, *seen: Seen, since: float = 0.0) -> Verdict:
    history = History(since=since)
    for one in seen:
        history = note(history, one)
    return judge(history, LIMITS, now)


def test_nothing_known_is_not_sick() -> None:
    assert judged(10_000.0) == Verdict(Health.HEALTHY, "nothing is known yet")


def test_work_without_progress_is_suspected_and_a_failed_probe_makes_it_sick() -> None:
    stalled = door(in_flight=3, waiting_since=100.0)
    assert judged(159.0, stalled).health is Health.HEALTHY
    assert judged(160.0, stalled) == Verdict(Health.SUSPICIOUS, "no byte of an answer for 60 s, with 3 requests in flight")
    verdict = judged(205.0, stalled, Probed(160.0, 205.0, "no token within 45 s"))
    assert (verdict.health, verdict.code) == (Health.SICK, "engine_stalled")
    assert verdict.reason == (
        "the engine does not generate: no token within 45 s; with 3 requests in flight nothing has moved for 105 s"
    )


def test_a_good_probe_lifts_the_suspicion_for_as_long_again() -> None:
    seen = (door(in_flight=1, waiting_since=100.0), Probed(160.0, 161.0))
    assert judged(200.0, *seen).health is Health.HEALTHY
    assert judged(221.0, *seen).health is Health.SUSPICIOUS


def test_bytes_that_passed_meanwhile_outrank_a_failed_probe() -> None:
    busy = door(in_flight=200, waiting_since=170.0, last_progress=170.0)
    assert judged(206.0, busy, Probed(160.0, 205.0, "no token within 45 s")).health is Health.HEALTHY
    assert judged(206.0, busy, *[Silent(200.0 + n, "slow") for n in range(5)]).health is Health.HEALTHY


def test_progress_that_only_the_engine_sees_counts() -> None:
    """A long prompt: no byte passes, but the engine counts tokens."""
    stalled = door(in_flight=1, waiting_since=0.0)
    assert judged(90.0, stalled, Told(30.0, 1, 10.0), Told(80.0, 1, 900.0)).health is Health.HEALTHY
    assert judged(90.0, stalled, Told(30.0, 1, 10.0), Told(80.0, 1, 10.0)).health is Health.SUSPICIOUS


def test_an_engine_that_cannot_tell_progress_but_computes_has_more_time() -> None:
    stalled = door(in_flight=1, waiting_since=0.0)
    crunching = (Crunched(80.0, 10.0), Crunched(90.0, 19.0))
    assert judged(91.0, stalled, *crunching).health is Health.HEALTHY
    assert judged(91.0, stalled, Crunched(80.0, 10.0), Crunched(90.0, 10.01)).health is Health.SUSPICIOUS
    assert judged(185.0, stalled, Crunched(170.0, 10.0), Crunched(180.0, 19.0)).health is Health.SUSPICIOUS


def test_requests_that_were_given_up_unanswered_are_suspicious_once() -> None:
    """Callers whose patience is shorter than the limit must not hide a stalled engine."""
    given_up = door(in_flight=0, waiting_since=100.0)
    assert judged(161.0, given_up).health is Health.SUSPICIOUS
    assert judged(500.0, given_up, Probed(161.0, 162.0)).health is Health.HEALTHY


@pytest.mark.parametrize(
    ("count", "last", "health"),
    [
        (5, 110.0, Health.SICK),
        (50, 110.0, Health.SICK),
        (4, 110.0, Health.SUSPICIOUS),
        (9, 100.5, Health.SUSPICIOUS),
    ],
)
def test_answers_with_503_in_a_row(count: int, last: float, health: Health) -> None:
    """A burst is no proof; a few are worth a probe."""
    seen = door(unavailable=count, unavailable_since=100.0, unavailable_at=last)
    assert judged(111.0, seen).health is health
    assert judged(111.0, seen, Probed(109.0, 110.5)).health is Health.HEALTHY


def test_refused_connections_are_proof_and_slow_ones_are_not() -> None:
    assert judged(1.0, door(refused=1)).health is Health.HEALTHY
    verdict = judged(1.0, door(refused=2))
    assert (verdict.health, verdict.code) == (Health.SICK, "engine_refuses")
    assert judged(9.0, Silent(1.0, "refused", refused=True), Silent(2.0, "refused", refused=True)).code == "engine_refuses"
    assert judged(9.0, Silent(1.0, "timed out"), Silent(2.0, "timed out")).health is Health.HEALTHY
    assert judged(9.0, Silent(1.0, "refused", refused=True), Told(2.0), Silent(3.0, "refused", refused=True)).code == ""


def test_an_idle_engine_has_three_strikes() -> None:
    strikes = [Silent(30.0 * n, "timed out") for n in range(1, 4)]
    assert judged(61.0, *strikes[:2]).health is Health.HEALTHY
    verdict = judged(91.0, *strikes)
    assert verdict == Verdict(Health.SICK, "the idle engine did not answer 3 questions in a row: timed out", "engine_mute")
    assert judged(91.0, *strikes[:2], Told(80.0), strikes[2]).health is Health.HEALTHY
    assert judged(91.0, *strikes, door(in_flight=1, waiting_since=90.5)).health is Health.HEALTHY
    assert judged(95.0, *strikes, door(last_progress=94.0)).health is Health.HEALTHY


def test_broken_answers_in_a_row_are_the_engines_or_the_requests_and_a_probe_tells() -> None:
    seen = door(errors=5, errors_since=100.0, errors_at=115.0)
    assert judged(115.0, seen) == Verdict(Health.SUSPICIOUS, "5 broken answers in a row")
    assert judged(117.0, seen, Probed(115.0, 116.0)).health is Health.HEALTHY
    assert judged(120.0, seen, Probed(115.0, 118.0, "500")).health is Health.SICK
    assert judged(115.0, door(errors=5, errors_since=114.0, errors_at=115.0)).health is Health.HEALTHY


def test_the_end_of_an_essential_process_is_proof_and_of_a_doubtful_one_a_reason_to_probe() -> None:
    moving = door(in_flight=1, last_progress=99.9)
    assert judged(100.0, moving, HelperEnded(99.0, "its process 7 has ended", certain=True)).code == "engine_helper_ended"
    doubt = HelperEnded(99.0, "its process 7 has ended", certain=False)
    assert judged(100.0, moving, doubt).health is Health.SUSPICIOUS
    assert judged(101.0, moving, doubt, Probed(100.0, 100.5)).health is Health.HEALTHY
    certain = HelperEnded(98.0, "its process 6 has ended", certain=True)
    assert judged(101.0, certain, doubt).health is Health.SICK


def test_what_was_before_a_wake_does_not_count() -> None:
    old = door(in_flight=1, waiting_since=10.0, last_progress=5.0)
    assert judged(1030.0, old, since=1000.0).health is Health.HEALTHY
    assert judged(1060.0, old, since=1000.0).health is Health.SUSPICIOUS


def test_when_an_engine_is_asked() -> None:
    idle = History(since=0.0)
    assert [ask_due(idle, LIMITS, now) for now in (29.0, 30.0)] == [False, True]
    struck = note(idle, Silent(30.0, "slow"))
    assert [ask_due(struck, LIMITS, now) for now in (39.0, 40.0)] == [False, True]
    flowing = note(idle, door(in_flight=5, last_progress=99.0, waiting_since=99.0))
    assert not ask_due(flowing, LIMITS, 100.0)
    quiet = note(note(idle, door(in_flight=5, waiting_since=100.0)), Told(115.0, 5, 1.0))
    assert [ask_due(quiet, LIMITS, now) for now in (119.0, 124.0, 125.0)] == [False, False, True]


@given(st.lists(st.tuples(st.floats(0, 5), st.sampled_from(["byte", "silent", "probe", "told"])), max_size=60))
def test_an_engine_whose_bytes_flow_is_never_sick(steps: list[tuple[float, str]]) -> None:
    """Whatever questions it is too slow for."""
    history, now = History(since=0.0), 0.0
    for pause, kind in steps:
        began, now = now, now + pause
        seen: dict[str, Seen] = {
            "silent": Silent(now, "slow"), "probe": Probed(began, now, "slow"), "told": Told(now, 4), "byte": Told(now, 4),
        }  # fmt: skip
        history = note(history, seen[kind])
        history = note(history, door(now, in_flight=200, last_progress=now, waiting_since=now))
        assert judge(history, LIMITS, now + 1.0).health is Health.HEALTHY


def test_the_pulse_of_a_door() -> None:
    pulse = Pulse()
    pulse.asked(1.0)
    pulse.asked(2.0)
    assert pulse.waiting_since == 1.0
    for at in (3.0, 4.0):
        pulse.answered(at, 503, busy=False)
    pulse.answered(5.0, 500, busy=False)
    pulse.refused_connection()
    assert (pulse.unavailable, pulse.unavailable_since, pulse.unavailable_at) == (2, 3.0, 4.0)
    assert (pulse.errors, pulse.refused, pulse.last_progress, pulse.waiting_since) == (1, 1, None, 1.0)
    pulse.answered(6.0, 404, busy=True)
    assert (pulse.unavailable, pulse.errors, pulse.refused, pulse.last_progress) == (0, 0, 0, 6.0)
    assert (pulse.unavailable_since, pulse.errors_since, pulse.waiting_since) == (None, None, 6.0)
    pulse.moved(7.0, busy=False)
    assert pulse.waiting_since is None
