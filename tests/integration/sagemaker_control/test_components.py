"""Inference components: made, changed, described and deleted; whose copies, updates and failures are nobody else's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standby.domain.access import Quotas
from standby.domain.aws import component_endpoint
from standby.domain.instance import InstanceState
from standby.sagemaker.control.leftovers import Leftovers
from standby.sagemaker.errors import AwsError
from support.control_rig import ONE, TWO, ControlRig, control_rig
from support.waiting import until

ARN = f"arn:aws:sagemaker:us-east-1:{ONE}"
NEEDS = {"MinMemoryRequiredInMb": 512}


class Components:
    """The operations on components, with what most of them have in common."""

    def __init__(self, rig: ControlRig) -> None:
        self.rig = rig
        self.call = rig.call

    async def base(self, name: str = "e", config: str = "c") -> None:
        """Make an endpoint whose variant names no model."""
        variant = {"VariantName": "AllTraffic", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 1}
        await self.call("CreateEndpointConfig", EndpointConfigName=config, ProductionVariants=[variant])
        await self.call("CreateEndpoint", EndpointName=name, EndpointConfigName=config)

    async def create(self, name: str = "ic", copies: int = 0, **changes: Any) -> None:
        specification = {"ModelName": "m", "ComputeResourceRequirements": NEEDS, **changes.pop("specification", {})}
        members = {
            "EndpointName": "e",
            "VariantName": "AllTraffic",
            "Specification": {key: value for key, value in specification.items() if value is not None},
            "RuntimeConfig": {"CopyCount": copies},
            **changes,
        }
        await self.call("CreateInferenceComponent", InferenceComponentName=name, **members)

    async def describe(self, name: str = "ic") -> dict[str, Any]:
        return await self.call("DescribeInferenceComponent", InferenceComponentName=name)

    async def set_copies(self, copies: int, name: str = "ic") -> None:
        wanted = {"CopyCount": copies}
        await self.call("UpdateInferenceComponentRuntimeConfig", InferenceComponentName=name, DesiredRuntimeConfig=wanted)

    async def until_status(self, status: str, name: str = "ic") -> dict[str, Any]:
        async def reached() -> bool:
            return bool((await self.describe(name))["InferenceComponentStatus"] == status)

        await until(reached, f"{name} is {status}")
        return await self.describe(name)

    async def refused(self, operation: str, **members: Any) -> str:
        with pytest.raises(AwsError) as error:
            await self.call(operation, **members)
        assert error.value.code == "ValidationException"
        return str(error.value)

    async def gone(self, name: str = "ic") -> None:
        async def is_gone() -> bool:
            try:
                await self.describe(name)
            except AwsError:
                return True
            return False

        await until(is_gone)


@pytest.fixture
async def there(tmp_path: Path) -> AsyncIterator[Components]:
    async with control_rig(tmp_path, sweep_s=0.05) as rig:
        await rig.model()
        yield Components(rig)


async def test_an_endpoint_without_models_is_in_service_at_once(there: Components) -> None:
    await there.base()
    told = await there.rig.describe()
    assert told["EndpointStatus"] == "InService"
    assert told["ProductionVariants"] == [{"VariantName": "AllTraffic", "CurrentWeight": 1.0, "DesiredWeight": 1.0}]


async def test_without_copies_it_is_in_service_at_once(there: Components) -> None:
    await there.base()
    await there.create(Tags=[{"Key": "team", "Value": "a"}])
    told = await there.describe()
    assert told["InferenceComponentStatus"] == "InService"
    assert told["InferenceComponentArn"] == f"{ARN}:inference-component/ic"
    assert told["EndpointArn"] == f"{ARN}:endpoint/e"
    assert told["VariantName"] == "AllTraffic"
    assert told["RuntimeConfig"] == {"DesiredCopyCount": 0, "CurrentCopyCount": 0}
    assert told["Specification"] == {"ModelName": "m", "ComputeResourceRequirements": NEEDS}
    assert told["CreationTime"] <= told["LastModifiedTime"]
    tags = await there.call("ListTags", ResourceArn=told["InferenceComponentArn"])
    assert tags["Tags"] == [{"Key": "team", "Value": "a"}]


async def test_copies_are_kept_ready_and_their_number_changes(there: Components) -> None:
    await there.base()
    await there.create(copies=2)
    told = await there.until_status("InService")
    assert told["RuntimeConfig"] == {"DesiredCopyCount": 2, "CurrentCopyCount": 2}
    await there.set_copies(3)
    told = await there.until_status("InService")
    assert told["RuntimeConfig"] == {"DesiredCopyCount": 3, "CurrentCopyCount": 3}
    await there.call("UpdateInferenceComponent", InferenceComponentName="ic", RuntimeConfig={"CopyCount": 1})
    assert (await there.describe())["RuntimeConfig"]["DesiredCopyCount"] == 1


async def test_copies_that_are_on_their_way_are_told_of(there: Components) -> None:
    """A script that waits for InService after it asked for copies waits until they answer."""
    await there.base()
    await there.create()
    carrier = component_endpoint("ic")
    instances = there.rig.context.records.copies.instances.entries

    def status() -> str:
        ready = (one for one in instances.values() if one.value.endpoint == carrier and one.value.state is InstanceState.READY)
        return "InService" if any(ready) else "Updating"

    await there.set_copies(1)
    before = status()
    told = await there.describe()
    assert told["InferenceComponentStatus"] in {before, status()}  # it may have come in between
    await there.until_status("InService")


async def test_its_variant_reserves_what_it_says_and_nobody_sees_what_carries_it(there: Components) -> None:
    await there.base()
    await there.create(copies=1, Tags=[{"Key": "standby:slots", "Value": "7"}])
    record = (await there.rig.tables.endpoints.get(f"{ONE}.{component_endpoint('ic')}")).value  # type: ignore[union-attr]
    assert record.served_name == "e/ic"
    config = (await there.rig.tables.endpoint_configs.get(f"{ONE}.{record.config}")).value  # type: ignore[union-attr]
    (variant,) = config.variants
    assert (variant.name, variant.model, variant.memory_mb) == ("AllTraffic", "m", 512)
    assert (variant.policy.min_ready, variant.policy.max_instances, variant.policy.slots) == (1, 1, 7)
    assert [one["EndpointName"] for one in (await there.call("ListEndpoints"))["Endpoints"]] == ["e"]
    assert [one["EndpointConfigName"] for one in (await there.call("ListEndpointConfigs"))["EndpointConfigs"]] == ["c"]


async def test_a_container_of_its_own(there: Components) -> None:
    """Nobody made a model of it by name, and none is listed; what the look finds is told."""
    await there.base()
    container = {"Image": "djl:lmi", "ArtifactUrl": "s3://models/own.tar.gz", "Environment": {"STANDBY_ENGINE": "fake"}}
    await there.create(copies=1, specification={"ModelName": None, "Container": container})
    told = await there.until_status("InService")
    shown = told["Specification"]["Container"]
    assert shown["ArtifactUrl"] == "s3://models/own.tar.gz"
    assert shown["DeployedImage"]["SpecifiedImage"] == "djl:lmi"
    assert [one["ModelName"] for one in (await there.call("ListModels"))["Models"]] == ["m"]
    bad = {**container, "ArtifactUrl": "s3://models/gone.tar.gz"}
    await there.create("bad", specification={"ModelName": None, "Container": bad})
    told = await there.until_status("Failed", "bad")
    assert "the store has no such object" in told["FailureReason"]
    sweeping = Leftovers(there.rig.context.records)
    for _ in range(5):  # what a failed component waits for is not left over
        assert await sweeping.sweep() == 0
    assert "the store has no such object" in (await there.describe("bad"))["FailureReason"]
    for name in ("ic", "bad"):
        await there.call("DeleteInferenceComponent", InferenceComponentName=name)
        await there.gone(name)

    async def swept() -> bool:
        await sweeping.sweep()
        return [key.rpartition(".")[2] for key in await there.rig.tables.aws.list(f"{ONE}.model.")] == ["m"]

    await until(swept, "the models of both are gone")


async def test_another_specification_takes_over_when_it_is_ready(there: Components) -> None:
    await there.base()
    await there.create(copies=1)
    await there.until_status("InService")
    await there.rig.model("m2", "s3://models/m2.tar.gz")
    changed = {"ModelName": "m2"}
    await there.call("UpdateInferenceComponent", InferenceComponentName="ic", Specification=changed)
    wanted = {"ModelName": "m2", "ComputeResourceRequirements": NEEDS}, {"DesiredCopyCount": 1, "CurrentCopyCount": 1}

    async def taken_over() -> bool:
        told = await there.describe()
        return told["InferenceComponentStatus"] == "InService" and (told["Specification"], told["RuntimeConfig"]) == wanted

    await until(taken_over, "the new specification serves")


async def test_one_that_cannot_start_fails_alone(there: Components) -> None:
    await there.base()
    await there.create("good", copies=1)
    await there.rig.model("bad", "s3://models/crash.tar.gz")
    await there.create("bad", copies=1, specification={"ModelName": "bad"})
    told = await there.until_status("Failed", "bad")
    assert "no such tensor" in told["FailureReason"]
    assert (await there.until_status("InService", "good"))["RuntimeConfig"]["CurrentCopyCount"] == 1
    assert (await there.rig.describe())["EndpointStatus"] == "InService"
    refusal = await there.refused(
        "UpdateInferenceComponentRuntimeConfig", InferenceComponentName="bad", DesiredRuntimeConfig={"CopyCount": 2}
    )
    assert "can only be deleted" in refusal
    await there.call("DeleteInferenceComponent", InferenceComponentName="bad")
    await there.gone("bad")


async def test_lists_are_filtered(there: Components) -> None:
    await there.base()
    await there.base("f", "d")
    for name in ("a", "b"):
        await there.create(name)
    await there.create("other", EndpointName="f")

    async def named(**filters: Any) -> list[str]:
        found = (await there.call("ListInferenceComponents", **filters))["InferenceComponents"]
        return [one["InferenceComponentName"] for one in found]

    assert await named() == ["other", "b", "a"]
    assert await named(EndpointNameEquals="e", SortBy="Name", SortOrder="Ascending") == ["a", "b"]
    assert await named(NameContains="oth") == ["other"]
    assert await named(VariantNameEquals="nope") == []
    assert await named(StatusEquals="InService", MaxResults=1) == ["other"]


async def test_deletion_and_a_new_one_of_the_same_name(there: Components) -> None:
    await there.base()
    await there.create(copies=1)
    await there.until_status("InService")
    refusal = await there.refused("DeleteEndpoint", EndpointName="e")
    assert "it has the inference components ic" in refusal
    await there.call("DeleteInferenceComponent", InferenceComponentName="ic")
    await there.gone()
    text = await there.refused("DescribeInferenceComponent", InferenceComponentName="ic")
    assert text == 'ValidationException (400): Could not find inference component "ic"'
    await there.create(Tags=[{"Key": "second", "Value": "1"}])
    tags = await there.call("ListTags", ResourceArn=f"{ARN}:inference-component/ic")
    assert tags["Tags"] == [{"Key": "second", "Value": "1"}]
    await there.call("DeleteInferenceComponent", InferenceComponentName="ic")
    await there.call("DeleteEndpoint", EndpointName="e")


async def test_a_model_that_is_deleted_goes_on_in_the_component(there: Components) -> None:
    await there.base()
    await there.create(copies=1)
    await there.until_status("InService")
    await there.call("DeleteModel", ModelName="m")
    assert (await there.until_status("InService"))["RuntimeConfig"]["CurrentCopyCount"] == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"EndpointName": "nope"}, f'Could not find endpoint "{ARN}:endpoint/nope".'),
        ({"VariantName": "nope"}, 'The variant name(s) "nope" is/are not present within endpoint configuration "c".'),
        ({"specification": {"ModelName": "nope"}}, f'Could not find model "{ARN}:model/nope".'),
        ({"specification": {"ModelName": None}}, "exactly one of ModelName and Container: there is neither"),
        ({"specification": {"ComputeResourceRequirements": None}}, "needs ComputeResourceRequirements"),
        ({"specification": {"BaseInferenceComponentName": "b"}}, "BaseInferenceComponentName"),
        ({"copies": 201}, "CopyCount 201 is above the limit"),
        ({"Tags": [{"Key": "standby:nope", "Value": "1"}]}, "there is no tag 'standby:nope'"),
    ],
)
async def test_what_cannot_be_is_refused(there: Components, changes: dict[str, Any], words: str) -> None:
    await there.base()
    with pytest.raises(AwsError) as error:
        await there.create(**changes)
    assert error.value.code == "ValidationException"
    assert words in str(error.value)
    assert (await there.call("ListInferenceComponents"))["InferenceComponents"] == []


async def test_names_are_taken_once(there: Components) -> None:
    await there.base()
    await there.create()
    with pytest.raises(AwsError, match=f'Cannot create already existing inference component "{ARN}:inference-component/ic"'):
        await there.create()


async def test_an_endpoint_with_models_takes_none(there: Components) -> None:
    await there.rig.config()
    await there.rig.endpoint()
    with pytest.raises(AwsError, match="Inference components cannot be deployed to endpoint"):
        await there.create()
    mixed = [{"VariantName": "a", "ModelName": "m", "InitialInstanceCount": 1}, {"VariantName": "b", "InitialInstanceCount": 1}]
    text = await there.refused("CreateEndpointConfig", EndpointConfigName="x", ProductionVariants=mixed)
    assert "either models or inference components" in text


async def test_an_endpoint_of_components_stays_one(there: Components) -> None:
    await there.base()
    await there.rig.config("models")
    text = await there.refused("UpdateEndpoint", EndpointName="e", EndpointConfigName="models")
    assert "either models or inference components" in text


async def test_another_account_finds_nothing(there: Components) -> None:
    await there.base()
    await there.create()
    for operation in ("DescribeInferenceComponent", "DeleteInferenceComponent"):
        with pytest.raises(AwsError, match='Could not find inference component "ic"'):
            await there.call(operation, TWO, InferenceComponentName="ic")
    assert (await there.call("ListInferenceComponents", TWO))["InferenceComponents"] == []


async def test_its_memory_counts_in_the_quota(there: Components) -> None:
    there.rig.quotas[ONE] = Quotas(memory_mb=1024)
    await there.base()
    await there.create("a", copies=1)
    with pytest.raises(AwsError) as error:
        await there.create("b", copies=2)
    assert error.value.code == "ResourceLimitExceeded"
    await there.create("c", copies=1)
