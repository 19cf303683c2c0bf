"""Application Auto Scaling: what is registered bounds our own scaler, for variants and for inference components."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standby.domain.access import ALL_SCOPES
from standby.domain.aws import component_endpoint
from standby.domain.durations import FOREVER
from standby.domain.endpoint import Variant
from standby.domain.serving import variants_now
from standby.sagemaker.auth.caller import Caller, user_arn
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.operations import HANDLERS
from standby.sagemaker.errors import AwsError
from standby.sagemaker.shapes.answers import answer_json
from standby.sagemaker.shapes.requests import parse_json
from standby.sagemaker.shapes.services import AUTOSCALING
from support.control_rig import ONE, TWO, ControlRig, control_rig
from support.waiting import until

COPIES = "sagemaker:inference-component:DesiredCopyCount"
PROVISIONED = "sagemaker:variant:DesiredProvisionedConcurrency"
COUNT = "sagemaker:variant:DesiredInstanceCount"
IC = {"ServiceNamespace": "sagemaker", "ResourceId": "inference-component/ic", "ScalableDimension": COPIES}
VARIANT = {"ServiceNamespace": "sagemaker", "ResourceId": "endpoint/e/variant/AllTraffic", "ScalableDimension": PROVISIONED}
COUNTED = {**VARIANT, "ScalableDimension": COUNT}
CONCURRENT = "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
STEPS = {
    "AdjustmentType": "ChangeInCapacity",
    "StepAdjustments": [{"MetricIntervalLowerBound": 0, "ScalingAdjustment": 1}],
    "Cooldown": 60,
}


def tracking(metric: str = CONCURRENT, value: float = 2.0, **more: Any) -> dict[str, Any]:
    specification = {"PredefinedMetricSpecification": {"PredefinedMetricType": metric}, "TargetValue": value, **more}
    return {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": specification}


class Scaling:
    """The operations of Application Auto Scaling, and what they have made of the variants."""

    def __init__(self, rig: ControlRig) -> None:
        self.rig = rig

    async def __call__(self, operation: str, tenant: str = ONE, **members: Any) -> dict[str, Any]:
        caller = Caller(tenant, "SBKATEST", ALL_SCOPES, user_arn(tenant, "tester"), "us-east-1")
        request = parse_json(AUTOSCALING, operation, json.dumps(members).encode())
        answer = await HANDLERS[AUTOSCALING, operation](ControlCall(caller, self.rig.context, "r"), request)
        told: dict[str, Any] = json.loads(answer_json(AUTOSCALING, operation, answer))
        return told

    async def refused(self, code: str, operation: str, **members: Any) -> str:
        with pytest.raises(AwsError) as error:
            await self(operation, **members)
        assert error.value.code == code
        return str(error.value.message)

    async def variant(self, endpoint: str) -> Variant:
        record = (await self.rig.tables.endpoints.get(f"{ONE}.{endpoint}")).value  # type: ignore[union-attr]
        config = (await self.rig.tables.endpoint_configs.get(f"{ONE}.{record.config}")).value  # type: ignore[union-attr]
        return variants_now(config, record.capacities)[0]

    async def component(self, copies: int = 1) -> None:
        variant = {"VariantName": "AllTraffic", "InitialInstanceCount": 1, "InstanceType": "ml.g5.xlarge"}
        await self.rig.call("CreateEndpointConfig", EndpointConfigName="c", ProductionVariants=[variant])
        await self.rig.call("CreateEndpoint", EndpointName="e", EndpointConfigName="c")
        needs = {"ModelName": "m", "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 512}}
        runtime = {"CopyCount": copies}
        await self.rig.call(
            "CreateInferenceComponent",
            InferenceComponentName="ic",
            EndpointName="e",
            Specification=needs,
            RuntimeConfig=runtime,
        )
        await until(lambda: self.copies(current=copies))

    async def copies(self, *, current: int) -> bool:
        told = await self.rig.call("DescribeInferenceComponent", InferenceComponentName="ic")
        return bool(told["RuntimeConfig"]["CurrentCopyCount"] == current and told["InferenceComponentStatus"] == "InService")


@pytest.fixture
async def scaling(tmp_path: Path) -> AsyncIterator[Scaling]:
    async with control_rig(tmp_path, sweep_s=0.05) as rig:
        await rig.model()
        yield Scaling(rig)


async def test_a_components_bounds(scaling: Scaling) -> None:
    await scaling.component(copies=1)
    arn = (await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=3))["ScalableTargetARN"]
    assert arn.startswith(f"arn:aws:application-autoscaling:us-east-1:{ONE}:scalable-target/")
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.min_ready, policy.max_instances) == (0, 3)
    (told,) = (await scaling("DescribeScalableTargets", ServiceNamespace="sagemaker"))["ScalableTargets"]
    assert (told["ResourceId"], told["MinCapacity"], told["MaxCapacity"], told["ScalableTargetARN"]) == (
        "inference-component/ic",
        0,
        3,
        arn,
    )
    assert told["SuspendedState"]["DynamicScalingInSuspended"] is False
    await scaling("RegisterScalableTarget", **IC, MaxCapacity=2)  # what is left out stays
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.min_ready, policy.max_instances) == (0, 2)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=2)
    await until(lambda: scaling.copies(current=2))


async def test_a_policy_sets_when_another_copy_is_wanted(scaling: Scaling) -> None:
    await scaling.component()
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=3)
    answer = await scaling("PutScalingPolicy", PolicyName="p", **IC, **tracking(value=2.0, ScaleInCooldown=120))
    assert answer["PolicyARN"].endswith(":resource/sagemaker/inference-component/ic:policyName/p")
    assert answer["Alarms"] == []
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.load, policy.scale_in_after) == (2.0, 120.0)
    await scaling("PutScalingPolicy", PolicyName="p", **IC, **tracking(value=3.0, DisableScaleIn=True))
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.load, policy.scale_in_after) == (3.0, FOREVER)
    await scaling("DeleteScalingPolicy", PolicyName="p", **IC)
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.load, policy.scale_in_after, policy.max_instances) == (4, 60.0, 3)


async def test_policies_are_described_with_what_was_given(scaling: Scaling) -> None:
    await scaling.component()
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=3)
    await scaling("PutScalingPolicy", PolicyName="follow", **IC, **tracking())
    metric = "SageMakerInferenceComponentInvocationsPerCopy"
    await scaling("PutScalingPolicy", PolicyName="rate", **IC, **tracking(metric, 100.0))
    await scaling("PutScalingPolicy", PolicyName="wake", **IC, PolicyType="StepScaling", StepScalingPolicyConfiguration=STEPS)
    first = await scaling("DescribeScalingPolicies", ServiceNamespace="sagemaker", MaxResults=2)
    rest = await scaling("DescribeScalingPolicies", ServiceNamespace="sagemaker", MaxResults=2, NextToken=first["NextToken"])
    told = {one["PolicyName"]: one for one in (*first["ScalingPolicies"], *rest["ScalingPolicies"])}
    assert sorted(told) == ["follow", "rate", "wake"]
    assert told["wake"]["StepScalingPolicyConfiguration"] == STEPS
    assert told["rate"]["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 100.0
    named = await scaling("DescribeScalingPolicies", ServiceNamespace="sagemaker", PolicyNames=["wake"])
    assert [one["PolicyName"] for one in named["ScalingPolicies"]] == ["wake"]
    assert (await scaling("DescribeScalingPolicies", ServiceNamespace="ecs"))["ScalingPolicies"] == []
    await scaling.refused("InvalidNextTokenException", "DescribeScalingPolicies", ServiceNamespace="sagemaker", NextToken="x")


async def test_what_is_left_when_a_target_goes(scaling: Scaling) -> None:
    """As many copies stay as there are; the policies go with the target."""
    await scaling.component(copies=2)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=5)
    await scaling("PutScalingPolicy", PolicyName="p", **IC, **tracking())
    await scaling("DeregisterScalableTarget", **IC)
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.min_ready, policy.max_instances, policy.load) == (2, 2, 4)
    assert (await scaling("DescribeScalingPolicies", ServiceNamespace="sagemaker"))["ScalingPolicies"] == []
    assert (await scaling("DescribeScalableTargets", ServiceNamespace="sagemaker"))["ScalableTargets"] == []
    text = await scaling.refused("ObjectNotFoundException", "DeregisterScalableTarget", **IC)
    named = f"service namespace: sagemaker, resource ID: inference-component/ic, scalable dimension: {COPIES}"
    assert text == f"No scalable target found for {named}"


async def test_the_copy_count_waits_for_the_time_after_the_target(scaling: Scaling) -> None:
    await scaling.component(copies=1)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=5)
    wanted = {"CopyCount": 4}
    await scaling.rig.call("UpdateInferenceComponentRuntimeConfig", InferenceComponentName="ic", DesiredRuntimeConfig=wanted)
    policy = (await scaling.variant(component_endpoint("ic"))).policy
    assert (policy.min_ready, policy.max_instances) == (0, 5)


async def test_nothing_of_a_deleted_component_is_left(scaling: Scaling) -> None:
    await scaling.component(copies=0)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=5)
    await scaling("PutScalingPolicy", PolicyName="p", **IC, **tracking())
    await scaling.rig.call("DeleteInferenceComponent", InferenceComponentName="ic")

    async def forgotten() -> bool:
        left = await scaling.rig.tables.aws.list(f"{ONE}.")
        return not [name for name in left if "scal" in name or "component" in name]

    await until(forgotten)
    assert (await scaling("DescribeScalableTargets", ServiceNamespace="sagemaker"))["ScalableTargets"] == []
    await scaling.refused("ValidationException", "RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)


async def test_provisioned_concurrency(scaling: Scaling) -> None:
    await scaling.rig.config(MaxConcurrency=5)
    await scaling.rig.endpoint()
    await scaling("RegisterScalableTarget", **VARIANT, MinCapacity=2, MaxCapacity=4)
    variant = await scaling.variant("e")
    assert (variant.provisioned, variant.policy.min_ready, variant.policy.max_instances) == (2, 1, 1)
    metric = "SageMakerVariantProvisionedConcurrencyUtilization"
    await scaling("PutScalingPolicy", PolicyName="p", **VARIANT, **tracking(metric, 0.7))
    told = await scaling.rig.describe()
    assert told["ProductionVariants"][0]["CurrentServerlessConfig"]["ProvisionedConcurrency"] == 2
    text = await scaling.refused("ValidationException", "RegisterScalableTarget", **VARIANT, MinCapacity=6, MaxCapacity=8)
    assert "ProvisionedConcurrency 6" in text
    text = await scaling.refused("ValidationException", "RegisterScalableTarget", **COUNTED, MinCapacity=1, MaxCapacity=2)
    assert "is serverless" in text


async def test_instances_of_a_variant_and_an_update(scaling: Scaling) -> None:
    """An update leaves the bounds as they are."""
    given = {"VariantName": "AllTraffic", "ModelName": "m", "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
    for name in ("c", "c2"):
        await scaling.rig.call("CreateEndpointConfig", EndpointConfigName=name, ProductionVariants=[given])
    await scaling.rig.endpoint()
    await scaling("RegisterScalableTarget", **COUNTED, MinCapacity=0, MaxCapacity=7)
    await scaling.rig.call("UpdateEndpoint", EndpointName="e", EndpointConfigName="c2")

    async def moved() -> bool:
        told = await scaling.rig.describe()
        return bool(told["EndpointStatus"] == "InService" and told["EndpointConfigName"] == "c2")

    await until(moved)
    policy = (await scaling.variant("e")).policy
    assert (policy.min_ready, policy.max_instances) == (0, 7)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"MinCapacity": 3, "MaxCapacity": 2}, "Maximum capacity cannot be less than minimum capacity"),
        ({"MinCapacity": 1}, "MinCapacity and MaxCapacity are required"),
        ({"MinCapacity": -1, "MaxCapacity": 2}, "must be from 0 to 200"),
        ({"MinCapacity": 0, "MaxCapacity": 201}, "must be from 0 to 200"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "ResourceId": "inference-component/nope"}, "does not exist"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "ResourceId": "endpoint/e/variant/AllTraffic"}, "Invalid resource ID"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "ResourceId": "inference-component/ic_component"}, "Invalid resource ID"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "ScalableDimension": "ecs:service:DesiredCount"}, "Unsupported"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "ServiceNamespace": "ecs"}, "service namespace ecs is not there"),
        ({"MinCapacity": 0, "MaxCapacity": 1, "SuspendedState": {"DynamicScalingInSuspended": True}}, "cannot be suspended"),
    ],
)
async def test_targets_that_cannot_be(scaling: Scaling, changes: dict[str, Any], words: str) -> None:
    await scaling.component(copies=0)
    text = await scaling.refused("ValidationException", "RegisterScalableTarget", **{**IC, **changes})
    assert words in text
    assert (await scaling("DescribeScalableTargets", ServiceNamespace="sagemaker"))["ScalableTargets"] == []


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (tracking("LambdaProvisionedConcurrencyUtilization"), "does not fit"),
        (tracking(value=0.0), "must be above 0"),
        (tracking(ScaleInCooldown=-1), "ScaleInCooldown -1 must be 0 or more seconds"),
        ({"PolicyType": "TargetTrackingScaling"}, "needs TargetTrackingScalingPolicyConfiguration"),
        ({"PolicyType": "StepScaling", "StepScalingPolicyConfiguration": {}}, "needs AdjustmentType"),
        (
            {
                "PolicyType": "TargetTrackingScaling",
                "TargetTrackingScalingPolicyConfiguration": {
                    "TargetValue": 1,
                    "CustomizedMetricSpecification": {"MetricName": "m", "Namespace": "n", "Statistic": "Sum"},
                },
            },
            "customized metrics are not followed here",
        ),
    ],
)
async def test_policies_that_cannot_be(scaling: Scaling, policy: dict[str, Any], words: str) -> None:
    await scaling.component(copies=0)
    await scaling.refused("ObjectNotFoundException", "PutScalingPolicy", PolicyName="p", **IC, **policy)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)
    assert words in await scaling.refused("ValidationException", "PutScalingPolicy", PolicyName="p", **IC, **policy)


async def test_a_metric_is_followed_once_and_a_missing_policy_is_told(scaling: Scaling) -> None:
    await scaling.component(copies=0)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)
    await scaling("PutScalingPolicy", PolicyName="p", **IC, **tracking())
    text = await scaling.refused("ValidationException", "PutScalingPolicy", PolicyName="q", **IC, **tracking())
    assert text == "Only one TargetTrackingScaling policy for a given metric specification is allowed."
    text = await scaling.refused("ObjectNotFoundException", "DeleteScalingPolicy", PolicyName="q", **IC)
    assert text.startswith("No scaling policy found for")
    many = {**STEPS, "StepAdjustments": STEPS["StepAdjustments"] * 21}  # type: ignore[operator]
    await scaling.refused(
        "LimitExceededException", "PutScalingPolicy", PolicyName="s", **IC, StepScalingPolicyConfiguration=many
    )


async def test_while_an_update_is_under_way(scaling: Scaling) -> None:
    await scaling.component(copies=0)
    await scaling.rig.model("m2", "s3://models/slow.tar.gz")
    await scaling.rig.call("UpdateInferenceComponent", InferenceComponentName="ic", Specification={"ModelName": "m2"})
    await scaling.refused("ConcurrentUpdateException", "RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)
    scaling.rig.artifacts.release.set()
    await until(lambda: scaling.copies(current=0))
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)


async def test_another_account_finds_nothing(scaling: Scaling) -> None:
    await scaling.component(copies=0)
    await scaling("RegisterScalableTarget", **IC, MinCapacity=0, MaxCapacity=1)
    assert (await scaling("DescribeScalableTargets", TWO, ServiceNamespace="sagemaker"))["ScalableTargets"] == []
    with pytest.raises(AwsError, match="does not exist"):
        await scaling("RegisterScalableTarget", TWO, **IC, MinCapacity=0, MaxCapacity=1)
