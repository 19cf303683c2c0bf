"""Several gateways, and gateways that die: what one has begun another one ends, and two never do the same twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from standby.bus.tables_set import open_tables
from standby.domain.access import Quotas
from standby.domain.endpoint import EndpointStatus
from standby.sagemaker.errors import AwsError
from support.control_rig import (
    ONE,
    Artifacts,
    ControlRig,
    control_context,
    control_rig,
    controller_and_node,
)
from support.nats_server import nats_server
from support.waiting import until

_QUICK: dict[str, Any] = {"beat_s": 0.05, "take_over_s": 0.4, "sweep_s": 0.05, "settle_s": 30.0}


@pytest.fixture
def timing() -> dict[str, Any]:
    """The pace of both gateways."""
    return _QUICK


@pytest.fixture
async def two(tmp_path: Path, timing: dict[str, Any]) -> AsyncIterator[tuple[ControlRig, ControlRig]]:
    """Two gateways over one store, each with its own view of the artifacts."""
    async with AsyncExitStack() as stack:
        nats = await stack.enter_async_context(nats_server(tmp_path))
        bus = await stack.enter_async_context(nats.bus())
        tables = await open_tables(bus)
        await stack.enter_async_context(controller_and_node(bus, tables))
        rigs = []
        for name in ("gateway/one", "gateway/two"):
            artifacts = Artifacts()
            made = await stack.enter_async_context(control_context(bus, artifacts, source=name, **timing))
            rigs.append(ControlRig(nats, tables, *made, artifacts))
        yield rigs[0], rigs[1]


@pytest.mark.parametrize("timing", [{**_QUICK, "take_over_s": 3.0}])
async def test_a_living_look_is_left_alone_by_the_other_gateway(two: tuple[ControlRig, ControlRig]) -> None:
    one, other = two
    await one.model(uri="s3://models/slow.tar.gz")

    async def beaten() -> bool:
        entry = await one.tables.aws.get(f"{ONE}.model.m")
        assert entry is not None
        return int(entry.value.state.get("beat", 0)) >= 70  # more than the other waits for a sign of life

    await until(beaten)
    assert other.artifacts.looks == []
    one.artifacts.release.set()
    await until(lambda: f"{ONE}.m" in other.context.records.copies.models.entries)


async def test_a_dead_gateways_look_and_endpoint_are_taken_over(two: tuple[ControlRig, ControlRig]) -> None:
    """State lies in the table alone: the gateway that took the request is gone, and its client sees nothing of it."""
    one, other = two
    await one.model(uri="s3://models/slow.tar.gz")
    await one.config()
    await one.endpoint()
    await one.background.stop()
    other.artifacts.release.set()

    async def in_service() -> bool:
        return bool((await other.describe())["EndpointStatus"] == "InService")

    await until(in_service)
    assert other.artifacts.looks == ["s3://models/slow.tar.gz"]


async def test_an_update_of_a_dead_gateway_is_taken_back_by_the_other(two: tuple[ControlRig, ControlRig]) -> None:
    one, other = two
    await one.serving()
    await one.model("bad", "s3://models/slow-gone.tar.gz")
    await one.config("bad", "bad")
    await one.call("UpdateEndpoint", EndpointName="e", EndpointConfigName="bad")
    await one.background.stop()
    other.artifacts.release.set()

    async def taken_back() -> bool:
        told = await other.describe()
        return told["EndpointStatus"] == "InService" and "no such object" in told.get("FailureReason", "")

    await until(taken_back)
    assert (await other.describe())["EndpointConfigName"] == "c"


async def test_of_two_creations_at_once_one_wins(two: tuple[ControlRig, ControlRig]) -> None:
    one, other = two
    await one.model()
    await one.config()
    await other.call("DescribeEndpointConfig", EndpointConfigName="c")
    ends = await asyncio.gather(one.endpoint(), other.endpoint(), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["AwsError", "NoneType"]
    assert (await one.describe())["EndpointStatus"] == "InService"


async def test_a_quota_holds_over_many_creations_at_once(tmp_path: Path) -> None:
    """What is checked before a write is checked once more after it."""
    async with control_rig(tmp_path) as rig:
        rig.quotas[ONE] = Quotas(endpoints=3)
        await rig.model()
        await rig.config()
        ends = await asyncio.gather(*(rig.endpoint(f"e{number}") for number in range(12)), return_exceptions=True)
        assert {end.code for end in ends if isinstance(end, AwsError)} == {"ResourceLimitExceeded"}
        assert len((await rig.call("ListEndpoints", MaxResults=100))["Endpoints"]) <= 3


async def test_of_two_updates_at_once_one_wins(two: tuple[ControlRig, ControlRig]) -> None:
    one, other = two
    await one.serving()
    await one.model("late", "s3://models/slow.tar.gz")
    await one.config("late", "late")
    await other.describe()
    update = {"EndpointName": "e", "EndpointConfigName": "late"}
    ends = await asyncio.gather(
        one.call("UpdateEndpoint", **update), other.call("UpdateEndpoint", **update), return_exceptions=True
    )
    refused = [end for end in ends if isinstance(end, AwsError)]
    assert len(refused) == 1
    assert "Cannot update in-progress endpoint" in str(refused[0].message)
    one.artifacts.release.set()


async def test_what_nobody_refers_to_is_removed(tmp_path: Path) -> None:
    """Own configs of gone endpoints, copies of deleted models, and what was said of the endpoint."""
    async with control_rig(tmp_path, **_QUICK) as rig:
        await rig.serving()
        assert (await rig.describe())["EndpointStatus"] == "InService"
        await rig.call("DeleteModel", ModelName="m")
        await rig.call("DeleteEndpoint", EndpointName="e")

        async def clean() -> bool:
            left = {**await rig.tables.endpoint_configs.list(), **await rig.tables.models.list(), **await rig.tables.aws.list()}
            return set(left) == {f"{ONE}.endpoint-config.c"}

        await until(clean)


async def test_what_serves_is_never_removed(tmp_path: Path) -> None:
    async with control_rig(tmp_path, **_QUICK) as rig:
        await rig.serving()
        await rig.describe()
        await rig.call("DeleteModel", ModelName="m")
        await asyncio.sleep(0.6)  # a dozen sweeps
        endpoint = await rig.tables.endpoints.get(f"{ONE}.e")
        assert endpoint is not None
        assert endpoint.value.status is EndpointStatus.IN_SERVICE
        config = await rig.tables.endpoint_configs.get(f"{ONE}.{endpoint.value.config}")
        assert config is not None
        assert await rig.tables.models.get(f"{ONE}.{config.value.variants[0].model}") is not None
