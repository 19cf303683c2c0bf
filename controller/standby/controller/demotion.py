"""Which rung an idle instance holds, until when, and why: where holding costs more than the expected wake, it falls.

Two forms. The expected one minimises holding plus waking over the endpoint's own gaps (``horizon``); the worst-case one, the
lower envelope of ski-rental, needs no knowledge and never costs more than twice what hindsight would. Both are pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, NamedTuple

from standby.controller.arrivals import BINS, EDGES, GapModel, bin_of
from standby.controller.economics import Ladder, PriceVector, RungCost, wake_price
from standby.controller.horizon import Plan, solve
from standby.domain.durations import format_duration
from standby.domain.errors import ConfigurationError
from standby.domain.instance import Rung

FOREVER: Final = math.inf
_SOON_S: Final = 60.0
_NO_TIMES: Final[Mapping[Rung, float]] = MappingProxyType({})


class Step(NamedTuple):
    """Hold ``rung`` until the endpoint has been idle for ``until_s`` seconds (infinity: no end), then ask again."""

    rung: Rung
    until_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What an endpoint's owner decides instead of the prices.

    ``floor_s``: ready at least this long after each request, whatever it costs. ``max_wait_s``: no rung from which a caller
    would wait longer. ``times``: seconds that a rung is held, counted from when it was reached; zero skips it. ``prewarm``:
    it may climb before a request. ``worst_case``: decide as if nothing were known of its requests.
    """

    floor_s: float = 0.25
    max_wait_s: float = FOREVER
    times: Mapping[Rung, float] = field(default_factory=lambda: _NO_TIMES)
    prewarm: bool = True
    worst_case: bool = False

    def __post_init__(self) -> None:
        given = {"floor_s": self.floor_s, "max_wait_s": self.max_wait_s}
        for name, seconds in given.items() | {(f"times[{rung.label}]", value) for rung, value in self.times.items()}:
            if not seconds >= 0:
                raise ConfigurationError(f"{name} is {seconds!r} s, the least is 0", remedy="give seconds, 0 or more")


FREE: Final = Limits()
_GROUNDED: Final = Limits(prewarm=False)


def hold(
    ladder: Ladder, gaps: GapModel, idle_s: float, prices: PriceVector, limits: Limits = FREE, *, rung: Rung | None = None
) -> Step:
    """Return the rung to hold after ``idle_s`` seconds without work, until when, and the reason in words.

    ``rung`` is what the instance has now; None: what this function told it before. A step above it is a climb ahead of demand.
    """
    idle_s = idle_s if idle_s > 0 else 0.0  # a clock that stepped back; NaN as well
    usable = allowed(ladder, limits)
    path = _remembered("worst" if limits.worst_case else "plan", usable, gaps, prices, limits)
    step = next(step for step in path.steps if step.until_s > idle_s or step.until_s == FOREVER)
    if rung is None or rung is step.rung or path.plan is None or limits.times:
        return step
    return _from_here(path, usable, rung, idle_s)


def allowed(ladder: Ladder, limits: Limits) -> Ladder:
    """Return the rungs from which nobody waits longer than the owner allows; ready always."""
    if limits.max_wait_s >= ladder[-1].wait_s:
        return ladder
    return tuple(one for one in ladder if one.rung is Rung.READY or one.wait_s <= limits.max_wait_s)


def envelope(ladder: Ladder, prices: PriceVector) -> tuple[tuple[Rung, float], ...]:
    """Return the rungs of ski-rental's lower envelope, warmest first, with the idle time in seconds at which each ends.

    At idle time t it holds the rung with the least ``hold·t + wake``: never dearer than twice the best choice in hindsight.
    """
    ready = ladder[0]
    ends: list[tuple[Rung, float]] = []
    at = 0
    while at < len(ladder):
        here = ladder[at]
        soonest, to = FOREVER, len(ladder)
        for below in range(at + 1, len(ladder)):
            there = ladder[below]
            saved = here.hold - there.hold
            more = max(0.0, wake_price(there, ready, prices) - wake_price(here, ready, prices))
            cross = more / saved if saved > 0 else FOREVER
            if cross <= soonest and cross < FOREVER:
                soonest, to = cross, below
        ends.append((here.rung, soonest))
        at = to
    return tuple(ends)


def expected_loss(
    ladder: Ladder, gaps: GapModel, idle_s: float, rungs: tuple[Rung, Rung], prices: PriceVector, limits: Limits = FREE
) -> float:
    """Return what falling now from the first of ``rungs`` to the second adds to the expected price until the next request.

    Zero where it would fall anyway; infinity for a rung that the ladder or the limits do not have.
    """
    usable = allowed(ladder, limits)
    places = {one.rung: place for place, one in enumerate(reversed(usable))}
    if rungs[0] not in places or rungs[1] not in places:
        return FOREVER
    # Where memory is short nobody can count on climbing back ahead of the request.
    plan = _remembered("grounded", usable, gaps, prices, _GROUNDED).plan
    if plan is None:
        return FOREVER
    b = min(bin_of(max(idle_s, 0.0)), BINS - 1)
    return max(0.0, plan.values[b][places[rungs[1]]] - plan.values[b][places[rungs[0]]])


@dataclass(frozen=True, slots=True)
class _Path:
    steps: tuple[Step, ...]
    plan: Plan | None  # None: no expectation was needed


class _Memo(NamedTuple):
    hazards: Sequence[float]
    ladder: Ladder
    prices: PriceVector
    limits: Limits
    path: _Path


def _remembered(slot: str, ladder: Ladder, gaps: GapModel, prices: PriceVector, limits: Limits) -> _Path:
    # The same inputs give the same path, so the last one is kept beside the model that it was made from.
    hazards = gaps.hazards
    memo = gaps.memo.get(slot)
    if isinstance(memo, _Memo) and memo.hazards is hazards:
        same = memo.ladder is ladder or memo.ladder == ladder
        if same and (memo.prices is prices or memo.prices == prices) and (memo.limits is limits or memo.limits == limits):
            return memo.path
    path = _path(ladder, gaps, prices, limits)
    gaps.memo[slot] = _Memo(hazards, ladder, prices, limits, path)
    return path


def _path(ladder: Ladder, gaps: GapModel, prices: PriceVector, limits: Limits) -> _Path:
    if limits.worst_case:
        ends = dict(envelope(ladder, prices))
        kept = tuple(one for one in ladder if one.rung in ends)
        return _Path(_walk(kept, limits, [ends[one.rung] for one in kept], None, gaps, prices), None)
    plan = solve(ladder, gaps.hazards, prices, climbs=limits.prewarm)
    return _Path(_walk(ladder, limits, None, plan, gaps, prices), plan)


def _walk(
    ladder: Ladder, limits: Limits, ends: Sequence[float] | None, plan: Plan | None, gaps: GapModel, prices: PriceVector
) -> tuple[Step, ...]:
    """Follow the decisions from ready at idle time zero to the rung that is held forever."""
    steps: list[Step] = []
    last = len(ladder) - 1
    at, idle = 0, 0.0
    fell = True
    while True:
        fixed = limits.times.get(ladder[at].rung) if fell else None
        if at == last and fixed is None and ends is not None:
            until, to = FOREVER, at
        elif fixed is not None:
            until, to = idle + fixed, min(at + 1, last)
        elif ends is not None:
            until, to = max(ends[at], limits.floor_s if at == 0 else 0.0), at + 1
        else:
            until, to = _next(plan, last, at, max(idle, limits.floor_s if at == 0 and not steps else idle))
        if at == last and to == last:
            until = FOREVER
        if until > idle:
            words = _timed(ladder[at], fixed) if fixed is not None else _weighed(ladder, at, gaps, idle, prices, fell=fell)
            steps.append(Step(ladder[at].rung, until, words))
            idle = until
        if until == FOREVER:
            return tuple(steps)
        fell = to > at
        at = to


def _next(plan: Plan | None, last: int, at: int, idle: float) -> tuple[float, int]:
    """Return until which idle time place ``at`` is held from ``idle`` on, and which place follows; infinity: it is the end."""
    here = last - at  # horizon counts from the coldest
    if plan is not None:
        for b in range(bin_of(idle), BINS):
            move = plan.actions[b][here]
            if move != here:
                return max(idle, EDGES[b]), last - move
    return (max(idle, EDGES[BINS]), last) if at != last else (FOREVER, last)


def _from_here(path: _Path, ladder: Ladder, rung: Rung, idle_s: float) -> Step:
    """Return the step of an instance that is not where this module sent it, e.g. because its memory was needed."""
    places = {one.rung: at for at, one in enumerate(ladder)}
    last = len(ladder) - 1
    at = places.get(rung)
    if at is None or path.plan is None:
        at = next((place for place, one in enumerate(ladder) if one.rung < rung), last)
    until, to = _next(path.plan, last, at, idle_s)
    while until <= idle_s and to != at:
        at = to
        until, to = _next(path.plan, last, at, idle_s)
    return Step(ladder[at].rung, until, f"{ladder[at].rung.label}: the cheapest from {rung.label} at this idle time")


def _timed(one: RungCost, seconds: float) -> str:
    return f"{one.rung.label}: the endpoint keeps it for {format_duration(seconds)}"


def _weighed(ladder: Ladder, at: int, gaps: GapModel, idle: float, prices: PriceVector, *, fell: bool) -> str:
    here, ready = ladder[at], ladder[0]
    likely = f"the next request is {gaps.within(_SOON_S, idle):.0%} likely within the next minute"
    if not fell:
        return f"{here.rung.label}: climbed ahead of demand, {likely} and holding it costs {here.hold:.3g} per s"
    if at > 0:
        warmer = ladder[at - 1]
        wake = f"a wake costs {wake_price(here, ready, prices):.3g}"
        return f"{here.rung.label}: holding {warmer.rung.label} costs {warmer.hold:.3g} per s, {likely} and {wake}"
    if len(ladder) == 1:
        return f"{here.rung.label}: there is no other rung that the endpoint allows"
    wake = f"a wake from {ladder[1].rung.label} costs {wake_price(ladder[1], ready, prices):.3g}"
    return f"{here.rung.label}: holding it costs {here.hold:.3g} per s, {likely} and {wake}"
