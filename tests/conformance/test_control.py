"""The control plane as boto3 sees it, unmodified: only ``endpoint_url`` differs from AWS."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, WaiterError

from standby.gateway import main
from support.aws_gateway import ONE, TWO, AwsGateway, aws_gateway
from support.control_rig import ROLE, SERVERLESS, Artifacts, CrashingNode, controller_and_node
from support.waiting import until

POLL = {"Delay": 0.1, "MaxAttempts": 600}


@dataclass
class Client:
    """boto3's client, called in threads; ``raw`` is the client itself."""

    gateway: AwsGateway
    artifacts: Artifacts
    node: CrashingNode
    raw: Any

    async def __call__(self, operation: str, **request: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self.run(partial(getattr(self.raw, operation), **request))
        return answer

    async def run(self, call: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(call)

    async def refused(self, operation: str, **request: Any) -> str:
        """Return the message of a ValidationException."""
        with pytest.raises(ClientError) as error:
            await self(operation, **request)
        answer = error.value.response
        assert answer["Error"]["Code"] == "ValidationException"
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 400
        assert answer["ResponseMetadata"]["RequestId"]
        return str(answer["Error"]["Message"])

    async def model(self, name: str = "m", uri: str = "s3://models/m.tar.gz") -> None:
        container = {"Image": "djl-inference:lmi", "ModelDataUrl": uri, "Environment": {"STANDBY_ENGINE": "fake"}}
        await self("create_model", ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)

    async def config(self, name: str = "c", model: str = "m", **changes: Any) -> None:
        variant = {"VariantName": "AllTraffic", "ModelName": model, "ServerlessConfig": {**SERVERLESS, **changes}}
        await self("create_endpoint_config", EndpointConfigName=name, ProductionVariants=[variant])

    async def serving(self, name: str = "e") -> None:
        await self.model()
        await self.config()
        await self("create_endpoint", EndpointName=name, EndpointConfigName="c")
        await self.wait("endpoint_in_service", name)

    async def wait(self, waiter: str, name: str = "e") -> None:
        await self.run(partial(self.raw.get_waiter(waiter).wait, EndpointName=name, WaiterConfig=POLL))


@pytest.fixture
async def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    artifacts = Artifacts()

    async def inspect(uri: str, options: Any, *, credentials: Any = None, hint: Any = None, **_allowed: bool) -> Any:
        return await artifacts.inspect(uri, options, credentials=credentials, hint=hint)

    monkeypatch.setattr(main, "inspect", inspect)
    async with (
        aws_gateway(tmp_path) as gateway,
        gateway.nats.bus() as bus,
        controller_and_node(bus, gateway.tables) as node,
    ):
        raw = await _boto3(gateway, ONE)
        yield Client(gateway, artifacts, node, raw)
        raw.close()


async def _boto3(gateway: AwsGateway, tenant: str) -> Any:
    key = await gateway.key(tenant)
    config = Config(retries={"total_max_attempts": 1})
    return boto3.session.Session().client("sagemaker", "us-east-1", endpoint_url=gateway.url, config=config, **key)


@pytest.mark.check(1)
async def test_01_a_missing_endpoint(client: Client) -> None:
    text = await client.refused("describe_endpoint", EndpointName="nope")
    assert text == f'Could not find endpoint "arn:aws:sagemaker:us-east-1:{ONE}:endpoint/nope".'


@pytest.mark.check(2)
async def test_02_a_model_twice(client: Client) -> None:
    await client.model()
    text = await client.refused("create_model", ModelName="m", PrimaryContainer={"Image": "i"}, ExecutionRoleArn=ROLE)
    assert text.startswith("Cannot create already existing model")


@pytest.mark.check(3)
@pytest.mark.check(4)
@pytest.mark.check(5)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MaxConcurrency": 500}, "less than or equal to 200"),
        ({"MemorySizeInMB": 1500}, "1500"),
        ({"MaxConcurrency": 2, "ProvisionedConcurrency": 4}, "ProvisionedConcurrency 4"),
    ],
)
async def test_03_to_05_serverless_limits(client: Client, changes: dict[str, int], words: str) -> None:
    await client.model()
    variant = {"VariantName": "v", "ModelName": "m", "ServerlessConfig": {**SERVERLESS, **changes}}
    text = await client.refused("create_endpoint_config", EndpointConfigName="c", ProductionVariants=[variant])
    assert words in text


@pytest.mark.check(6)
@pytest.mark.check(7)
async def test_06_and_07_what_is_named_must_exist(client: Client) -> None:
    variant = {"VariantName": "v", "ModelName": "nope", "ServerlessConfig": SERVERLESS}
    text = await client.refused("create_endpoint_config", EndpointConfigName="c", ProductionVariants=[variant])
    assert text.startswith('Could not find model "')
    text = await client.refused("create_endpoint", EndpointName="e", EndpointConfigName="nope")
    assert text.startswith('Could not find endpoint configuration "')


@pytest.mark.check(8)
async def test_08_the_waiter_returns_at_its_first_look(client: Client) -> None:
    """With AWS's own pace of 30 seconds between two looks: it must not need a second one."""
    await client.model()
    await client.config()
    await client("create_endpoint", EndpointName="e", EndpointConfigName="c", Tags=[{"Key": "a", "Value": "b"}])
    async with asyncio.timeout(25):
        await client.run(partial(client.raw.get_waiter("endpoint_in_service").wait, EndpointName="e"))
    told = await client("describe_endpoint", EndpointName="e")
    assert told["EndpointStatus"] == "InService"
    assert isinstance(told["CreationTime"], dt.datetime)
    assert isinstance(told["LastModifiedTime"], dt.datetime)
    assert told["ProductionVariants"][0]["CurrentServerlessConfig"] == SERVERLESS
    config = await client("describe_endpoint_config", EndpointConfigName="c")
    assert config["ProductionVariants"][0]["ServerlessConfig"] == SERVERLESS
    model = await client("describe_model", ModelName="m")
    assert model["PrimaryContainer"]["ModelDataUrl"] == "s3://models/m.tar.gz"
    assert model["ExecutionRoleArn"] == ROLE


@pytest.mark.check(9)
async def test_09_an_endpoint_that_fails(client: Client) -> None:
    await client.model(uri="s3://models/crash.tar.gz")
    await client.config(ProvisionedConcurrency=1)
    await client("create_endpoint", EndpointName="e", EndpointConfigName="c")
    with pytest.raises(WaiterError):
        await client.wait("endpoint_in_service")
    told = await client("describe_endpoint", EndpointName="e")
    assert told["EndpointStatus"] == "Failed"
    assert "did not pass the ping health check" in told["FailureReason"]
    assert "no such tensor" in told["FailureReason"]
    await client.refused("update_endpoint", EndpointName="e", EndpointConfigName="c")
    await client("delete_endpoint", EndpointName="e")


@pytest.mark.check(10)
async def test_10_deletion_is_over_at_the_waiters_first_look(client: Client) -> None:
    await client.serving()
    await client("delete_endpoint", EndpointName="e")
    async with asyncio.timeout(25):
        await client.run(partial(client.raw.get_waiter("endpoint_deleted").wait, EndpointName="e"))
    assert "Could not find" in await client.refused("delete_endpoint", EndpointName="e")


@pytest.mark.check(11)
async def test_11_a_change_while_another_one_is_under_way(client: Client) -> None:
    await client.model(uri="s3://models/slow.tar.gz")
    await client.config()
    await client("create_endpoint", EndpointName="e", EndpointConfigName="c")
    text = await client.refused("update_endpoint", EndpointName="e", EndpointConfigName="c")
    assert text == f'Cannot update in-progress endpoint "arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e".'
    client.artifacts.release.set()
    await client.wait("endpoint_in_service")


@pytest.mark.check(12)
async def test_12_an_update_changes_the_config_when_it_is_in_service(client: Client) -> None:
    await client.serving()
    await client.model("m2", "s3://models/m2.tar.gz")
    await client.config("c2", "m2", MemorySizeInMB=1024)
    await client("update_endpoint", EndpointName="e", EndpointConfigName="c2")
    await client.wait("endpoint_in_service")
    told = await client("describe_endpoint", EndpointName="e")
    assert told["EndpointConfigName"] == "c2"
    assert told["ProductionVariants"][0]["CurrentServerlessConfig"]["MemorySizeInMB"] == 1024


@pytest.mark.check(12)
async def test_12_an_update_that_cannot_start_is_rolled_back(client: Client) -> None:
    await client.model()
    await client.config(ProvisionedConcurrency=1)
    await client("create_endpoint", EndpointName="e", EndpointConfigName="c")
    await client.wait("endpoint_in_service")
    await client.model("bad", "s3://models/crash.tar.gz")
    await client.config("bad", "bad", ProvisionedConcurrency=1)
    await client("update_endpoint", EndpointName="e", EndpointConfigName="bad")
    await client.wait("endpoint_in_service")
    told = await client("describe_endpoint", EndpointName="e")
    assert told["EndpointConfigName"] == "c"
    assert "no such tensor" in told["FailureReason"]


@pytest.mark.check(13)
async def test_13_weights_and_capacities(client: Client) -> None:
    await client.serving()
    wanted = {"VariantName": "AllTraffic", "ServerlessUpdateConfig": {"MaxConcurrency": 3}}
    await client("update_endpoint_weights_and_capacities", EndpointName="e", DesiredWeightsAndCapacities=[wanted])
    told = await client("describe_endpoint", EndpointName="e")
    assert told["ProductionVariants"][0]["CurrentServerlessConfig"]["MaxConcurrency"] == 3
    text = await client.refused(
        "update_endpoint_weights_and_capacities",
        EndpointName="e",
        DesiredWeightsAndCapacities=[{"VariantName": "bad", "DesiredWeight": 1}],
    )
    assert "is/are not present within endpoint configuration" in text


@pytest.mark.check(14)
async def test_14_pages_of_25_endpoints(client: Client) -> None:
    await client.model()
    await client.config()
    for number in range(25):
        await client("create_endpoint", EndpointName=f"e{number:02}", EndpointConfigName="c")

    def pages() -> list[list[str]]:
        pager = client.raw.get_paginator("list_endpoints").paginate(PaginationConfig={"PageSize": 10})
        return [[one["EndpointName"] for one in page["Endpoints"]] for page in pager]

    found = await client.run(pages)
    assert [len(page) for page in found] == [10, 10, 5]
    assert [name for page in found for name in page] == [f"e{number:02}" for number in reversed(range(25))]
    await client.refused("list_endpoints", SortBy="Bogus")


@pytest.mark.check(15)
async def test_15_tags(client: Client) -> None:
    await client.serving()
    arn = f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e"
    await client("add_tags", ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}])
    assert (await client("list_tags", ResourceArn=arn))["Tags"] == [{"Key": "a", "Value": "1"}, {"Key": "b", "Value": "2"}]
    await client("delete_tags", ResourceArn=arn, TagKeys=["a"])
    assert (await client("list_tags", ResourceArn=arn))["Tags"] == [{"Key": "b", "Value": "2"}]
    await client.refused("list_tags", ResourceArn="arn:aws:sagemaker:us-east-1:no:endpoint/e")


@pytest.mark.check(24)
async def test_24_another_account_finds_nothing(client: Client) -> None:
    await client.serving()
    other = await _boto3(client.gateway, TWO)
    try:
        with pytest.raises(ClientError, match=f"Could not find endpoint .*{TWO}:endpoint/e"):
            await client.run(partial(other.describe_endpoint, EndpointName="e"))
        assert (await client.run(other.list_endpoints))["Endpoints"] == []
    finally:
        other.close()


async def test_what_our_own_api_made_is_listed_and_described(client: Client) -> None:
    """A registration by the command line is a model to AWS's clients, too."""
    from support.builders import a_config, a_model, an_endpoint

    tables = client.gateway.tables
    await tables.models.create(f"{ONE}.own", a_model(tenant=ONE, name="own", created_at=5.0))
    await tables.endpoint_configs.create(f"{ONE}.own-1", a_config(tenant=ONE, name="own-1").model_copy())
    await tables.endpoints.create(f"{ONE}.own", an_endpoint(tenant=ONE, name="own", config="own-1", served_name="own"))

    async def seen() -> bool:
        # Each kind of record is heard of by itself.
        return bool((await client("list_endpoints"))["Endpoints"] and (await client("list_models"))["Models"])

    await until(seen)
    assert (await client("list_models"))["Models"][0]["ModelName"] == "own"
    assert (await client("describe_model", ModelName="own"))["PrimaryContainer"]["Image"] == "standby/fake"
    told = await client("describe_endpoint", EndpointName="own")
    assert told["EndpointConfigName"] == "own-1"
    config = await client("describe_endpoint_config", EndpointConfigName="own-1")
    assert config["ProductionVariants"][0]["ModelName"] == "m"
    arn = told["EndpointArn"]
    await client("add_tags", ResourceArn=arn, Tags=[{"Key": "a", "Value": "1"}])
    assert (await client("list_tags", ResourceArn=arn))["Tags"] == [{"Key": "a", "Value": "1"}]
    await client("delete_endpoint", EndpointName="own")
