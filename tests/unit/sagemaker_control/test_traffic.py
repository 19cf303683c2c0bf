"""Traffic policies as tags: what they may say, which wins, and where they say nothing."""

from __future__ import annotations

import pytest

from standby.domain.errors import InvalidInput
from standby.domain.priority import Priority
from standby.domain.traffic import HybridPolicy, QueueMode, Tier, TrafficPolicy
from standby.sagemaker.control import policy
from standby.sagemaker.control.tagging import refuse_traffic, tags_of
from standby.sagemaker.control.traffic import traffic_from, traffic_tags
from standby.sagemaker.errors import AwsError

ALL = {
    "standby:tier": "critical",
    "standby:latency-target": "500ms",
    "standby:priority": "High",
    "standby:max-priority": "high",
    "standby:queue": "static",
    "standby:hybrid": "thresholds",
}


def test_each_tag_sets_its_field_and_leaves_the_rest() -> None:
    made = traffic_from(traffic_tags({**ALL, "team": "x", "standby:keep-ready": "5m"}))
    assert (made.tier, made.latency_target, made.queue) == (Tier.CRITICAL, 0.5, QueueMode.STATIC)
    assert (made.priority.default, made.priority.highest) == (Priority.HIGH, Priority.HIGH)
    assert made.hybrid.policy is HybridPolicy.THRESHOLDS
    assert made.priority.weights == TrafficPolicy().priority.weights
    assert traffic_from({}) == TrafficPolicy()


def test_the_later_tags_win() -> None:
    made = traffic_from({"standby:tier": "critical", "standby:priority": "batch"}, {"standby:tier": "standard"})
    assert (made.tier, made.priority.default) == (Tier.STANDARD, Priority.BATCH)


def test_the_scale_policy_leaves_them_alone() -> None:
    assert policy.from_tags({**ALL, "standby:keep-ready": "5m"}) == {"keep_ready": "5m"}
    with pytest.raises(InvalidInput, match="standby:tier"):
        policy.from_tags({"standby:teir": "critical"})


@pytest.mark.parametrize(
    ("tag", "value", "words"),
    [
        ("standby:tier", "gold", "standby:tier='gold': Input should be 'critical', 'standard' or 'best-effort'"),
        ("standby:latency-target", "soon", "standby:latency-target='soon'"),
        ("standby:priority", "now", "standby:priority='now'"),
        ("standby:queue", "deep", "'adaptive' or 'static'"),
    ],
)
def test_a_wrong_value_is_told_with_its_tag(tag: str, value: str, words: str) -> None:
    with pytest.raises(AwsError) as refused:
        tags_of([{"Key": tag, "Value": value}])
    assert words in (refused.value.message or "")


def test_what_cannot_be_together_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the default priority urgent is above the highest one, normal"):
        traffic_from({"standby:priority": "urgent"}, {"standby:max-priority": "normal"})


def test_a_model_has_none_of_them() -> None:
    refuse_traffic({"team": "x", "standby:keep-ready": "5m"})
    with pytest.raises(AwsError, match="standby:tier says nothing of a model"):
        refuse_traffic({"standby:tier": "critical"})
