"""What a tier does after each setback, and which priority a request has."""

from __future__ import annotations

import pytest

from standby.domain.priority import Priority
from standby.domain.traffic import PriorityPolicy, Tier
from standby.gateway.tiers import RULES, Setback, Step, next_step, priority_of

Q, E, G = Step.QUEUE, Step.ELSEWHERE, Step.GIVE_UP


@pytest.mark.parametrize(
    ("tier", "steps"),
    [
        (Tier.CRITICAL, {"refused": Q, "not-begun": Q, "declined": E, "maybe-begun": E, "lethal": G, "grave": G}),
        (Tier.STANDARD, {"refused": Q, "not-begun": Q, "declined": E, "maybe-begun": G, "lethal": G, "grave": G}),
        (Tier.BEST_EFFORT, {"refused": Q, "not-begun": G, "declined": G, "maybe-begun": G, "lethal": G, "grave": G}),
    ],
)
def test_what_each_tier_does(tier: Tier, steps: dict[str, Step]) -> None:
    assert {setback.value: next_step(tier, setback, retried=False) for setback in Setback} == steps


@pytest.mark.parametrize("tier", Tier)
@pytest.mark.parametrize("setback", Setback)
def test_there_is_one_retry_but_what_nobody_has_begun_is_not_lost(tier: Tier, setback: Setback) -> None:
    kept = {Setback.REFUSED} if tier is Tier.BEST_EFFORT else {Setback.REFUSED, Setback.NOT_BEGUN}
    expected = Step.QUEUE if setback in kept else Step.GIVE_UP
    assert next_step(tier, setback, retried=True) is expected


def test_best_effort_alone_has_no_breaker() -> None:
    assert {tier: rules.breaker for tier, rules in RULES.items()} == {
        Tier.CRITICAL: True,
        Tier.STANDARD: True,
        Tier.BEST_EFFORT: False,
    }


@pytest.mark.parametrize(
    ("wished", "key", "priority"),
    [
        (None, None, Priority.NORMAL),
        (Priority.URGENT, None, Priority.HIGH),
        (Priority.BATCH, Priority.HIGH, Priority.BATCH),
        (Priority.HIGH, Priority.BATCH, Priority.BATCH),
        (None, Priority.URGENT, Priority.NORMAL),
        (None, Priority.BATCH, Priority.BATCH),
    ],
)
def test_priority_is_a_wish_within_what_endpoint_and_key_allow(
    wished: Priority | None, key: Priority | None, priority: Priority
) -> None:
    policy = PriorityPolicy(highest=Priority.HIGH)
    assert priority_of(policy, wished, key) is priority
