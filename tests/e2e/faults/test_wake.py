"""First requests at zero: one start whatever their number, nothing before one token, and a load that outlives its caller."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from support.deployment import PARIS, Deployment, aws_error_of, text_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATEWAYS = 2


async def test_forty_first_requests_over_two_gateways_start_one_engine(there: Deployment) -> None:
    """Field case B07: all are answered by one start, and an endpoint that is warm goes on answering meanwhile."""
    await there.endpoint("neighbour")
    await there.warm("neighbour")
    await there.endpoint("herd", knobs={"start_delay_s": 6.0}, max_instances=2, slots=4)
    firsts = [asyncio.create_task(there.invoke("herd", gateway=number % 2)) for number in range(40)]
    await there.happened(lambda: there.spawns("herd"), "herd starts")
    meanwhile = [await there.invoke("neighbour", gateway=number % 2) for number in range(10)]
    assert not any(first.done() for first in firsts)
    assert [text_of(answer) for answer in meanwhile] == [PARIS] * 10
    answers = await asyncio.gather(*firsts)
    assert [text_of(answer) for answer in answers] == [PARIS] * 40
    assert {answer.headers["x-standby-rung"] for answer in answers} == {"cold"}
    await there.happened(lambda: there.of_kind("activation", "herd"), "the activation is told")
    assert starts_until_ready(there, "herd") == 1


async def test_callers_who_give_up_and_ask_again_start_nothing_more(there: Deployment) -> None:
    """Field case B07, with clients that time out and retry as the SDKs do."""
    await there.endpoint("retries", knobs={"start_delay_s": 4.0}, max_instances=2, slots=2)
    answers = await asyncio.gather(*(impatient(there, "retries", number % 2) for number in range(8)))
    assert [text_of(answer) for answer in answers] == [PARIS] * 8
    await there.became("retries", "ready")
    assert starts_until_ready(there, "retries") == 1
    await there.until_total("standby_requests_queued", "retries", 0)
    await there.until_total("standby_requests_in_flight", "retries", 0)


async def impatient(there: Deployment, endpoint: str, gateway: int) -> httpx.Response:
    while True:
        try:
            async with asyncio.timeout(1.0):
                return await there.invoke(endpoint, gateway=gateway)
        except TimeoutError:
            continue


async def test_requests_wait_until_the_engine_can_generate(there: Deployment) -> None:
    """Field case B10: listening is not loaded; the engine's own 503 is seen by no caller, and the probe is no request."""
    await there.endpoint("loading", knobs={"ready_after_s": 1.0})
    answers = await asyncio.gather(*(there.invoke("loading", gateway=number % 2) for number in range(4)))
    assert [text_of(answer) for answer in answers] == [PARIS] * 4
    await there.became("loading", "ready")
    assert there.spawns("loading") == 1
    await there.until_total("standby_requests_total", "loading", 4)


async def test_an_engine_whose_health_lies_is_not_ready(there: Deployment) -> None:
    """Field case B10: health is 200 from the start, tokens come a second later; until then requests stay queued."""
    await there.endpoint("liar", knobs={"ready_after_s": 1.0, "health_lies": True})
    answers = await asyncio.gather(*(there.invoke("liar", gateway=number % 2) for number in range(4)))
    assert [text_of(answer) for answer in answers] == [PARIS] * 4
    await there.became("liar", "ready")
    assert there.spawns("liar") == 1


async def test_an_engine_that_cannot_generate_is_never_ready(there: Deployment) -> None:
    """Field case B10: health is 200 and the first completion is 500; callers get the platform's error with the reason."""
    await there.endpoint("mute", knobs={"health_lies": True, "first_completion_500": True})
    answers = await asyncio.gather(*(there.invoke("mute", gateway=number % 2) for number in range(4)))
    for answer in answers:
        error = aws_error_of(answer, 424, "endpoint_failed")
        assert "probe with 500" in error["Message"]
        assert int(answer.headers["x-amz-retry-after"]) >= 1000
    await there.became("mute", "failed")
    assert "ready" not in there.states("mute")


async def test_a_load_outlives_its_caller_and_serves_the_next(there: Deployment) -> None:
    """Field case B11: the load is longer than keep_ready and its caller leaves; loading counts as activity."""
    await there.endpoint("slow", knobs={"start_delay_s": 5.0}, keep_ready="0.3s", keep_asleep="0s")
    await is_asked_and_left(there, "slow")
    await there.until_state("slow", "starting")
    second = await there.invoke("slow", gateway=1)
    assert text_of(second) == PARIS
    await there.became("slow", "ready")
    until_ready = there.states("slow")[: there.states("slow").index("ready")]
    assert until_ready.count("starting") == 1
    assert not {"draining", "stopping"} & set(until_ready)


async def test_a_load_that_nobody_waits_for_reaches_ready_before_it_falls_idle(there: Deployment) -> None:
    """Field case B11: the idle clock starts when the instance becomes ready."""
    await there.endpoint("left", knobs={"start_delay_s": 3.0}, keep_ready="0.3s", keep_asleep="0s")
    await is_asked_and_left(there, "left")
    await there.happened(lambda: there.states("left")[-1:] == ["staged"] and "draining" in there.states("left"), "idle")
    climbed, sank = there.states("left").index("ready"), there.states("left").index("draining")
    assert climbed < sank
    at = [change["at"] for change in there.of_kind("transition", "left")]
    assert at[sank] - at[climbed] >= 0.3
    assert there.spawns("left") == 1


async def is_asked_and_left(there: Deployment, endpoint: str) -> None:
    """Ask an endpoint at zero and leave once its engine starts; return when nobody waits for it any more."""
    caller = asyncio.create_task(there.invoke(endpoint))
    await there.became(endpoint, "starting")
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await there.until_total("standby_requests_queued", endpoint, 0)


def starts_until_ready(there: Deployment, endpoint: str) -> int:
    """How many engines were started before the first was ready; what a crowd needs beyond it comes later."""
    states = there.states(endpoint)
    return states[: states.index("ready")].count("starting")
