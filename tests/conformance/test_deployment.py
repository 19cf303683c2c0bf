"""The checks that need everything: two gateways, node, controller, S3 and engines as processes, boto3 unmodified."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError, WaiterError

from support.aws_user import BODY, REAL, STREAM, AwsPlace, AwsUser, aws_place, text_of
from support.fake_engine_spec import short_dir
from support.user import PARIS
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
MIB = 2**20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place() -> AsyncIterator[AwsPlace]:
    with short_dir() as folder:
        async with aws_place(folder, gateways=2) as running:
            yield running


@pytest.fixture
def user(place: AwsPlace) -> AwsUser:
    return place.user


@pytest.mark.real_engine
@pytest.mark.check(8)
@pytest.mark.check(10)
@pytest.mark.check(16)
@pytest.mark.check(21)
async def test_a_real_model_from_its_creation_to_its_end(user: AwsUser) -> None:
    """With AWS's own pace of 30 seconds between two looks: neither waiter may need a second one."""
    await user.model("smol", REAL)
    await user.config("smol", "smol", MemorySizeInMB=2048)
    await user("create_endpoint", EndpointName="smol", EndpointConfigName="smol")
    async with asyncio.timeout(27):
        await asyncio.to_thread(user.client().get_waiter("endpoint_in_service").wait, EndpointName="smol")
    told = await user("describe_endpoint", EndpointName="smol")
    assert told["EndpointStatus"] == "InService"
    assert isinstance(told["CreationTime"], dt.datetime)

    answer = await user.invoke("smol")
    assert text_of(answer["Body"]) == PARIS
    assert answer["ContentType"].startswith("application/json")
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    assert "CustomAttributes" not in answer
    events = b"".join(await asyncio.to_thread(parts, user, "smol")).split(b"\n\n")
    words = [json.loads(event[5:])["choices"][0]["delta"].get("content") or "" for event in events[:-2]]
    assert "Paris" in "".join(words)
    assert events[-2] == b"data: [DONE]"

    await user("delete_endpoint", EndpointName="smol")
    async with asyncio.timeout(27):
        await asyncio.to_thread(user.client().get_waiter("endpoint_deleted").wait, EndpointName="smol")
    assert "Could not find" in await user.refused("delete_endpoint", EndpointName="smol")


async def known(place: AwsPlace, user: AwsUser, endpoint: str, limit: int | None = None) -> None:
    """Wait until every gateway has heard that the endpoint is in service, with this limit if one is given."""
    for url in place.gateways:
        caller = place.at(url, user.key, user.account)

        async def heard(caller: AwsUser = caller) -> bool:
            try:
                told = await caller("describe_endpoint", EndpointName=endpoint)
            except ClientError:
                return False
            current = told["ProductionVariants"][0].get("CurrentServerlessConfig", {})
            return told["EndpointStatus"] == "InService" and limit in (None, current.get("MaxConcurrency"))

        await until(heard, f"{url} has heard of {endpoint}")


def parts(user: AwsUser, endpoint: str) -> list[bytes]:
    client = user.client("sagemaker-runtime")
    body = client.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=STREAM)["Body"]
    return [event["PayloadPart"]["Bytes"] for event in body]


@pytest.mark.check(9)
async def test_an_engine_that_never_answers_its_ping(user: AwsUser) -> None:
    await user.model("broken", fail_start=1, fail_message="error: no such tensor")
    await user.config("broken", "broken", ProvisionedConcurrency=1)
    await user("create_endpoint", EndpointName="broken", EndpointConfigName="broken")
    with pytest.raises(WaiterError):
        await user.wait("endpoint_in_service", "broken")
    told = await user("describe_endpoint", EndpointName="broken")
    assert told["EndpointStatus"] == "Failed"
    assert "for production variant AllTraffic did not pass the ping health check" in told["FailureReason"]
    assert "no such tensor" in told["FailureReason"]
    await user.refused("update_endpoint", EndpointName="broken", EndpointConfigName="broken")
    await user("delete_endpoint", EndpointName="broken")
    await user.wait("endpoint_deleted", "broken")


@pytest.mark.check(12)
async def test_an_update_under_load_loses_nothing(place: AwsPlace) -> None:
    """Callers at both gateways never see a failure while the new version takes over; afterwards only it answers."""
    user = place.user
    await user.serving("moving", text="old", token_delay_ms=20)
    await user.model("moving-2", text="new", token_delay_ms=20)
    await user.config("moving-2", "moving-2", ProvisionedConcurrency=1)
    answers: list[str] = []
    over = asyncio.Event()

    async def ask(url: str) -> None:
        caller = place.at(url, user.key, user.account)
        while not over.is_set():
            answer = await caller.invoke("moving", config={"retries": {"total_max_attempts": 1}})
            answers.append(text_of(answer["Body"]))

    assert await user.text("moving") == "old"
    await known(place, user, "moving")
    async with asyncio.TaskGroup() as load:
        for url in place.gateways:
            for _ in range(2):
                load.create_task(ask(url))
        await until(lambda: len(answers) >= 10, "the load runs")
        before = await user("update_endpoint", EndpointName="moving", EndpointConfigName="moving-2")
        assert before["EndpointArn"].endswith(":endpoint/moving")
        told = await user("describe_endpoint", EndpointName="moving")
        while told["EndpointStatus"] == "Updating":
            assert told["EndpointConfigName"] == "moving", "it changes when the new one is in service"
            told = await user("describe_endpoint", EndpointName="moving")
        assert (told["EndpointStatus"], told["EndpointConfigName"]) == ("InService", "moving-2")
        await until(lambda: answers[-8:] == ["new"] * 8, "the new version answers", 60)
        over.set()
    assert set(answers) == {"old", "new"}


@pytest.mark.check(13)
@pytest.mark.check(19)
async def test_the_limit_is_exact_over_two_gateways(place: AwsPlace) -> None:
    """One call too many anywhere is throttled, three times by the SDK, and is no run of the engine; a raised limit counts."""
    user = place.user
    await user.serving("limited", max_concurrency=5, tokens=10**6, token_delay_ms=50)
    wanted = {"VariantName": "AllTraffic", "ServerlessUpdateConfig": {"MaxConcurrency": 3}}
    await user("update_endpoint_weights_and_capacities", EndpointName="limited", DesiredWeightsAndCapacities=[wanted])
    told = await user("describe_endpoint", EndpointName="limited")
    assert told["ProductionVariants"][0]["CurrentServerlessConfig"]["MaxConcurrency"] == 3
    await known(place, user, "limited", 3)
    callers = [place.at(url, user.key, user.account) for url in (*place.gateways, place.gateways[0])]
    short = json.dumps({**json.loads(BODY), "max_tokens": 1}).encode()

    with ExitStack() as held:
        for caller in callers:
            held.callback((await asyncio.to_thread(held_stream, caller, "limited")).close)
        for url in place.gateways:
            with pytest.raises(ClientError) as raised:
                await place.at(url, user.key, user.account).invoke("limited", short)
            told = raised.value.response
            assert told["Error"]["Code"] == "ThrottlingException"
            assert told["ResponseMetadata"]["HTTPStatusCode"] == 400
            assert told["ResponseMetadata"]["RetryAttempts"] == 2

    async def counted(outcome: str, times: int) -> bool:
        return await outcomes(place, "limited", outcome) == times

    await until(lambda: counted("throttled", 6), "six are throttled")

    async def served() -> bool:
        try:
            return bool((await user.invoke("limited", short))["Body"])
        except ClientError:
            return False

    await until(served, "there is room again")
    await until(lambda: counted("ok", 1), "one is served")


def held_stream(user: AwsUser, endpoint: str) -> Any:
    """Begin a stream and return it once its first part is there."""
    client = user.client("sagemaker-runtime", retries={"total_max_attempts": 1})
    body = client.invoke_endpoint_with_response_stream(EndpointName=endpoint, Body=STREAM)["Body"]
    assert next(iter(body))["PayloadPart"]["Bytes"]
    return body


async def outcomes(place: AwsPlace, endpoint: str, outcome: str) -> float:
    """What all gateways have counted."""
    total = 0.0
    async with httpx.AsyncClient(trust_env=False) as client:
        for url in place.gateways:
            for line in (await client.get(f"{url}/metrics")).text.splitlines():
                if line.startswith("standby_requests_total{") and f'"{endpoint}"' in line and f'"{outcome}"' in line:
                    total += float(line.rpartition(" ")[2])
    return total


@pytest.mark.check(14)
async def test_pages_of_25_endpoints_through_two_gateways(place: AwsPlace) -> None:
    """Made at one gateway and listed at the other, newest first, in pages of 10."""
    one = await place.another("333333333333")
    two = place.at(place.gateways[1], one.key, one.account)
    await one.model("m")
    await one.config("c", "m", MaxConcurrency=1)
    names = [f"e{number:02}" for number in range(25)]
    for name in names:
        await one("create_endpoint", EndpointName=name, EndpointConfigName="c")

    def pages() -> list[list[str]]:
        pager = two.client().get_paginator("list_endpoints").paginate(PaginationConfig={"PageSize": 10})
        return [[endpoint["EndpointName"] for endpoint in page["Endpoints"]] for page in pager]

    found: list[list[str]] = []

    async def all_there() -> bool:
        try:
            found[:] = await asyncio.to_thread(pages)
        except ClientError:  # the other gateway has not heard of the key yet
            return False
        return sum(map(len, found)) == 25

    await until(all_there, "the other gateway lists them")
    assert [len(page) for page in found] == [10, 10, 5]
    assert [name for page in found for name in page] == names[::-1]
    await two.refused("list_endpoints", SortBy="Bogus")


@pytest.mark.check(17)
@pytest.mark.check(18)
@pytest.mark.check(22)
async def test_what_is_refused_costs_one_attempt(user: AwsUser) -> None:
    await user.serving("careful")

    async def refusal(endpoint: str, body: bytes) -> dict[str, Any]:
        with pytest.raises(ClientError) as raised:
            await user.invoke(endpoint, body)
        told: dict[str, Any] = raised.value.response
        assert told["ResponseMetadata"]["RetryAttempts"] == 0
        return told

    missing = await refusal("nowhere", BODY)
    assert missing["Error"] == {"Code": "ValidationError", "Message": "Endpoint nowhere of account 000000000000 not found."}
    model = await refusal("careful", json.dumps({**json.loads(BODY), "fail_with": 400}).encode())
    assert (model["Error"]["Code"], model["OriginalStatusCode"]) == ("ModelError", 400)
    assert "was asked to fail" in model["OriginalMessage"]
    assert model["LogStreamArn"].endswith("/aws/sagemaker/Endpoints/careful")
    padded = BODY + b" " * (4 * MIB - len(BODY))
    assert text_of((await user.invoke("careful", padded))["Body"]) == PARIS
    large = await refusal("careful", padded + b" ")
    assert large["Error"]["Code"] == "ValidationError"
    assert str(4 * MIB + 1) in large["Error"]["Message"]
