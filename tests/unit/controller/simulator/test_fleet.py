"""Instances with times for tokens: tiny cases by hand, and what holds of every replay."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.controller.scaling import Capacity, ScaleDecision
from standby.controller.simulator.fleet import Fleet, Phase, Request
from standby.controller.simulator.scalers import Fixed, build, names
from standby.controller.simulator.tokens import TokenModel
from standby.domain.errors import InvalidInput
from standby.sagemaker.runtime.asks import BYTES_PER_TOKEN
from support.ready_rig import Rig

# A prefill of 1 s for 100 tokens, a decode step of 0.1 s and 0.05 s more for each further request.
TIMES = TokenModel(prefill_s=0.0, prefill_token_s=0.01, decode_s=0.1, decode_more_s=0.05, sleep_s=0.5)
MODEL = replace(TIMES, slots=2, devices=1, instances=4, asleep=4)
CLIMB = 1.5


class Told:
    """Wants what it was told to, from the times in ``steps`` on."""

    name, restless, urgent, every_s = "told", True, False, 0.5

    def __init__(self, *steps: tuple[float, int]) -> None:
        self._steps = steps
        self.heard: list[tuple[int, int]] = []
        self.seen: list[Capacity] = []

    def told(self, in_flight: int, queued: int, now: float) -> None:
        self.heard.append((in_flight, queued))

    def decide(self, capacity: Capacity, now: float) -> ScaleDecision:
        self.seen.append(capacity)
        return ScaleDecision([count for at, count in self._steps if at <= now][-1], "told")


def play(scaler: object, *requests: Request, end: float = 20.0, model: TokenModel = MODEL) -> Fleet:
    fleet = Fleet(model, scaler)  # type: ignore[arg-type] # a stand-in has the same methods
    fleet.play(requests, end)
    return fleet


def test_one_request_waits_for_the_climb_its_prefill_and_its_steps() -> None:
    one = Request(0.2, 100, 11)
    fleet = play(Fixed(1), one)
    assert one.first_at == pytest.approx(CLIMB + 1.0)
    assert one.done_at == pytest.approx(CLIMB + 1.0 + 10 * 0.1)
    assert fleet.instances[0].seconds[Phase.STARTING] == pytest.approx(CLIMB)
    assert fleet.instances[0].seconds[Phase.READY] == pytest.approx(20.0 - CLIMB)
    assert fleet.instances[3].seconds[Phase.RESTING] == pytest.approx(20.0)


def test_prefills_come_one_after_the_other_and_stop_decoding() -> None:
    """The second's prefill holds up the first's decoding; then both decode together, slower, and the last one alone."""
    first, second = Request(5.0, 100, 11), Request(6.5, 100, 3)
    play(Fixed(1), first, second)
    assert first.first_at == pytest.approx(6.0)
    assert second.first_at == pytest.approx(7.5)
    # 5 steps until 6.5, none until 7.5, then 2 steps of 0.15 s with the second, the last 3 of 0.1 s alone
    assert second.done_at == pytest.approx(7.8)
    assert first.done_at == pytest.approx(8.1)


def test_the_least_loaded_takes_it_and_a_full_fleet_lets_it_queue_in_order() -> None:
    requests = [Request(5.0 + i / 100, 100, 1) for i in range(6)]
    play(Fixed(2), *requests)
    # two instances with two slots: 0 and 2 on one, 1 and 3 on the other, the rest as slots come free
    assert [one.first_at for one in requests] == pytest.approx([6.0, 6.01, 7.0, 7.01, 8.0, 8.01])


def test_a_slot_is_taken_until_the_last_token() -> None:
    first, second, third = Request(5.0, 0, 11), Request(5.0, 0, 21), Request(5.0, 0, 1)
    play(Fixed(1), first, second, third)
    # Both decode in steps of 0.15 s; after ten the first is done, and lets the third in.
    assert (first.first_at, second.first_at) == (5.0, 5.0)
    assert first.done_at == third.first_at == pytest.approx(6.5)
    assert second.done_at == pytest.approx(7.5)


def test_one_that_is_to_leave_finishes_its_work_first_and_takes_no_more() -> None:
    first, second = Request(5.0, 100, 31), Request(6.2, 100, 1)
    scaler = Told((0.0, 1), (6.0, 0), (7.0, 1))
    fleet = play(scaler, first, second)
    # It drains from 6.0 and is kept at 7.0, before it has finished; only then it takes the second in.
    assert fleet.starts == 1
    assert fleet.instances[0].seconds[Phase.DRAINING] == pytest.approx(1.0)
    assert second.first_at == pytest.approx(8.0)
    assert first.done_at == pytest.approx(10.0)
    assert (1, 1) in scaler.heard


def test_falling_asleep_holds_the_device_and_cannot_be_undone() -> None:
    one = Request(6.1, 100, 1)
    fleet = play(Told((0.0, 1), (6.0, 0), (6.5, 1)), one, model=replace(MODEL, instances=1, asleep=1))
    assert fleet.instances[0].seconds[Phase.FALLING] == pytest.approx(0.5)
    # At 6.5 it is asleep: the climb begins there.
    assert one.first_at == pytest.approx(6.5 + CLIMB + 1.0)
    assert fleet.starts == 2


def test_the_warmest_starts_first_and_starting_ones_leave_first() -> None:
    model = replace(MODEL, asleep=1)
    scaler = Told((0.0, 2), (3.0, 1))
    fleet = play(scaler, end=9.0, model=model)
    assert fleet.instances[0].seconds[Phase.READY] == pytest.approx(9.0 - CLIMB)
    assert fleet.instances[1].seconds[Phase.STARTING] == pytest.approx(3.0)
    assert scaler.seen[0] == Capacity(0, 0, None, CLIMB)
    assert scaler.seen[-1] == Capacity(1, 1, CLIMB, model.climb_s[model.rest])


def test_a_policy_that_serves_nobody_is_refused() -> None:
    with pytest.raises(InvalidInput, match="leaves 1 requests waiting"):
        play(Told((0.0, 0)), Request(1.0, 10, 1), end=2.0)


@settings(max_examples=40, deadline=None)
@given(busy=st.lists(st.tuples(st.integers(0, 4), st.lists(st.integers(1, 700), max_size=2)), min_size=1, max_size=6))
def test_requests_go_where_a_gateways_router_sends_them(busy: list[tuple[int, list[int]]]) -> None:
    """The same pairs are drawn, what is to be read counts first, then the requests; of full ones nobody gets any."""
    model, rig = replace(MODEL, slots=4, instances=len(busy)), Rig()
    fleet = Fleet(model, Fixed(1))
    for number, (instance, (running, prompts)) in enumerate(zip(fleet.instances, busy, strict=True)):
        instance.phase = Phase.READY
        instance.prefills.extend(Request(0.0, prompt, 1) for prompt in prompts)
        instance.running = [(1.0, place, Request(0.0, 1, 1)) for place in range(running)]
        rig.has(f"i{number}", slots=4)
        rig.fill(f"i{number}", instance.load)
        if prompts:
            rig.ready.unread[f"i{number}"] = sum(prompts) * BYTES_PER_TOKEN
    for _ in range(12):
        one = fleet._route(fleet.instances)
        assert rig.ready.choose(rig.now).instance == (None if one is None else f"i{one.number}")


loads = st.lists(st.tuples(st.floats(0.0, 8.0), st.integers(0, 300), st.integers(0, 40)), min_size=1, max_size=40).map(
    lambda rows: [(at, prompt, answer) for at, prompt, answer in rows]
)


@settings(max_examples=60, deadline=None)
@given(rows=loads, name=st.sampled_from([*names(MODEL)]))
def test_every_request_is_served_once_and_device_time_is_the_integral(rows: list[tuple[float, int, int]], name: str) -> None:
    came, requests = 0.0, []
    for gap, prompt, answer in rows:
        came += gap
        requests.append(Request(came, prompt, answer))
    fleet = play(build(name, MODEL), *requests, end=came + 1)
    for one in requests:
        assert one.served == 1
        assert one.came + MODEL.prefill(one.prompt) <= one.first_at + 1e-9
        assert one.first_at + max(0, one.answer - 1) * MODEL.decode_s <= one.done_at + 1e-4
        assert one.done_at < math.inf
    assert fleet.in_flight == 0
    for instance in fleet.instances:
        assert sum(instance.seconds.values()) == pytest.approx(fleet.closed_at)
    # No device works more than it is held.
    held = sum(one.seconds[phase] for one in fleet.instances for phase in (Phase.READY, Phase.DRAINING))
    assert sum(MODEL.prefill(one.prompt) for one in requests) <= held + 1e-6
    again = [Request(one.came, one.prompt, one.answer) for one in requests]
    play(build(name, MODEL), *again, end=came + 1)
    assert [(one.first_at, one.done_at) for one in again] == [(one.first_at, one.done_at) for one in requests]
