"""The control plane's operations, parsed and answered by AWS's own shapes, over real tables with a real controller."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standby.artifacts.inspection import ServedElsewhere
from standby.domain.access import Quotas
from standby.domain.endpoint import EndpointStatus
from standby.domain.errors import UnsupportedArtifact
from standby.sagemaker.errors import AwsError
from support.control_rig import ONE, TWO, ControlRig, control_rig
from support.waiting import until


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ControlRig]:
    async with control_rig(tmp_path, settle_s=30.0) as made:
        yield made


async def refused(rig: ControlRig, operation: str, code: str = "ValidationException", **members: Any) -> str:
    with pytest.raises(AwsError) as error:
        await rig.call(operation, **members)
    assert (error.value.code, error.value.status) == (code, 400)
    return str(error.value.message)


async def status_is(rig: ControlRig, status: str, name: str = "e") -> None:
    async def reached() -> bool:
        return bool((await rig.describe(name))["EndpointStatus"] == status)

    await until(reached, f"endpoint {name} is {status}")


async def test_an_endpoint_at_zero_is_in_service_when_first_described(rig: ControlRig) -> None:
    await rig.model()
    await rig.config()
    await rig.endpoint()
    told = await rig.describe()
    assert told["EndpointStatus"] == "InService"
    assert told["EndpointArn"] == f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e"
    assert told["EndpointConfigName"] == "c"
    (variant,) = told["ProductionVariants"]
    assert variant["CurrentServerlessConfig"] == {"MemorySizeInMB": 2048, "MaxConcurrency": 5}
    assert variant["DeployedImages"][0]["SpecifiedImage"] == "djl-inference:lmi"
    assert "FailureReason" not in told
    config = (await rig.tables.endpoint_configs.list(f"{ONE}.")).values()
    (made,) = [entry.value.variants[0] for entry in config]
    assert (made.memory_mb, made.concurrency_limit, made.policy.slots, made.policy.max_instances) == (2048, 5, 5, 1)


async def test_describe_waits_out_the_look_at_an_artifact(rig: ControlRig) -> None:
    """AWS's waiters look once and then only after 30 seconds."""
    await rig.model(uri="s3://models/slow.tar.gz")
    await rig.config()
    await rig.endpoint()
    entry = await rig.tables.endpoints.get(f"{ONE}.e")
    assert entry is not None
    assert entry.value.status is EndpointStatus.CREATING
    rig.artifacts.release.set()
    assert (await rig.describe())["EndpointStatus"] == "InService"


async def test_a_missing_artifact_fails_the_endpoint_with_its_reason(rig: ControlRig) -> None:
    """Field case B50: the reason is the real one, the endpoint can be deleted, and made again once the artifact is there."""
    await rig.serving(model="m", name="e")
    await rig.model("bad", "s3://models/gone.tar.gz")
    await rig.config("bad", "bad")
    await rig.endpoint("lost", "bad")
    told = await rig.describe("lost")
    assert told["EndpointStatus"] == "Failed"
    assert "the store has no such object" in told["FailureReason"]
    text = await refused(rig, "UpdateEndpoint", EndpointName="lost", EndpointConfigName="c")
    assert "Failed" in text
    await rig.call("DeleteEndpoint", EndpointName="lost")
    assert await refused(rig, "DescribeEndpoint", EndpointName="lost") == (
        f'Could not find endpoint "arn:aws:sagemaker:us-east-1:{ONE}:endpoint/lost".'
    )
    rig.artifacts.mended = True
    await rig.endpoint("lost", "bad")
    again = await rig.describe("lost")
    assert again["EndpointStatus"] == "InService"
    assert "FailureReason" not in again


async def test_an_engine_that_does_not_start_fails_the_endpoint(rig: ControlRig) -> None:
    await rig.model(uri="s3://models/crash.tar.gz")
    await rig.config(ProvisionedConcurrency=1)
    await rig.endpoint()
    await status_is(rig, "Failed")
    reason = (await rig.describe())["FailureReason"]
    assert "AllTraffic did not pass the ping health check" in reason
    assert "exit code 1" in reason
    assert "no such tensor" in reason


async def test_names_that_are_taken_and_names_that_are_not_there(rig: ControlRig) -> None:
    await rig.serving()
    for operation, members, word in (
        ("CreateModel", {"ModelName": "m", "PrimaryContainer": {"Image": "i"}}, "model"),
        ("CreateEndpoint", {"EndpointName": "e", "EndpointConfigName": "c"}, "endpoint"),
    ):
        assert (await refused(rig, operation, **members)).startswith(f'Cannot create already existing {word} "arn:')
    variant = {"VariantName": "v", "ModelName": "nope", "ServerlessConfig": {"MemorySizeInMB": 1024, "MaxConcurrency": 1}}
    text = await refused(rig, "CreateEndpointConfig", EndpointConfigName="x", ProductionVariants=[variant])
    assert text == f'Could not find model "arn:aws:sagemaker:us-east-1:{ONE}:model/nope".'
    text = await refused(rig, "CreateEndpoint", EndpointName="x", EndpointConfigName="nope")
    assert text == f'Could not find endpoint configuration "arn:aws:sagemaker:us-east-1:{ONE}:endpoint-config/nope".'
    for operation, member in (
        ("DescribeModel", "ModelName"),
        ("DeleteModel", "ModelName"),
        ("DescribeEndpointConfig", "EndpointConfigName"),
        ("DeleteEndpointConfig", "EndpointConfigName"),
        ("DeleteEndpoint", "EndpointName"),
    ):
        assert "Could not find" in await refused(rig, operation, **{member: "nope"})


@pytest.mark.parametrize(
    ("serverless", "words"),
    [
        ({"MemorySizeInMB": 1500}, "'1500' at 'productionVariants.1.member.serverlessConfig.memorySizeInMB'"),
        ({"MaxConcurrency": 500}, "less than or equal to 200"),
        ({"MaxConcurrency": 2, "ProvisionedConcurrency": 3}, "less than or equal to its MaxConcurrency 2"),
    ],
)
async def test_serverless_limits(rig: ControlRig, serverless: dict[str, int], words: str) -> None:
    await rig.model()
    with pytest.raises(AwsError) as error:
        await rig.config("c", "m", ONE, **serverless)
    assert words in str(error.value.message)


async def test_another_tenant_finds_nothing(rig: ControlRig) -> None:
    await rig.serving()
    with pytest.raises(AwsError, match=f"{TWO}:endpoint/e"):
        await rig.describe(tenant=TWO)
    assert (await rig.call("ListEndpoints", TWO))["Endpoints"] == []
    with pytest.raises(AwsError, match="Could not find"):
        await rig.call("ListTags", TWO, ResourceArn=f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e")


async def test_an_update_to_a_config_whose_artifact_is_gone_is_taken_back(rig: ControlRig) -> None:
    await rig.serving()
    await rig.model("bad", "s3://models/gone.tar.gz")
    await rig.config("bad", "bad")
    await rig.call("UpdateEndpoint", EndpointName="e", EndpointConfigName="bad")
    await status_is(rig, "InService")
    told = await rig.describe()
    assert told["EndpointConfigName"] == "c"
    assert "the store has no such object" in told["FailureReason"]


async def test_an_update_waits_for_the_artifact_and_refuses_a_second_one(rig: ControlRig) -> None:
    await rig.serving()
    await rig.model("late", "s3://models/slow.tar.gz")
    await rig.config("late", "late")
    await rig.call("UpdateEndpoint", EndpointName="e", EndpointConfigName="late")
    assert "Cannot update in-progress endpoint" in await refused(
        rig, "UpdateEndpoint", EndpointName="e", EndpointConfigName="c"
    )
    entry = await rig.tables.endpoints.get(f"{ONE}.e")
    assert entry is not None
    assert entry.value.pending_config is not None
    rig.artifacts.release.set()
    await status_is(rig, "InService")
    assert (await rig.describe())["EndpointConfigName"] == "late"


async def test_deleting_config_and_model_in_use_harms_no_endpoint(rig: ControlRig) -> None:
    """Field case B50."""
    await rig.serving()
    assert (await rig.describe())["EndpointStatus"] == "InService"
    await rig.call("DeleteEndpointConfig", EndpointConfigName="c")
    await rig.call("DeleteModel", ModelName="m")
    assert "Could not find" in await refused(rig, "DescribeModel", ModelName="m")
    assert (await rig.call("ListModels"))["Models"] == []
    told = await rig.describe()
    assert (told["EndpointStatus"], told["EndpointConfigName"]) == ("InService", "c")
    endpoint = await rig.tables.endpoints.get(f"{ONE}.e")
    assert endpoint is not None
    config = await rig.tables.endpoint_configs.get(f"{ONE}.{endpoint.value.config}")
    assert config is not None
    kept = await rig.tables.models.get(f"{ONE}.{config.value.variants[0].model}")
    assert kept is not None
    assert kept.value.manifest.source_uri == "s3://models/m.tar.gz"
    await rig.model("m", "s3://models/other.tar.gz")
    assert (await rig.call("ListModels"))["Models"][0]["ModelName"] == "m"


async def test_an_endpoint_can_be_deleted_while_it_is_being_created(rig: ControlRig) -> None:
    await rig.model(uri="s3://models/slow.tar.gz")
    await rig.config()
    await rig.endpoint()
    await rig.call("DeleteEndpoint", EndpointName="e")
    await until(lambda: f"{ONE}.e" not in rig.context.records.copies.endpoints.entries)
    assert "Could not find" in await refused(rig, "DeleteEndpoint", EndpointName="e")


async def test_weights_and_capacities(rig: ControlRig) -> None:
    await rig.serving()
    wanted = {"VariantName": "AllTraffic", "ServerlessUpdateConfig": {"MaxConcurrency": 3}}
    await rig.call("UpdateEndpointWeightsAndCapacities", EndpointName="e", DesiredWeightsAndCapacities=[wanted])
    assert (await rig.describe())["ProductionVariants"][0]["CurrentServerlessConfig"]["MaxConcurrency"] == 3
    unknown = [{"VariantName": "other", "DesiredWeight": 1}]
    text = await refused(rig, "UpdateEndpointWeightsAndCapacities", EndpointName="e", DesiredWeightsAndCapacities=unknown)
    assert text == 'The variant name(s) "other" is/are not present within endpoint configuration "c".'


async def test_tags_come_and_go_and_die_with_their_endpoint(rig: ControlRig) -> None:
    await rig.serving()
    arn = f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e"
    await rig.call("AddTags", ResourceArn=arn, Tags=[{"Key": "team", "Value": "a"}, {"Key": "env", "Value": "x"}])
    await rig.call("DeleteTags", ResourceArn=arn, TagKeys=["env"])
    assert (await rig.call("ListTags", ResourceArn=arn))["Tags"] == [{"Key": "team", "Value": "a"}]
    await rig.call("DeleteEndpoint", EndpointName="e")
    await until(lambda: f"{ONE}.e" not in rig.context.records.copies.endpoints.entries)
    await rig.endpoint()
    assert (await rig.call("ListTags", ResourceArn=arn))["Tags"] == []
    assert "Invalid ARN" in await refused(rig, "ListTags", ResourceArn=f"arn:aws:sagemaker:us-east-1:{ONE}:nothing")


async def test_a_tag_of_ours_changes_the_scale_policy(rig: ControlRig) -> None:
    await rig.serving()
    arn = f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e"
    await rig.call("AddTags", ResourceArn=arn, Tags=[{"Key": "standby:keep-ready", "Value": "7m"}])

    async def kept(seconds: float | None) -> None:
        async def holds() -> bool:
            endpoint = await rig.tables.endpoints.get(f"{ONE}.e")
            assert endpoint is not None
            config = await rig.tables.endpoint_configs.get(f"{ONE}.{endpoint.value.config}")
            return config is not None and config.value.variants[0].policy.keep_ready == seconds

        await until(holds, f"keep_ready is {seconds}")

    await kept(420.0)
    await status_is(rig, "InService")
    await rig.call("DeleteTags", ResourceArn=arn, TagKeys=["standby:keep-ready"])
    await kept(None)  # no time of its own any more: it is weighed
    text = await refused(rig, "AddTags", ResourceArn=arn, Tags=[{"Key": "standby:nap", "Value": "1"}])
    assert "standby:keep-ready" in text


async def test_tags_of_ours_say_how_traffic_is_treated(rig: ControlRig) -> None:
    """The config's hold until the endpoint's say otherwise, and again when those are taken away."""
    await rig.serving(Tags=[{"Key": "standby:tier", "Value": "critical"}, {"Key": "standby:latency-target", "Value": "2s"}])
    arn = f"arn:aws:sagemaker:us-east-1:{ONE}:endpoint/e"

    async def treated(tier: str, target: float) -> None:
        async def holds() -> bool:
            endpoint = await rig.tables.endpoints.get(f"{ONE}.e")
            assert endpoint is not None
            config = await rig.tables.endpoint_configs.get(f"{ONE}.{endpoint.value.config}")
            return config is not None and (config.value.traffic.tier, config.value.traffic.latency_target) == (tier, target)

        await until(holds, f"tier {tier}, target {target}")
        await status_is(rig, "InService")

    await treated("critical", 2.0)
    await rig.call("AddTags", ResourceArn=arn, Tags=[{"Key": "standby:tier", "Value": "best-effort"}])
    await treated("best-effort", 2.0)
    await rig.call("DeleteTags", ResourceArn=arn, TagKeys=["standby:tier"])
    await treated("critical", 2.0)
    text = await refused(rig, "AddTags", ResourceArn=arn, Tags=[{"Key": "standby:tier", "Value": "gold"}])
    assert "standby:tier='gold'" in text
    model = f"arn:aws:sagemaker:us-east-1:{ONE}:model/m"
    text = await refused(rig, "AddTags", ResourceArn=model, Tags=[{"Key": "standby:tier", "Value": "critical"}])
    assert "says nothing of a model" in text


async def test_lists_are_paged_newest_first_and_stable_while_others_are_made(rig: ControlRig) -> None:
    await rig.model()
    await rig.config()
    for number in range(7):
        await rig.endpoint(f"e{number}")
    first = await rig.call("ListEndpoints", MaxResults=3)
    assert [one["EndpointName"] for one in first["Endpoints"]] == ["e6", "e5", "e4"]
    await rig.endpoint("newer")
    second = await rig.call("ListEndpoints", MaxResults=3, NextToken=first["NextToken"])
    assert [one["EndpointName"] for one in second["Endpoints"]] == ["e3", "e2", "e1"]
    last = await rig.call("ListEndpoints", MaxResults=3, NextToken=second["NextToken"])
    assert [one["EndpointName"] for one in last["Endpoints"]] == ["e0"]
    assert "NextToken" not in last
    named = await rig.call("ListEndpoints", SortBy="Name", SortOrder="Ascending", NameContains="E", StatusEquals="InService")
    assert [one["EndpointName"] for one in named["Endpoints"]][:2] == ["e0", "e1"]
    early = first["Endpoints"][-1]["CreationTime"]
    older = await rig.call("ListEndpoints", CreationTimeBefore=early)
    assert {one["EndpointName"] for one in older["Endpoints"]} == {"e0", "e1", "e2", "e3"}
    await refused(rig, "ListEndpoints", SortBy="Bogus")


async def test_quotas_are_told_as_aws_tells_them(rig: ControlRig) -> None:
    rig.quotas[ONE] = Quotas(endpoints=1, memory_mb_per_endpoint=3072)
    await rig.model()
    await rig.config("big", MemorySizeInMB=4096)
    text = await refused(rig, "CreateEndpoint", "ResourceLimitExceeded", EndpointName="e", EndpointConfigName="big")
    assert "'Memory size in MB per serverless endpoint' is 3072 MBs, with current utilization of 0 MBs" in text
    await rig.config()
    await rig.endpoint()
    text = await refused(rig, "CreateEndpoint", "ResourceLimitExceeded", EndpointName="f", EndpointConfigName="c")
    assert "is 1 Endpoints, with current utilization of 1 Endpoints" in text


async def test_remote_code_is_refused_in_words(rig: ControlRig) -> None:
    container = {"ModelDataUrl": "s3://b/m.tar.gz", "Environment": {"OPTION_TRUST_REMOTE_CODE": "true"}}
    text = await refused(rig, "CreateModel", ModelName="m", PrimaryContainer=container)
    assert "OPTION_TRUST_REMOTE_CODE" in text
    assert "never run" in text


async def test_an_artifact_of_settings_alone_says_where_the_model_lies(rig: ControlRig) -> None:
    looks = rig.artifacts.inspect

    async def inspect(uri: str, options: object, **more: object) -> object:
        if uri.endswith("m.tar.gz"):
            nothing = UnsupportedArtifact("no weights")
            raise ServedElsewhere(nothing, "option.model_id=s3://weights/llama/\noption.max_model_len=99\n")
        return await looks(uri, options, **more)

    object.__setattr__(rig.background._inspector, "inspect", inspect)
    await rig.serving()
    assert (await rig.describe())["EndpointStatus"] == "InService"
    model = await rig.tables.models.get(f"{ONE}.m")
    assert model is not None
    assert model.value.manifest.source_uri == "s3://weights/llama/"


async def test_an_update_retains_weights_and_counts_where_asked(rig: ControlRig) -> None:
    await rig.model()
    variants = [
        {"VariantName": name, "ModelName": "m", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 2}
        for name in ("a", "b")
    ]
    for config in ("c", "d"):
        await rig.call("CreateEndpointConfig", EndpointConfigName=config, ProductionVariants=variants)
    await rig.endpoint()
    assert (await rig.describe())["EndpointStatus"] == "InService"
    wanted = [{"VariantName": "a", "DesiredWeight": 3.0, "DesiredInstanceCount": 5}]
    await rig.call("UpdateEndpointWeightsAndCapacities", EndpointName="e", DesiredWeightsAndCapacities=wanted)
    await rig.call(
        "UpdateEndpoint",
        EndpointName="e",
        EndpointConfigName="d",
        RetainAllVariantProperties=True,
        ExcludeRetainedVariantProperties=[{"VariantPropertyType": "DesiredInstanceCount"}],
    )
    await status_is(rig, "InService")
    told = await rig.describe()
    assert told["EndpointConfigName"] == "d"
    found = [(one["CurrentWeight"], one["DesiredInstanceCount"]) for one in told["ProductionVariants"]]
    assert found == [(3.0, 2), (1.0, 2)]
    await rig.call("UpdateEndpoint", EndpointName="e", EndpointConfigName="c")
    await status_is(rig, "InService")
    assert [one["CurrentWeight"] for one in (await rig.describe())["ProductionVariants"]] == [1.0, 1.0]


async def test_strict_mode_answers_as_aws_does(tmp_path: Path) -> None:
    async with control_rig(tmp_path, strict=True, settle_s=30.0) as strict:
        await strict.model(uri="s3://models/slow.tar.gz")
        await strict.config()
        await strict.endpoint()
        assert "Cannot update in-progress endpoint" in await refused(strict, "DeleteEndpoint", EndpointName="e")
        strict.artifacts.release.set()
        assert (await strict.describe())["EndpointStatus"] == "InService"
        await strict.call("DeleteEndpoint", EndpointName="e")


async def test_a_model_whose_artifact_was_forgotten_by_our_own_api_is_looked_at_again(rig: ControlRig) -> None:
    await rig.model()
    await until(lambda: f"{ONE}.m" in rig.context.records.copies.models.entries)
    await rig.tables.models.delete(f"{ONE}.m")
    await until(lambda: f"{ONE}.m" not in rig.context.records.copies.models.entries)
    await rig.config()
    await rig.endpoint()
    assert (await rig.describe())["EndpointStatus"] == "InService"
    assert len(rig.artifacts.looks) == 2
