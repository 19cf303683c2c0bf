"""When an idle instance falls, against oracles that count every gap forward instead of reasoning backward."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.arrivals import BINS, EDGES, GapModel
from standby.controller.demotion import FOREVER, Limits, Step, allowed, envelope, expected_loss, hold
from standby.controller.economics import Ladder, PriceVector, RungCost, ladder, wake_price
from standby.controller.horizon import solve
from standby.domain.errors import ConfigurationError
from standby.domain.instance import Rung

pytestmark = pytest.mark.decision
READY, ASLEEP, STAGED, COLD = Rung.READY, Rung.ASLEEP, Rung.STAGED, Rung.COLD
LADDER = ladder([RungCost(READY, 10, 0), RungCost(ASLEEP, 1.5, 0.8), RungCost(STAGED, 0.05, 10)])
PRICES = PriceVector()
FLOORLESS = Limits(floor_s=0)
SIZES = st.floats(min_value=1, max_value=80)
GAPS = st.lists(st.floats(min_value=0.1, max_value=20_000), max_size=25)
WAITS = st.floats(min_value=0, max_value=2000)


def ladder_of(size: float, *, cold: bool = False) -> Ladder:
    rungs = [RungCost(READY, size, 0), RungCost(ASLEEP, 0.1 * size + 0.5, 0.3 + 0.05 * size)]
    rungs.append(RungCost(STAGED, 0.005 * size, 5 + 0.5 * size))
    return ladder([*rungs, RungCost(COLD, 0, 60 + size)] if cold else rungs)


def learned(gaps: list[float]) -> GapModel:
    model, now = GapModel(), 0.0
    for gap in gaps:
        now += gap
        model.observe(gap, now)
    return model


def steps_of(made: Ladder, gaps: GapModel, prices: PriceVector = PRICES, limits: Limits = FLOORLESS) -> list[Step]:
    steps = [hold(made, gaps, 0.0, prices, limits)]
    while steps[-1].until_s < FOREVER:
        assert len(steps) < 200
        steps.append(hold(made, gaps, steps[-1].until_s, prices, limits))
    return steps


def price_of(steps: list[Step], made: Ladder, gap: float, prices: PriceVector) -> float:
    """Return what one gap costs: holding from step to step, each climb's memory, and the wake at its end."""
    costs = {one.rung: one for one in made}
    total, at, rung = 0.0, 0.0, READY
    for step in steps:
        if step.rung > rung:
            total += made[0].hold * costs[rung].wait_s
        rung = step.rung
        until = min(step.until_s, gap)
        total += costs[rung].hold * (until - at)
        at = until
        if step.until_s > gap:
            break
    return total + wake_price(costs[rung], made[0], prices)


def masses(gaps: GapModel) -> list[tuple[float, float]]:
    """Return the middle of each bin with the probability that a gap ends in it."""
    left, found = 1.0, []
    for b, hazard in enumerate(gaps.hazards):
        found.append(((EDGES[b] + EDGES[b + 1]) / 2, left * hazard))
        left *= 1 - hazard
    return found


@settings(max_examples=12, deadline=None)
@given(SIZES, GAPS, WAITS)
def test_no_pair_of_falling_times_is_cheaper(size: float, seen: list[float], wait: float) -> None:
    """Brute force over every pair of idle times at which ready and asleep could end, each gap priced by itself."""
    made, gaps, prices = ladder_of(size), learned(seen), PriceVector(wait=wait)
    ready, asleep, staged = made
    wakes = [wake_price(one, ready, prices) for one in made]
    likely = masses(gaps)
    never = 1 - sum(mass for _, mass in likely)
    last = EDGES[BINS]
    # Running sums over gaps: up to bin k, of the mass and of mass·gap.
    mass, moment = [0.0], [0.0]
    for middle, share in likely:
        mass.append(mass[-1] + share)
        moment.append(moment[-1] + share * middle)

    def spent(first: int, until: int) -> float:
        """Return the expected seconds between two edges before the request comes."""
        inside = moment[until] - moment[first] - EDGES[first] * (mass[until] - mass[first])
        beyond = (mass[-1] - mass[until] + never) * (EDGES[until] - EDGES[first])
        return inside + beyond

    best = math.inf
    for first in range(BINS + 1):
        for second in range(first, BINS + 1):
            price = ready.hold * spent(0, first) + asleep.hold * spent(first, second) + staged.hold * spent(second, BINS)
            price += wakes[1] * (mass[second] - mass[first]) + wakes[2] * (mass[-1] - mass[second] + never)
            best = min(best, price)
    steps = steps_of(made, gaps, prices, Limits(floor_s=0, prewarm=False))
    ours = sum(share * price_of(steps, made, middle, prices) for middle, share in likely)
    held = {step.until_s: step for step in steps}
    assert held[FOREVER].rung is STAGED
    ours += never * price_of(steps, made, last * (1 - 1e-12), prices)
    assert ours == pytest.approx(best, rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(SIZES, GAPS, st.lists(st.tuples(st.integers(0, BINS), st.sampled_from([READY, ASLEEP, STAGED])), max_size=6))
def test_no_other_way_through_the_rungs_is_cheaper(size: float, seen: list[float], turns: list[tuple[int, Rung]]) -> None:
    """With climbs: any other sequence of rungs, priced gap by gap, costs at least as much as the plan expects."""
    made, gaps = ladder_of(size), learned(seen)
    edges = sorted({b: rung for b, rung in turns if b < BINS}.items())
    starts = [(0.0, READY), *((EDGES[b], rung) for b, rung in edges if b > 0)]
    other = [Step(rung, until, "") for (_, rung), (until, _) in pairwise([*starts, (EDGES[BINS], STAGED)])]
    other.append(Step(STAGED, FOREVER, ""))
    likely = masses(gaps)
    never = 1 - sum(mass for _, mass in likely)
    costs = [(price_of(other, made, middle, PRICES), share) for middle, share in likely]
    forward = sum(price * share for price, share in costs) + never * price_of(other, made, EDGES[BINS] * 1.001, PRICES)
    assert solve(made, gaps.hazards, PRICES, climbs=True).values[0][-1] <= forward * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(SIZES, WAITS, st.floats(min_value=0, max_value=1e6), st.booleans())
def test_worst_case_is_within_twice_of_hindsight(size: float, wait: float, gap: float, cold: bool) -> None:
    made, prices = ladder_of(size, cold=cold), PriceVector(wait=wait)
    steps = steps_of(made, GapModel(), prices, Limits(floor_s=0, worst_case=True))
    hindsight = min(one.hold * gap + wake_price(one, made[0], prices) for one in made)
    assert price_of(steps, made, gap, prices) <= 2 * hindsight * (1 + 1e-9) + 1e-9


def test_envelope_skips_what_is_never_the_cheapest() -> None:
    made = ladder([RungCost(READY, 10, 0), RungCost(ASLEEP, 9.9, 9), RungCost(STAGED, 0.05, 10)])
    assert [rung for rung, _ in envelope(made, PRICES)] == [READY, STAGED]


@settings(max_examples=60, deadline=None)
@given(SIZES, GAPS, st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([None, *Rung]))
def test_every_answer_ends_later_and_has_a_reason(size: float, seen: list[float], idle: float, rung: Rung | None) -> None:
    step = hold(ladder_of(size), learned(seen), idle, PRICES, Limits(), rung=rung)
    assert step.until_s > idle or step.until_s == FOREVER or not idle >= 0
    assert step.rung.label in step.reason


@settings(max_examples=40, deadline=None)
@given(SIZES, GAPS, st.floats(min_value=0, max_value=1e5))
def test_asking_at_any_moment_agrees_with_following_the_steps(size: float, seen: list[float], idle: float) -> None:
    made, gaps = ladder_of(size), learned(seen)
    told = next(step for step in steps_of(made, gaps) if step.until_s > idle)
    assert hold(made, gaps, idle, PRICES, FLOORLESS) == told
    gaps.memo.clear()
    assert hold(made, gaps, idle, PRICES, FLOORLESS) == told, "what is remembered changes nothing"


def test_reason_says_prices_and_probability() -> None:
    steps = steps_of(LADDER, learned([15_000.0] * 20))
    assert steps[0].rung is ASLEEP
    assert steps[0].reason == (
        "asleep: holding ready costs 10 per s, the next request is 10% likely within the next minute and a wake costs 88"
    )


def test_what_comes_every_quarter_hour_is_climbed_for() -> None:
    """Staged in between, asleep when it is due, and given up when it does not come."""
    steps = steps_of(LADDER, learned([900.0 + k % 7 for k in range(30)]))
    climbs = [after for before, after in pairwise(steps) if after.rung > before.rung]
    assert len(climbs) == 1
    climb = climbs[0]
    begun = steps[steps.index(climb) - 1].until_s
    assert 600 < begun < 900 < climb.until_s < 1300
    assert "ahead of demand" in climb.reason
    without = steps_of(LADDER, learned([900.0 + k % 7 for k in range(30)]), limits=Limits(floor_s=0, prewarm=False))
    assert all(before.rung > after.rung for before, after in pairwise(without))


def test_what_comes_at_once_again_stays_ready() -> None:
    step = hold(LADDER, learned([3.0] * 30), 0.0, PRICES, Limits(prewarm=False))
    assert step.rung is READY
    assert 3 < step.until_s < 10


def test_owner_overrules_prices() -> None:
    gaps = learned([900.0] * 20)
    timed = steps_of(LADDER, gaps, limits=Limits(times={READY: 300, ASLEEP: 0}, prewarm=False))
    assert [(step.rung, step.until_s) for step in timed] == [(READY, 300), (STAGED, FOREVER)]
    assert timed[0].reason == "ready: the endpoint keeps it for 5 m 0 s"
    assert steps_of(LADDER, gaps, limits=Limits(times={READY: FOREVER})) == [
        Step(READY, FOREVER, "ready: the endpoint keeps it for forever")
    ]
    floored = steps_of(LADDER, gaps, limits=Limits(floor_s=45))
    assert floored[0].rung is READY
    assert floored[0].until_s == 45


def test_nobody_waits_longer_than_the_owner_allows() -> None:
    gaps = learned([50_000.0] * 20)
    assert [step.rung for step in steps_of(LADDER, gaps, limits=Limits(max_wait_s=2.0))][-1] is ASLEEP
    assert [step.rung for step in steps_of(LADDER, gaps, limits=Limits(max_wait_s=0.1))] == [READY]
    assert allowed(LADDER, Limits(max_wait_s=0)) == LADDER[:1]


@pytest.mark.parametrize("limits", [{"floor_s": -1}, {"max_wait_s": math.nan}, {"times": {READY: -5}}])
def test_limits_below_zero_are_refused(limits: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match="the least is 0"):
        Limits(**limits)  # type: ignore[arg-type] # the point of the test


def test_evicted_instance_is_told_what_is_best_from_where_it_is() -> None:
    """One whose sleep was taken stays staged where climbing back would not pay, and is not sent to a rung that it lost."""
    gaps = learned([40.0] * 30)
    assert hold(LADDER, gaps, 20.0, PRICES, FLOORLESS).rung is ASLEEP
    rare = learned([15_000.0] * 30)
    assert hold(LADDER, rare, 5.0, PRICES, FLOORLESS, rung=STAGED).rung is STAGED


def test_loss_of_falling_is_what_the_plan_says() -> None:
    soon, rare = learned([900.0] * 30), learned([15_000.0] * 30)
    assert expected_loss(LADDER, soon, 880.0, (ASLEEP, STAGED), PRICES) > 500
    assert expected_loss(LADDER, rare, 880.0, (ASLEEP, STAGED), PRICES) == 0, "it would fall anyway"
    assert expected_loss(LADDER, soon, 880.0, (ASLEEP, COLD), PRICES) == FOREVER
    assert expected_loss(LADDER, soon, -5.0, (READY, ASLEEP), PRICES) >= 0
