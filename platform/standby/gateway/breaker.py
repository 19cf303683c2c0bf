"""The circuit breaker of one instance epoch: when it gets no requests, when it is probed, and why. Pure.

| phase | becomes | when |
|---|---|---|
| CLOSED | OPEN | a rule of the policy holds |
| OPEN | HALF_OPEN | a request was sent as a probe |
| HALF_OPEN | CLOSED | so many probes in a row ended well |
| HALF_OPEN | OPEN | a probe failed: for twice as long as before, up to a limit |

Requests are counted in buckets, a tenth of a rule's window each, so that memory does not grow with traffic: a request
leaves the window up to one bucket late. Whatever is the caller's doing, or the platform's own, counts neither way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.domain.traffic import BreakerPolicy, BreakerRule
from standby.gateway.results import Result, ResultKind

BUCKETS: Final = 10


class Phase(Enum):
    """See the module's docstring."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Turn(Enum):
    """What changes the phase."""

    TRIPPED = "tripped"
    PROBED = "probed"
    PROVED = "proved"
    RELAPSED = "relapsed"


TRANSITIONS: Final[Mapping[tuple[Phase, Turn], Phase]] = MappingProxyType(
    {
        (Phase.CLOSED, Turn.TRIPPED): Phase.OPEN,
        (Phase.OPEN, Turn.PROBED): Phase.HALF_OPEN,
        (Phase.HALF_OPEN, Turn.PROBED): Phase.HALF_OPEN,
        (Phase.HALF_OPEN, Turn.PROVED): Phase.CLOSED,
        (Phase.HALF_OPEN, Turn.RELAPSED): Phase.OPEN,
    }
)


class Bucket(NamedTuple):
    """What ended in the stretch of time number ``at``; ``failed`` as the rule counts failures."""

    at: int
    ended: int
    failed: int


Window = tuple[Bucket, ...]


class BreakerState(NamedTuple):
    """One instance's breaker; make it with ``closed``. A tuple, as one is made for each request.

    ``good`` are requests that ended well and are not in ``windows`` (one for each rule) yet; they all belong to the newest
    buckets, which nobody may touch from ``fold_at`` on without folding them in. ``row``, ``refused_row``: failures, and
    connections that nobody accepted, in a row. ``probes``: probes under way; ``proved``: good ones in a row.
    """

    phase: Phase
    policy: BreakerPolicy
    good: int
    fold_at: float
    windows: tuple[Window, ...]
    row: int = 0
    refused_row: int = 0
    reason: str = ""
    open_until: float = 0.0
    open_for: float = 0.0
    probes: int = 0
    proved: int = 0


class Permit(NamedTuple):
    """Whether a request may go there, as a ``probe`` or as any other; if not, ``retry_at`` is when one may (None: when a
    probe has ended)."""

    allowed: bool
    probe: bool
    reason: str
    retry_at: float | None = None


ALLOWED: Final = Permit(True, False, "")


def closed(policy: BreakerPolicy) -> BreakerState:
    """Return the breaker of an instance of which nothing is known yet."""
    return BreakerState(Phase.CLOSED, policy, 0, -math.inf, ((),) * len(policy.rules))


def allows(state: BreakerState, policy: BreakerPolicy, now: float) -> Permit:
    """Return whether the instance may get a request now. One probe at a time; see ``may_probe`` for the last instance."""
    if state.phase is Phase.CLOSED:
        return ALLOWED
    if state.probes:
        return Permit(False, False, f"a probe is under way ({state.reason})")
    if now < state.open_until:
        return Permit(False, False, f"breaker open: {state.reason}", state.open_until)
    return Permit(True, True, f"probe {state.proved + 1} of {policy.probes}: {state.reason}")


def may_probe(state: BreakerState) -> bool:
    """Whether it may be probed although its time has not come, because there is no other instance to ask."""
    return state.phase is not Phase.CLOSED and not state.probes


def probing(state: BreakerState) -> BreakerState:
    """Return the state once a probe is on its way; its end must be recorded with ``probe``."""
    if state.phase is Phase.CLOSED:
        return state
    return state._replace(phase=TRANSITIONS[state.phase, Turn.PROBED], probes=state.probes + 1)


def record(
    state: BreakerState, result: Result | None, policy: BreakerPolicy, now: float, *, probe: bool = False
) -> BreakerState:
    """Return the state after a request has ended. ``probe``: it was one; None: it ended without saying anything.

    ``now`` is a monotonic clock in seconds, never less than at the call before.
    """
    kind = ResultKind.CUT if result is None else result.kind
    # The only case that is frequent; it costs one comparison and one tuple.
    if kind is ResultKind.OK and now < state.fold_at and state.policy is policy and state.phase is Phase.CLOSED:
        return BreakerState(Phase.CLOSED, policy, state.good + 1, state.fold_at, state.windows)
    if state.policy is not policy:
        state = _under(state, policy)
    if state.phase is not Phase.CLOSED:
        return _of_probe(state, kind, now) if probe and state.probes else state
    if kind is ResultKind.OK:
        return _fold(state, now)._replace(good=1, row=0, refused_row=0)
    return _failed(state, kind, now) if kind.failed else state


def _under(state: BreakerState, policy: BreakerPolicy) -> BreakerState:
    """Go on under another policy. Equal rules keep their counts, others begin anew; the phase stays."""
    if state.policy.rules == policy.rules:
        return state._replace(policy=policy)
    return state._replace(policy=policy, good=0, fold_at=-math.inf, windows=((),) * len(policy.rules))


def _failed(state: BreakerState, kind: ResultKind, now: float) -> BreakerState:
    refused = kind is ResultKind.CONNECT
    state = _fold(state, now)
    windows = tuple(
        _count(window, failed=int(refused or not rule.connect_only))
        for rule, window in zip(state.policy.rules, state.windows, strict=True)
    )
    row, refused_row = state.row + 1, state.refused_row + 1 if refused else 0
    state = state._replace(windows=windows, row=row, refused_row=refused_row)
    for rule, window in zip(state.policy.rules, windows, strict=True):
        reason = _holds(rule, window, refused_row if rule.connect_only else row)
        if reason:
            return _open(state, Turn.TRIPPED, reason, state.policy.open_for, now)
    return state


def _holds(rule: BreakerRule, window: Window, row: int) -> str:
    """Return why the rule holds, or nothing."""
    ended, failed = sum(bucket.ended for bucket in window), sum(bucket.failed for bucket in window)
    if ended < rule.requests:
        return ""
    what = "were refused a connection" if rule.connect_only else "failed"
    if rule.failure_rate is not None:
        if failed < rule.failure_rate * ended:
            return ""
        return f"{failed} of {ended} requests {what} within {rule.window:g} s"
    assert rule.failures_in_a_row is not None, "BreakerRule has one of the two"
    # The row is unbroken up to now: either all of it is in the window, or nothing else is.
    within = min(row, failed)
    return "" if within < rule.failures_in_a_row else f"{within} requests in a row {what} within {rule.window:g} s"


def _of_probe(state: BreakerState, kind: ResultKind, now: float) -> BreakerState:
    state = state._replace(probes=state.probes - 1)
    if kind is ResultKind.OK:
        if state.proved + 1 < state.policy.probes:
            return state._replace(proved=state.proved + 1)
        assert TRANSITIONS[state.phase, Turn.PROVED] is Phase.CLOSED
        return closed(state.policy)
    if kind.failed:
        longer = min(max(state.open_for * 2, state.policy.open_for), max(state.policy.longest_open, state.policy.open_for))
        return _open(state, Turn.RELAPSED, state.reason, longer, now)
    return state


def _open(state: BreakerState, turn: Turn, reason: str, open_for: float, now: float) -> BreakerState:
    return state._replace(
        phase=TRANSITIONS[state.phase, turn],
        reason=reason,
        open_until=now + open_for,
        open_for=open_for,
        proved=0,
    )


# ---- counting --------------------------------------------------------------------------------------------------


def _width(rule: BreakerRule) -> float:
    return rule.window / BUCKETS


def _fold(state: BreakerState, now: float) -> BreakerState:
    """Put what ended well into the newest buckets, forget what left the windows, and begin buckets for ``now``."""
    windows = []
    fold_at = math.inf
    for rule, window in zip(state.policy.rules, state.windows, strict=True):
        width = _width(rule)
        at = math.floor(now / width)
        windows.append(_moved(_count(window, ended=state.good) if state.good else window, at))
        fold_at = min(fold_at, (at + 1) * width)
    return state._replace(good=0, fold_at=fold_at, windows=tuple(windows))


def _moved(window: Window, at: int) -> Window:
    kept = tuple(bucket for bucket in window if bucket.at >= at - BUCKETS)
    return kept if kept and kept[-1].at >= at else (*kept, Bucket(at, 0, 0))


def _count(window: Window, *, ended: int = 1, failed: int = 0) -> Window:
    last = window[-1]
    return (*window[:-1], Bucket(last.at, last.ended + ended, last.failed + failed))
