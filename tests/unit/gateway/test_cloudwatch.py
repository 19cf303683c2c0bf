"""Requests under CloudWatch's names: what an outcome counts as, microseconds, dimensions, what deletion leaves."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import generate_latest

from standby.domain.aws import component_endpoint
from standby.domain.endpoint import Endpoint, ScalePolicy, Variant
from standby.domain.instance import Activation, Phase, Rung
from standby.gateway import cloudwatch
from standby.gateway.accounts import Accounts
from standby.gateway.desk import AllRooms, Desk, Grant, Route
from standby.telemetry import metrics
from support.builders import TENANT, an_endpoint

LABELS = ("tenant", "EndpointName", "VariantName", "InferenceComponentName")


def desk_of(endpoint: Endpoint, **changes: Any) -> Desk:
    variant = Variant(model="m", policy=ScalePolicy(slots=4), **changes)
    return Desk(Route(endpoint, variant), AllRooms(0), lambda: 0.0, lambda: 0.0, lambda _desk, _urgent: None)


def value(name: str, endpoint: str, component: str = "") -> float | None:
    values = (TENANT, endpoint, "AllTraffic", component)
    return metrics.REGISTRY.get_sample_value(f"standby_aws_{name}", dict(zip(LABELS, values, strict=True)))


def grant(desk: Desk, *, activation: Activation | None = None, spillover: bool = False) -> Grant:
    return Grant("i1", ("127.0.0.1", 1), 1, Rung.READY, activation, desk, "AllTraffic", spillover)


@pytest.mark.parametrize(
    ("outcome", "counters"),
    [
        ("ok", (metrics.AWS_INVOCATIONS,)),
        ("client_gone", (metrics.AWS_INVOCATIONS,)),
        ("joined", ()),
        ("engine_4xx", (metrics.AWS_INVOCATIONS, metrics.AWS_4XX)),
        ("throttled", (metrics.AWS_INVOCATIONS, metrics.AWS_4XX)),
        ("model_not_ready", (metrics.AWS_INVOCATIONS, metrics.AWS_4XX)),
        ("engine_5xx", (metrics.AWS_INVOCATIONS, metrics.AWS_5XX)),
        ("engine_died", (metrics.AWS_INVOCATIONS, metrics.AWS_5XX)),
        ("invocation_timeout", (metrics.AWS_INVOCATIONS, metrics.AWS_5XX)),
        ("broken_stream", (metrics.AWS_INVOCATIONS, metrics.AWS_5XX)),
    ],
)
def test_what_an_outcome_counts_as(outcome: str, counters: tuple[object, ...]) -> None:
    assert cloudwatch.counted_as(outcome) == counters


def test_times_are_microseconds_and_a_start_counts_once() -> None:
    accounts, desk = Accounts(), desk_of(an_endpoint(name="timed"))
    account = accounts.of(desk)
    climbed = Activation(id="a1", from_rung=Rung.COLD, phases_ms={Phase.LOADED: 1500.0, Phase.PROBED: 500.0})
    for activation in (climbed, climbed, None):
        account.ended("ok")
        account.served(grant(desk, activation=activation), 0.25, 1.0)
    accounts.settle()
    assert value("Invocations_total", "timed") == 3
    assert (value("ModelLatency_sum", "timed"), value("ModelLatency_count", "timed")) == (2_250_000, 3)
    assert value("OverheadLatency_sum", "timed") == 750_000
    assert (value("ModelSetupTime_sum", "timed"), value("ModelSetupTime_count", "timed")) == (2_000_000, 1)


def test_concurrency_of_a_serverless_variant() -> None:
    accounts, desk = Accounts(), desk_of(an_endpoint(name="serverless"), concurrency_limit=4, provisioned=2)
    account = accounts.of(desk)
    account.served(grant(desk), 0.0, 0.1)
    account.served(grant(desk, spillover=True), 0.0, 0.1)
    desk.granted = 3
    accounts.refresh([desk])
    assert value("ServerlessConcurrentExecutionsUtilization", "serverless") == 0.75
    assert value("ServerlessProvisionedConcurrencyExecutions", "serverless") == 2
    assert value("ServerlessProvisionedConcurrencyUtilization", "serverless") == 1.0
    assert value("ServerlessProvisionedConcurrencyInvocations_total", "serverless") == 1
    assert value("ServerlessProvisionedConcurrencySpilloverInvocations_total", "serverless") == 1


def test_a_component_has_its_endpoints_dimensions_and_its_own() -> None:
    """Deleting one component leaves the series of the other."""
    accounts = Accounts()
    desks = [desk_of(an_endpoint(name=component_endpoint(name), served_name=f"base/{name}")) for name in ("one", "two")]
    for desk in desks:
        accounts.of(desk).ended("ok")
    accounts.settle()
    assert value("Invocations_total", "base", "one") == value("Invocations_total", "base", "two") == 1
    desks[0].endpoint_removed()
    accounts.close(desks[0])
    assert value("Invocations_total", "base", "one") is None
    assert value("Invocations_total", "base", "two") == 1


def test_a_deleted_endpoint_has_no_series_and_its_last_requests_make_none() -> None:
    accounts, desk = Accounts(), desk_of(an_endpoint(name="gone-soon"), concurrency_limit=4)
    account = accounts.of(desk)
    account.ended("ok")
    account.served(grant(desk), 0.0, 0.1)
    accounts.refresh([desk])
    assert b'EndpointName="gone-soon"' in generate_latest(metrics.REGISTRY)
    desk.endpoint_removed()
    accounts.close(desk)
    account.ended("engine_5xx")
    account.served(grant(desk), 0.0, 0.1)
    accounts.refresh([desk])
    assert b'EndpointName="gone-soon"' not in generate_latest(metrics.REGISTRY)


def test_gauges_of_a_variant_that_an_update_took_away_do_not_keep_their_last_value() -> None:
    accounts, desk = Accounts(), desk_of(an_endpoint(name="updated"), concurrency_limit=4, provisioned=2)
    desk.granted = 3
    accounts.refresh([desk])
    accounts.refresh([desk_of(an_endpoint(name="another"), concurrency_limit=4)])
    gauges = ("ServerlessConcurrentExecutionsUtilization", "ServerlessProvisionedConcurrencyExecutions")
    assert [value(name, "updated") for name in gauges] == [None, None]
    assert value(gauges[0], "another") == 0
