"""A variant of two engines: one whose every instance is dead is passed over at once, and gets requests again in time."""

from __future__ import annotations

import pytest

from standby.domain.instance import InstanceState
from standby.domain.model import EngineKind
from standby.domain.traffic import HybridChoice, HybridPolicy, Tier, TrafficPolicy
from standby.gateway import desk as desk_module
from standby.gateway.route import RoutePart
from support.door_rig import SLOTS
from support.failing_engines import text_of, went
from support.failover_rig import FailoverRig, answers, failover_rig
from support.waiting import until

# Far more than a slow machine takes for a few requests.
RETURN_AFTER_S = 1000.0
# Longer than any request may wait: whoever waited for a dead engine would get no answer.
CONNECT_PAUSE_S = 100.0
PARTS = (
    RoutePart("usual", EngineKind.LLAMA_CPP, "", SLOTS),
    RoutePart("long", EngineKind.TENSORRT_LLM, "", SLOTS),
)


def traffic(tier: Tier, wished: str) -> TrafficPolicy:
    """A policy that prefers one of the two for every prompt."""
    choice = HybridChoice(
        policy=HybridPolicy.THRESHOLDS, long_prompt=1 if wished == "long" else 10**6, return_after=RETURN_AFTER_S
    )
    return TrafficPolicy(tier=tier, hybrid=choice)


async def routed(rig: FailoverRig) -> tuple[str, str]:
    """Ask; return whose answer it was, and what it says of its route."""
    answer = await rig.ask(body={"prompt": "How are you?"})
    assert answer.status == 200, answer.body
    return text_of(answer.body), answer.headers["x-standby-route"]


@pytest.fixture(autouse=True)
def _nobody_waits_for_an_engine_that_does_not_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "CONNECT_PAUSE_S", CONNECT_PAUSE_S)


@pytest.mark.parametrize("tier", [Tier.CRITICAL, Tier.STANDARD])
@pytest.mark.parametrize("wished", ["usual", "long"])
@pytest.mark.parametrize("told", [True, False], ids=["its record says so", "found out by the request"])
async def test_an_engine_that_is_dead_is_replaced_by_the_other_until_it_was_well_for_long_enough(
    tier: Tier, wished: str, told: bool
) -> None:
    async with failover_rig(answers, answers, traffic=traffic(tier, wished), parts=PARTS) as rig:
        first, other = rig.replicas if wished == "usual" else reversed(rig.replicas)
        assert await routed(rig) == (first.name, rig.last.attempts[0].reason)
        await rig.dead(first)
        if told:
            rig.gateway.desk.instance_changed(rig.record(first, state=InstanceState.FAILED), seen=0)
        who, route = await routed(rig)
        assert who == other.name
        assert went(rig) == ([other.name] if told else [first.name, other.name])
        assert route.startswith("" if told else "attempt 2: ")
        assert other.backend in route
        who, route = await routed(rig)
        assert (who, went(rig)) == (other.name, [other.name])
        if not told:
            assert f"{first.backend} has failed" in route

        await rig.revive(first)
        for _ in range(3):
            who, route = await routed(rig)
            assert who == other.name
            assert f"{first.backend} is not well for long enough" in route
        rig.clock.ahead_s += 0.8 * RETURN_AFTER_S
        assert (await routed(rig))[0] == other.name
        rig.clock.ahead_s += 0.2 * RETURN_AFTER_S
        who, route = await routed(rig)
        assert who == first.name
        assert first.backend in route
        await until(rig.settled)


async def test_the_last_engine_gets_requests_though_it_has_just_come_back() -> None:
    async with failover_rig(answers, answers, traffic=traffic(Tier.STANDARD, "usual"), parts=PARTS) as rig:
        first, other = rig.replicas
        await rig.dead(first)
        assert (await routed(rig))[0] == other.name
        await rig.revive(first)
        assert (await routed(rig))[0] == other.name
        await rig.dead(other)
        who, route = await routed(rig)
        assert who == first.name
        assert route.startswith("attempt 2: ")
        who, route = await routed(rig)
        assert (who, went(rig)) == (first.name, [first.name])
        assert f"{other.backend} has failed" in route
        await until(rig.settled)
