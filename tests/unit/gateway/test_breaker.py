"""The circuit breaker against an oracle that keeps every event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.domain.traffic import BreakerPolicy, BreakerRule
from standby.gateway.breaker import (
    BUCKETS,
    TRANSITIONS,
    BreakerState,
    Permit,
    Phase,
    Turn,
    allows,
    closed,
    may_probe,
    probing,
    record,
)
from standby.gateway.results import Result, ResultKind

USUAL = BreakerPolicy()
NEUTRAL = (ResultKind.CALLER, ResultKind.REFUSED, ResultKind.CUT)


def fed(policy: BreakerPolicy, *kinds: ResultKind, every: float = 0.1, state: BreakerState | None = None) -> BreakerState:
    """The state after these ends, one every so many seconds from 1000 on."""
    state = state or closed(policy)
    for number, kind in enumerate(kinds):
        state = record(state, Result(kind), policy, 1000 + number * every)
    return state


@pytest.mark.parametrize(
    ("kinds", "every", "phase"),
    [
        ([ResultKind.OK] * 8 + [ResultKind.ENGINE] * 12, 1.0, Phase.OPEN),
        ([ResultKind.OK, ResultKind.ENGINE] * 40, 0.1, Phase.CLOSED),
        ([ResultKind.OK] * 5 + [ResultKind.ENGINE] * 5, 0.1, Phase.OPEN),
        ([ResultKind.OK] * 4 + [ResultKind.ENGINE] * 5, 0.1, Phase.CLOSED),
        ([ResultKind.OK] * 30 + [ResultKind.TIMEOUT] * 4, 0.1, Phase.CLOSED),
        ([ResultKind.CONNECT] * 3, 1.0, Phase.OPEN),
        ([ResultKind.CONNECT] * 2 + [ResultKind.OK] + [ResultKind.CONNECT], 1.0, Phase.CLOSED),
        ([ResultKind.CONNECT] * 3, 20.0, Phase.CLOSED),
        ([ResultKind.CALLER] * 100, 0.1, Phase.CLOSED),
        ([ResultKind.ENGINE, ResultKind.CALLER] * 4 + [ResultKind.OK] * 5, 0.1, Phase.CLOSED),
    ],
)
def test_the_usual_rules(kinds: list[ResultKind], every: float, phase: Phase) -> None:
    """60 % of 20 within 60 s; 5 in a row of 10 within 30 s; 3 refused connections in a row within 10 s."""
    assert fed(USUAL, *kinds, every=every).phase is phase


def test_a_callers_mistakes_count_neither_way() -> None:
    """They do not open it, do not dilute failures, and do not break a row of them."""
    kinds = [ResultKind.OK] * 5 + [ResultKind.CALLER] * 50
    for _ in range(5):
        kinds += [ResultKind.ENGINE, ResultKind.CALLER, ResultKind.CUT, ResultKind.REFUSED]
    assert fed(USUAL, *kinds).phase is Phase.OPEN


def test_it_opens_for_longer_each_time_and_closes_by_a_probe() -> None:
    state = fed(USUAL, *[ResultKind.CONNECT] * 3)
    now = 1000.2
    lasted = []
    for _ in range(6):
        lasted.append(state.open_until - now)
        refused = allows(state, USUAL, now)
        assert (refused.allowed, refused.retry_at) == (False, state.open_until)
        now = state.open_until
        permit = allows(state, USUAL, now)
        assert (permit.allowed, permit.probe) == (True, True)
        state = probing(state)
        assert allows(state, USUAL, now).allowed is False
        now += 1.0
        state = record(state, Result(ResultKind.TIMEOUT), USUAL, now, probe=True)
        assert state.phase is Phase.OPEN
    assert lasted == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    state = record(probing(state), Result(ResultKind.OK), USUAL, now, probe=True)
    assert (state.phase, allows(state, USUAL, now).allowed) == (Phase.CLOSED, True)
    assert fed(USUAL, *[ResultKind.CONNECT] * 3, state=state).open_for == 5.0


@pytest.mark.parametrize("result", [None, *(Result(kind) for kind in NEUTRAL)])
def test_a_probe_that_says_nothing_lets_the_next_one_go(result: Result | None) -> None:
    """Field case B20: a probe whose caller leaves does not keep the instance closed for ever."""
    state = probing(fed(USUAL, *[ResultKind.CONNECT] * 3))
    state = record(state, result, USUAL, 1010.0, probe=True)
    assert (state.phase, state.probes) == (Phase.HALF_OPEN, 0)
    assert allows(state, USUAL, 1010.0).probe


def test_several_probes_may_be_asked_for() -> None:
    policy = BreakerPolicy(probes=3)
    state = fed(policy, *[ResultKind.CONNECT] * 3)
    for proved in (1, 2):
        state = record(probing(state), Result(ResultKind.OK), policy, 1010.0, probe=True)
        assert (state.phase, state.proved) == (Phase.HALF_OPEN, proved)
    assert record(probing(state), Result(ResultKind.OK), policy, 1010.0, probe=True).phase is Phase.CLOSED


def test_what_was_under_way_before_it_opened_is_no_probe() -> None:
    state = probing(fed(USUAL, *[ResultKind.CONNECT] * 3))
    for kind in ResultKind:
        assert record(state, Result(kind), USUAL, 1010.0) == state


def test_the_last_instance_may_be_probed_early_but_only_once_at_a_time() -> None:
    state = fed(USUAL, *[ResultKind.CONNECT] * 3)
    assert may_probe(state)
    assert not may_probe(probing(state))
    assert not may_probe(closed(USUAL))


def test_it_says_why() -> None:
    state = fed(USUAL, *[ResultKind.OK] * 8, *[ResultKind.ENGINE] * 12, every=1.0)
    assert state.reason == "5 requests in a row failed within 30 s"
    assert allows(state, USUAL, 1012.0) == Permit(False, False, f"breaker open: {state.reason}", 1017.0)
    assert allows(state, USUAL, 1017.0) == Permit(True, True, f"probe 1 of 1: {state.reason}")
    assert allows(probing(state), USUAL, 1017.0) == Permit(False, False, f"a probe is under way ({state.reason})")
    assert fed(USUAL, *[ResultKind.CONNECT] * 3).reason == "3 requests in a row were refused a connection within 10 s"


def test_another_policy_begins_to_count_anew_and_an_equal_one_goes_on() -> None:
    state = fed(USUAL, *[ResultKind.CONNECT] * 2)
    assert record(state, Result(ResultKind.CONNECT), BreakerPolicy(), 1001.0).phase is Phase.OPEN
    other = BreakerPolicy(rules=(BreakerRule(requests=1, failures_in_a_row=4),))
    assert record(state, Result(ResultKind.OK), other, 1001.0).phase is Phase.CLOSED


def test_every_transition_is_in_the_table() -> None:
    reached = {(Phase.CLOSED, Turn.TRIPPED), (Phase.OPEN, Turn.PROBED), (Phase.HALF_OPEN, Turn.PROBED)}
    reached |= {(Phase.HALF_OPEN, Turn.PROVED), (Phase.HALF_OPEN, Turn.RELAPSED)}
    assert set(TRANSITIONS) == reached


# ---- against an oracle -----------------------------------------------------------------------------------------


@dataclass
class Oracle:
    """Keeps every counted end since the breaker was last closed, and decides from the whole list."""

    policy: BreakerPolicy
    events: list[tuple[float, ResultKind]] = field(default_factory=list)

    def opens(self, kind: ResultKind, now: float) -> bool:
        if kind in NEUTRAL:
            return False
        self.events.append((now, kind))
        return kind is not ResultKind.OK and any(self._holds(rule, now) for rule in self.policy.rules)

    def _holds(self, rule: BreakerRule, now: float) -> bool:
        width = rule.window / BUCKETS
        oldest = math.floor(now / width) - BUCKETS
        inside = [kind for at, kind in self.events if math.floor(at / width) >= oldest]
        bad = [kind is ResultKind.CONNECT if rule.connect_only else kind is not ResultKind.OK for kind in inside]
        if len(inside) < rule.requests:
            return False
        if rule.failure_rate is not None:
            return sum(bad) >= rule.failure_rate * len(bad)
        needed = rule.failures_in_a_row or 0
        return len(bad) >= needed and all(bad[-needed:])


RULES = st.builds(
    lambda window, requests, rate, row, connect: BreakerRule(
        window=window,
        requests=requests,
        failure_rate=rate,
        failures_in_a_row=None if rate is not None else row,
        connect_only=connect,
    ),
    st.sampled_from([0.5, 1.0, 7.0, 60.0]),
    st.integers(1, 12),
    st.none() | st.sampled_from([0.2, 0.5, 0.6, 1.0]),
    st.integers(1, 6),
    st.booleans(),
)
STEPS = st.lists(
    st.tuples(st.sampled_from([0.0, 0.01, 0.3, 1.0, 9.0, 70.0]), st.sampled_from([*ResultKind, *[ResultKind.OK] * 4])),
    max_size=80,
)


@settings(max_examples=300, deadline=None)
@given(rules=st.lists(RULES, min_size=1, max_size=3), steps=STEPS, start=st.floats(0, 1e6))
def test_it_opens_exactly_when_the_oracle_says_so(
    rules: list[BreakerRule], steps: list[tuple[float, ResultKind]], start: float
) -> None:
    policy = BreakerPolicy(rules=tuple(rules))
    state, oracle, now = closed(policy), Oracle(policy), start
    for pause, kind in steps:
        now += pause
        opens = oracle.opens(kind, now)
        state = record(state, Result(kind), policy, now)
        assert (state.phase is Phase.OPEN) == opens
        assert all(len(window) <= BUCKETS + 1 for window in state.windows)
        if opens:
            assert state.reason
            state = record(probing(state), Result(ResultKind.OK), policy, now, probe=True)
            assert state.phase is Phase.CLOSED or policy.probes > 1
            oracle = Oracle(policy)


@settings(max_examples=200, deadline=None)
@given(
    steps=st.lists(st.tuples(st.sampled_from(list(ResultKind)), st.booleans(), st.sampled_from([0.0, 2.0, 20.0])), max_size=60)
)
def test_never_two_probes_and_never_closed_for_good(steps: list[tuple[ResultKind, bool, float]]) -> None:
    """Whatever ends in whatever order: at most one probe at a time, and once none is under way the next is allowed in time."""
    state, now, under_way = closed(USUAL), 0.0, 0
    for kind, ends_probe, pause in steps:
        now += pause
        permit = allows(state, USUAL, now)
        if permit.probe:
            state = probing(state)
            under_way += 1
        probe = ends_probe and under_way > 0
        under_way -= probe
        state = record(state, Result(kind), USUAL, now, probe=probe)
        assert state.probes == under_way <= 1
        if not state.probes:
            assert allows(state, USUAL, now + USUAL.longest_open).allowed
