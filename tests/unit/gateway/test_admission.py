"""May a request wait, and when should it come again: pure."""

from __future__ import annotations

import pytest

from standby.domain.endpoint import ScalePolicy
from standby.domain.priority import Priority
from standby.domain.traffic import DEFAULT_WEIGHTS
from standby.gateway.admission import Bounds, Flow, Room, Verdict, may_wait, place_of
from standby.gateway.queue_depth import Depth

pytestmark = pytest.mark.decision

NOBODY = dict.fromkeys(Priority, 0)
ROOM = Room(requests=10, body_bytes=1000, all_bytes=1000, all_bytes_limit=10**6)
PATIENT = Bounds(limit_s=50.0)


def test_the_place_counts_those_who_have_their_turns_first() -> None:
    waiting = {**NOBODY, Priority.HIGH: 12, Priority.BATCH: 12}
    assert place_of(NOBODY, Priority.NORMAL, DEFAULT_WEIGHTS) == 1.0
    assert place_of(waiting, Priority.HIGH, DEFAULT_WEIGHTS) == pytest.approx(13 + 13 * 0.5 / 3)
    assert place_of(waiting, Priority.URGENT, DEFAULT_WEIGHTS) == pytest.approx(1 + 3 / 5 + 0.5 / 5)
    assert place_of(waiting, Priority.NORMAL, DEFAULT_WEIGHTS) == 1 + 3 + 0.5
    assert place_of({**NOBODY, Priority.HIGH: 2}, Priority.BATCH, DEFAULT_WEIGHTS) == 3.0, "there are no more of them"


def test_a_predicted_wait_beyond_the_limit_is_told_at_once_with_the_difference() -> None:
    """Twenty places of 3 s each are a minute; fifty seconds is how long it may be."""
    admission = may_wait(ScalePolicy(), ROOM, 1, Flow(20.0, gap_s=3.0), PATIENT)
    assert admission.verdict is Verdict.OVERLOADED
    assert admission.reason == "it would wait about 60 s, the limit is 50 s"
    assert admission.retry_after_s == pytest.approx(10.0)
    assert may_wait(ScalePolicy(), ROOM, 1, Flow(20.0, gap_s=2.5), PATIENT).verdict is Verdict.WAIT


def test_a_latency_target_is_kept_for_all_but_the_share_that_may_miss_it() -> None:
    """Nine places of 0.1 s are 0.9 s on average, but 1.6 s for one of a hundred."""
    bounds = Bounds(limit_s=50.0, target_s=1.5, slo_violations=0.01)
    admission = may_wait(ScalePolicy(), ROOM, 1, Flow(9.0, gap_s=0.1), bounds)
    assert admission.verdict is Verdict.OVERLOADED
    assert admission.reason == "it would wait up to 1.6 s for 0.99 of such requests, the latency target leaves 1.5 s"
    assert admission.retry_after_s == pytest.approx(0.9 + 2.3263 * 0.3 - 1.5, abs=1e-3)
    assert may_wait(ScalePolicy(), ROOM, 1, Flow(9.0, 0.1), bounds._replace(slo_violations=0.1)).verdict is Verdict.WAIT


def test_nothing_is_predicted_while_nothing_is_ready() -> None:
    bounds = Bounds(limit_s=50.0, target_s=0.1, depth=Depth(1.0, 0.0, "1 place"))
    admission = may_wait(ScalePolicy(), ROOM, 1, Flow(11.0, climb_s=30.0), bounds)
    assert (admission.verdict, admission.reason) == (Verdict.WAIT, "waits for an instance, about 30 s")


def test_instances_that_may_still_come_shorten_the_wait() -> None:
    """Forty places at one a second, and four times as fast from the tenth second on: 10 + 30/4 s."""
    growing = Flow(40.0, gap_s=1.0, best_gap_s=0.25, climb_s=10.0)
    assert growing.wait_s == growing.shortest_s == 17.5
    unknown = growing._replace(climb_s=None)
    assert (unknown.wait_s, unknown.shortest_s) == (40.0, 10.0)
    slow = growing._replace(climb_s=60.0)
    assert (slow.wait_s, slow.shortest_s) == (40.0, 40.0), "the queue is gone before"


@pytest.mark.parametrize(
    ("flow", "expected"),
    [(Flow(11.0, gap_s=0.4), 0.4), (Flow(11.0, climb_s=30.0), 30.0), (Flow(11.0), 1.0), (Flow(11.0, climb_s=0.2), 1.0)],
)
def test_when_there_will_be_room_follows_from_how_the_queue_moves(flow: Flow, expected: float) -> None:
    admission = may_wait(ScalePolicy(queue_requests=10), ROOM, 1, flow, PATIENT)
    assert admission.verdict is Verdict.QUEUE_FULL
    assert admission.retry_after_s == pytest.approx(expected)


def test_room_for_many_bytes_takes_as_many_turns_as_others_hold_bytes() -> None:
    """Ten wait with 100 bytes each; 250 bytes too many are three of them."""
    admission = may_wait(ScalePolicy(queue_bytes=1000), ROOM, 250, Flow(11.0, gap_s=2.0), PATIENT)
    assert admission.verdict is Verdict.QUEUE_FULL
    assert admission.retry_after_s == pytest.approx(6.0)


def test_the_adaptive_depth_bounds_the_place_and_says_why() -> None:
    depth = Depth(8.9, 0.0, "8 places, fewer: 3 of 100 requests missed 2 s, 0.01 of them may")
    refused = may_wait(ScalePolicy(), ROOM, 1, Flow(11.0, gap_s=0.5), PATIENT._replace(depth=depth))
    assert refused.verdict is Verdict.QUEUE_FULL
    assert refused.reason == f"10 requests would be served before it, the queue's depth is {depth.reason}"
    assert refused.retry_after_s == pytest.approx(1.5)
    urgent = may_wait(ScalePolicy(), ROOM, 1, Flow(3.0, gap_s=0.5), PATIENT._replace(depth=depth))
    assert (urgent.verdict, urgent.reason) == (Verdict.WAIT, "place 3 of 8, about 1.5 s")
