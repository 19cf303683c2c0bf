"""Scheduled windows: what may be written, when they are open, and what an endpoint does in them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller import scaling
from standby.controller.view import ClusterView
from standby.domain.endpoint import ScalePolicy
from standby.domain.schedule import Schedule, opening
from support.cluster import Cluster

pytestmark = pytest.mark.decision
BERLIN = ZoneInfo("Europe/Berlin")


def berlin(*moment: int, fold: int = 0) -> float:
    return datetime(*moment, tzinfo=BERLIN, fold=fold).timestamp()  # type: ignore[misc,arg-type]


def office(**changes: object) -> Schedule:
    values: dict[str, object] = {"cron": "0 8 * * 1-5", "timezone": "Europe/Berlin", "duration": "10h", "min_ready": 2}
    return Schedule.model_validate({**values, **changes})


# ---- what may be written ---------------------------------------------------------------------------------


def test_schedules_are_written_as_text_as_well() -> None:
    text = "cron=0 8 * * 1,3,5,tz=Europe/Berlin,for=10h,min-ready=1; cron=0 9 * * 6, for=1h, max-instances=9"
    first, second = ScalePolicy.model_validate({"schedules": text}).schedules
    assert first == office(cron="0 8 * * 1,3,5", min_ready=1)
    assert (second.timezone, second.duration, second.min_ready, second.max_instances) == ("UTC", 3600.0, None, 9)
    policy = ScalePolicy.model_validate({"schedules": [text.partition(";")[0]]})
    assert ScalePolicy.model_validate_json(policy.model_dump_json()) == policy
    assert first.told == "schedule '0 8 * * 1,3,5' (Europe/Berlin) for 10 h 0 m: min_ready 1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cron": "0 8 * *"}, "has 4 fields instead of 5"),
        ({"cron": "* 0 8 * * 1"}, "has 6 fields instead of 5"),
        ({"cron": "61 8 * * *"}, "is not understood: Bad minute"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"timezone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
        ({"timezone": "../../etc/passwd"}, "no time zone"),
        ({"duration": 0}, "not above 0"),
        ({"duration": "forever"}, "at most a year"),
        ({"min_ready": None}, "changes nothing"),
        ({"min_ready": 3, "max_instances": 2}, "min_ready 3 is above max_instances 2"),
    ],
)
def test_what_cannot_be_is_refused_in_words(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        office(**changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0 8 * * *", "is not one of cron, tz, for, min-ready, max-instances"),
        ("cron=0 8 * * *,min-ready=1", "for missing"),
        ("cron=0 8 * * *,for=1h,for=2h", "for is given twice"),
        ("cron=0 8 * * *,for=1h,min-ready=many", "valid integer"),
    ],
)
def test_text_that_is_no_schedule_is_refused_in_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ScalePolicy.model_validate({"schedules": text})


# ---- when they are open ----------------------------------------------------------------------------------


def test_a_window_opens_and_closes_on_its_own_zones_clock() -> None:
    opens, closes = berlin(2026, 7, 6, 8, 0), berlin(2026, 7, 6, 18, 0)
    assert opening([office()], opens - 1)[:2] == (None, None)
    assert opening([office()], opens - 1).until == opens
    assert (opening([office()], opens).min_ready, opening([office()], opens).until) == (2, closes)
    assert opening([office()], closes - 1).min_ready == 2
    assert opening([office()], closes)[:2] == (None, None)
    saturday = berlin(2026, 7, 11, 12, 0)
    assert opening([office()], saturday).until == berlin(2026, 7, 13, 8, 0)


def test_summer_time() -> None:
    """02:30 does not exist on the one day and comes twice on the other: open once for its whole length, both times."""
    night = office(cron="30 2 * * *", duration="1h")
    spring = berlin(2026, 3, 29, 3, 0)
    assert opening([night], spring - 1).min_ready is None
    assert opening([night], spring).min_ready == 2
    assert opening([night], spring + 3599).until == spring + 3600
    autumn = berlin(2026, 10, 25, 2, 30)
    assert opening([night], autumn + 3599).min_ready == 2
    assert opening([night], berlin(2026, 10, 25, 2, 30, fold=1)).min_ready is None


def test_of_several_open_windows_the_most_of_each_counts() -> None:
    at = berlin(2026, 7, 6, 9, 0)
    both = opening([office(), office(cron="30 8 * * *", min_ready=1, max_instances=7), office(cron="0 20 * * *")], at)
    assert (both.min_ready, both.max_instances) == (2, 7)
    assert both.words.count("schedule '") == 2


@given(
    minute=st.integers(0, 59),
    step=st.integers(1, 23),
    days=st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True),
    hours=st.floats(0.02, 60),
    at=st.integers(1_700_000_000, 1_790_000_000),
)
@settings(max_examples=100, deadline=None)
def test_against_trying_every_minute(minute: int, step: int, days: list[int], hours: float, at: int) -> None:
    """In UTC, where every day has as many minutes: is there a start within the duration before now?"""
    written = Schedule(cron=f"{minute} */{step} * * {','.join(map(str, days))}", duration=hours * 3600, min_ready=1)

    def starts(moment: datetime) -> bool:
        return moment.minute == minute and moment.hour % step == 0 and moment.isoweekday() % 7 in days

    now = datetime.fromtimestamp(at, UTC)
    tried = (now.replace(second=0) - timedelta(minutes=back) for back in range(int(hours * 60) + 2))
    expected = any(starts(moment) and at < moment.timestamp() + written.duration for moment in tried)
    found = opening([written], at)
    assert (found.min_ready == 1) is expected
    assert found.until > at
    # until it says so nothing changes
    middle = at + (min(found.until, at + 7 * 86400.0) - at) * 0.99
    assert opening([written], middle).min_ready == found.min_ready


# ---- what an endpoint does -------------------------------------------------------------------------------


class Timed(Cluster):
    """A cluster that is told the time of day; ``wall_offset`` as in ``ClusterView``."""

    wall_offset: float | None = None

    def view(self) -> ClusterView:
        return replace(super().view(), wall_offset=self.wall_offset)


def timed(at: float, **policy: Any) -> Timed:
    cluster = Timed(load_s=0.5)
    cluster.wall_offset = at - cluster.now
    cluster.add_node()
    schedules = [office(min_ready=2, max_instances=3)]
    times: dict[str, Any] = {"keep_ready": 5, "keep_asleep": 10, "keep_staged": "forever"}
    cluster.add_endpoint(memory_mb=128, schedules=schedules, **{**times, **policy})
    cluster.decide()
    return cluster


def test_an_endpoint_is_ready_from_the_minute_its_window_opens_and_sinks_after_it() -> None:
    cluster = timed(berlin(2026, 7, 6, 7, 59, 0))
    began = cluster.now
    cluster.run_until(began + 59)
    assert cluster.state_of() == []
    cluster.run_until(began + 62)
    assert cluster.state_of() == ["ready", "ready"]
    (reason,) = {action.reason for at, action in cluster.trace if at > began + 59}
    assert "min_ready is 2" in reason
    assert "open: schedule '0 8 * * 1-5' (Europe/Berlin)" in reason
    cluster.run_until(began + 60 + 36000 - 1)
    assert cluster.state_of() == ["ready", "ready"]
    cluster.run_until(began + 60 + 36000 + 30)
    assert cluster.state_of() == ["staged", "staged"]


def test_more_instances_are_allowed_while_a_window_is_open() -> None:
    cluster = timed(berlin(2026, 7, 6, 9, 0), max_instances=1, slots=1)
    cluster.ask(in_flight=9)
    cluster.run_until(cluster.now + 30)
    assert cluster.state_of() == ["ready"] * 3


def test_without_the_time_of_day_no_window_is_open() -> None:
    cluster = timed(berlin(2026, 7, 6, 9, 0))
    assert len(cluster.slots) == 2
    policy = cluster.configs["e"].variants[0].policy
    assert scaling.scheduled(policy, None, 5.0).policy is policy


def test_a_clock_that_is_set_is_noticed_within_minutes() -> None:
    """The boundary was computed from the clock before; nothing else would make the controller look again."""
    cluster = timed(berlin(2026, 7, 5, 9, 0))
    cluster.wall_offset = berlin(2026, 7, 6, 9, 0) - cluster.now
    cluster.run_until(cluster.now + 301)
    assert cluster.state_of() == ["ready", "ready"]


@given(
    cron=st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 */2 * * *", "15 1,3 * * 0", "59 2 25 10 *"]),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca"]),
    change=st.sampled_from([(2026, 3, 29), (2026, 10, 25), (2026, 3, 8), (2026, 11, 1), (2026, 4, 5), (2026, 10, 4)]),
    seconds=st.integers(-6 * 3600, 6 * 3600),
    minutes=st.integers(1, 400),
)
@settings(max_examples=200, deadline=None)
def test_near_a_change_of_the_clocks_windows_still_come_and_go(
    cron: str, zone: str, change: tuple[int, int, int], seconds: int, minutes: int
) -> None:
    """What is open now was not closed by a moment of which ``until`` knew nothing; time never runs backwards."""
    written = Schedule(cron=cron, timezone=zone, duration=minutes * 60, min_ready=1)
    at = datetime(*change, 12, tzinfo=UTC).timestamp() - 9 * 3600 + seconds
    for _ in range(6):
        found = opening([written], at)
        assert found.until > at
        assert opening([written], (at + found.until) / 2).min_ready == found.min_ready
        at = found.until
