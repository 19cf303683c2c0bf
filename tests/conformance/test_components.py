"""Inference components as boto3's users have them: from zero and back, by their own header, by scaling policies (check 25)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import pytest_asyncio
from botocore.exceptions import ClientError

from support.aws_user import BODY, STREAM, AwsPlace, AwsUser, aws_place, text_of
from support.fake_engine_spec import short_dir
from support.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

NEEDS = {"MinMemoryRequiredInMb": 128}
COPIES = {"ServiceNamespace": "sagemaker", "ScalableDimension": "sagemaker:inference-component:DesiredCopyCount"}
FOLLOW = {
    "TargetValue": 2.0,
    "PredefinedMetricSpecification": {
        "PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
    },
}
WAKE = {"AdjustmentType": "ChangeInCapacity", "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}]}
# What falls asleep falls to the bottom at once, so that zero is zero.
ASLEEP_SOON = [{"Key": "standby:keep-ready", "Value": "1s"}, {"Key": "standby:keep-asleep", "Value": "0s"}]


@asynccontextmanager
async def components(more: Mapping[str, str]) -> AsyncIterator[AwsPlace]:
    """A deployment with the model ``m`` and the endpoints ``base``, for components, and ``plain``, with a model."""
    with short_dir() as folder:
        async with aws_place(folder, gateways=1, real=False, more=more) as place:
            user = place.user
            await user.serving("plain")
            await user.model("m")
            variant = {
                "VariantName": "AllTraffic",
                "InstanceType": "ml.g5.xlarge",
                "InitialInstanceCount": 1,
                "ManagedInstanceScaling": {"Status": "ENABLED", "MinInstanceCount": 0, "MaxInstanceCount": 2},
            }
            await user("create_endpoint_config", EndpointConfigName="base", ProductionVariants=[variant])
            await user("create_endpoint", EndpointName="base", EndpointConfigName="base")
            async with asyncio.timeout(25):  # with AWS's own pace: its waiter must not need a second look
                await asyncio.to_thread(user.client().get_waiter("endpoint_in_service").wait, EndpointName="base")
            yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def generous() -> AsyncIterator[AwsPlace]:
    async with components({}) as place:
        yield place


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def strict() -> AsyncIterator[AwsPlace]:
    async with components({"STANDBY_AWS_STRICT": "true"}) as place:
        yield place


async def create(user: AwsUser, name: str, copies: int, tags: list[dict[str, str]] | None = None) -> None:
    await user(
        "create_inference_component",
        InferenceComponentName=name,
        EndpointName="base",
        VariantName="AllTraffic",
        Specification={"ModelName": "m", "ComputeResourceRequirements": NEEDS},
        RuntimeConfig={"CopyCount": copies},
        Tags=tags or [],
    )


async def until_copies(user: AwsUser, name: str, current: int, status: str = "InService") -> None:
    async def reached() -> bool:
        told = await user("describe_inference_component", InferenceComponentName=name)
        return (told["InferenceComponentStatus"], told["RuntimeConfig"]["CurrentCopyCount"]) == (status, current)

    await until(reached, f"{name} has {current} copies", 60)


async def refused(user: AwsUser, endpoint: str = "base", **headers: Any) -> str:
    with pytest.raises(ClientError) as raised:
        await user.invoke(endpoint, **headers)
    answer = raised.value.response
    assert (answer["Error"]["Code"], answer["ResponseMetadata"]["HTTPStatusCode"]) == ("ValidationError", 400)
    assert answer["ResponseMetadata"]["RetryAttempts"] == 0
    return str(answer["Error"]["Message"])


async def scaling(user: AwsUser, operation: str, **request: Any) -> Any:
    client = user.client("application-autoscaling")
    return await asyncio.to_thread(getattr(client, operation), **request)


@pytest.mark.check(25)
async def test_without_copies_a_request_wakes_one(generous: AwsPlace) -> None:
    user = generous.user
    await create(user, "sleeper", 0, ASLEEP_SOON)
    await until_copies(user, "sleeper", 0)
    answer = await user.invoke("base", InferenceComponentName="sleeper")
    assert text_of(answer["Body"])
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    await until_copies(user, "sleeper", 0)

    def parts() -> bytes:
        client = user.client("sagemaker-runtime")
        answer = client.invoke_endpoint_with_response_stream(
            EndpointName="base", InferenceComponentName="sleeper", Body=STREAM, ContentType="application/json"
        )
        return b"".join(event["PayloadPart"]["Bytes"] for event in answer["Body"])

    assert (await asyncio.to_thread(parts)).endswith(b"data: [DONE]\n\n")
    await user("delete_inference_component", InferenceComponentName="sleeper")


@pytest.mark.check(25)
async def test_the_header_is_needed_where_there_are_components_and_nowhere_else(generous: AwsPlace) -> None:
    user = generous.user
    text = await refused(user)
    assert text.startswith("Inference Component Name header is required for endpoints to which you plan to deploy inference")
    text = await refused(user, "plain", InferenceComponentName="any")
    assert text.startswith("Inference Component Name header is not allowed for endpoints")
    assert "Inference Component nope" in await refused(user, InferenceComponentName="nope")
    assert await refused(user, "nope", InferenceComponentName="any") == f"Endpoint nope of account {user.account} not found."
    await create(user, "hidden", 0)
    assert "failed to satisfy constraint" in await refused(user, "hidden_component")
    await user("delete_inference_component", InferenceComponentName="hidden")


@pytest.mark.check(25)
async def test_a_registered_target_scales_from_zero_and_back(generous: AwsPlace) -> None:
    """The component was created with a copy that stays; with the target it goes, comes when asked, and goes again."""
    user = generous.user
    await create(user, "scaled", 1, ASLEEP_SOON)
    await until_copies(user, "scaled", 1)
    target = {**COPIES, "ResourceId": "inference-component/scaled"}
    await scaling(user, "register_scalable_target", **target, MinCapacity=0, MaxCapacity=2)
    await scaling(
        user,
        "put_scaling_policy",
        **target,
        PolicyName="follow",
        PolicyType="TargetTrackingScaling",
        TargetTrackingScalingPolicyConfiguration=FOLLOW,
    )
    await scaling(
        user,
        "put_scaling_policy",
        **target,
        PolicyName="wake",
        PolicyType="StepScaling",
        StepScalingPolicyConfiguration=WAKE,
    )
    told = await scaling(user, "describe_scaling_policies", **target)
    assert sorted(one["PolicyName"] for one in told["ScalingPolicies"]) == ["follow", "wake"]
    await until_copies(user, "scaled", 0)
    assert text_of((await user.invoke("base", InferenceComponentName="scaled"))["Body"])
    await until_copies(user, "scaled", 0)
    await scaling(user, "deregister_scalable_target", **target)
    await user("delete_inference_component", InferenceComponentName="scaled")


async def test_openais_route_and_name_of_a_component(generous: AwsPlace) -> None:
    """By the path of AWS's route, and on ``/v1`` as the model ``endpoint/component``."""
    user = generous.user
    await create(user, "chat", 0)
    key = generous.up.key
    message = {"role": "user", "content": "?"}
    for path, model in (("/endpoints/base/inference-components/chat/openai/v1", ""), ("/v1", "base/chat")):
        async with openai.AsyncOpenAI(base_url=f"{user.url}{path}", api_key=key, max_retries=0) as client:
            answer = await client.chat.completions.create(model=model, messages=[message])  # type: ignore[list-item]
            assert answer.choices[0].message.content
    async with openai.AsyncOpenAI(base_url=f"{user.url}/v1", api_key=key, max_retries=0) as client:
        assert sorted([model.id async for model in client.models.list()]) == ["base/chat", "plain"]
    await user("delete_inference_component", InferenceComponentName="chat")


@pytest.mark.check(25)
async def test_strict_has_no_capacity_at_zero(strict: AwsPlace) -> None:
    user = strict.user
    await create(user, "none", 0)
    text = await refused(user, InferenceComponentName="none")
    assert text.startswith("Inference Component has no capacity to process this request. ApplicationAutoScaling may be in")
    await user(
        "update_inference_component_runtime_config", InferenceComponentName="none", DesiredRuntimeConfig={"CopyCount": 1}
    )
    await until_copies(user, "none", 1)
    assert text_of((await user.invoke("base", BODY, InferenceComponentName="none"))["Body"])
    await user("delete_inference_component", InferenceComponentName="none")


@pytest.mark.check(25)
async def test_strict_wakes_by_the_refused_request_where_a_target_is_registered(strict: AwsPlace) -> None:
    """As with AWS the request fails, and what it has failed for comes."""
    user = strict.user
    # Long enough that it is still there when it is asked.
    soon = [{"Key": "standby:keep-ready", "Value": "8s"}, {"Key": "standby:keep-asleep", "Value": "0s"}]
    await create(user, "stepped", 0, soon)
    target = {**COPIES, "ResourceId": "inference-component/stepped"}
    await scaling(user, "register_scalable_target", **target, MinCapacity=0, MaxCapacity=1)
    assert "has no capacity" in await refused(user, InferenceComponentName="stepped")
    await until_copies(user, "stepped", 1)
    assert text_of((await user.invoke("base", InferenceComponentName="stepped"))["Body"])
    await until_copies(user, "stepped", 0)
    assert "has no capacity" in await refused(user, InferenceComponentName="stepped")
    await user("delete_inference_component", InferenceComponentName="stepped")


@pytest.mark.check(25)
async def test_a_component_is_counted_under_its_endpoints_name(generous: AwsPlace) -> None:
    """CloudWatch's dimensions, in the gateway's metrics."""
    user = generous.user
    await create(user, "counted", 0)
    await user.invoke("base", InferenceComponentName="counted")
    dimensions = 'EndpointName="base",InferenceComponentName="counted"'

    async def counted() -> bool:
        text = (await generous.up.api.get("/metrics")).text
        lines = [one for one in text.splitlines() if one.startswith("standby_aws_Invocations_total{") and dimensions in one]
        return [line.rpartition(" ")[2] for line in lines] == ["1.0"]

    await until(counted)
    await user("delete_inference_component", InferenceComponentName="counted")


async def test_the_command_shows_what_carries_a_component(generous: AwsPlace) -> None:
    """Operators see what takes memory; by name only a whole endpoint is shown."""
    await create(generous.user, "seen", 0)
    listed = (await generous.up.call("GET", "/endpoints"))["endpoints"]
    assert {"base", "plain", "seen_component"} <= {one["name"] for one in listed}
    shell = generous.up.shell
    assert "seen_component" in (await shell.standby("endpoints", "list")).out
    assert "base" in (await shell.standby("endpoints", "show", "base")).out
    await shell.standby("endpoints", "show", "seen_component", code=4)
    await generous.user("delete_inference_component", InferenceComponentName="seen")
