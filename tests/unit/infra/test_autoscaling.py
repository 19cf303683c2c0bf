"""The examples for Kubernetes parse, and ask for what is exposed."""

from __future__ import annotations

import pytest

from support import autoscaling, promql


def test_there_is_an_example_of_each_kind() -> None:
    assert {one["kind"] for one in autoscaling.documents()} == {"ConfigMap", "HorizontalPodAutoscaler", "ScaledObject"}


@pytest.mark.parametrize("query", autoscaling.queries())
def test_a_query_names_only_what_is_exposed(query: str) -> None:
    assert promql.complaints(query) == []


def test_the_autoscaler_reads_what_the_adapter_serves() -> None:
    (scaler,) = (one for one in autoscaling.documents() if one["kind"] == "HorizontalPodAutoscaler")
    served = {rule["name"]["as"] for rule in autoscaling.adapter()["rules"]}
    assert {metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"]} == served


@pytest.mark.parametrize("name", ["standby-gateway", "standby-node"])
def test_nothing_is_scaled_to_zero(name: str) -> None:
    """Gateways wake endpoints and nodes hold them: with none of either nobody would come back."""
    bounds = [
        (spec.get("minReplicaCount") or spec.get("minReplicas"), spec.get("maxReplicaCount") or spec.get("maxReplicas"))
        for one in autoscaling.documents()
        if (spec := one.get("spec", {})) and one["metadata"]["name"] == name
    ]
    assert bounds
    assert all(1 <= low < high for low, high in bounds)


def test_every_trigger_has_a_threshold_and_an_address() -> None:
    triggers = [
        trigger for one in autoscaling.documents() if one["kind"] == "ScaledObject" for trigger in one["spec"]["triggers"]
    ]
    assert len(triggers) == 4
    for trigger in triggers:
        assert trigger["type"] == "prometheus"
        assert float(trigger["metadata"]["threshold"]) > 0
        assert trigger["metadata"]["serverAddress"].startswith("http")
