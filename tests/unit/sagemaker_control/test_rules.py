"""Variants, policies, config rules, quotas, statuses: the control plane's decisions."""

from __future__ import annotations

from typing import Any

import pytest

from standby.domain.access import Quotas
from standby.domain.endpoint import EndpointStatus, Failure, ScalePolicy, Variant
from standby.domain.errors import InvalidInput
from standby.sagemaker.control import policy
from standby.sagemaker.control.config_rules import check_config
from standby.sagemaker.control.inspected import Servable, Verdict
from standby.sagemaker.control.quotas import Usage, check_quota, usage_of, usage_of_endpoint
from standby.sagemaker.control.status import ARTIFACT, Settled, concluded, endpoint_status, failure_reason, settled
from standby.sagemaker.control.tagging import tags_of
from standby.sagemaker.control.variants import production_variant_of, serverless_config, variant_of
from standby.sagemaker.errors import AwsError
from support.builders import a_config, an_endpoint

pytestmark = pytest.mark.decision

SERVERLESS = {
    "VariantName": "v",
    "ModelName": "m",
    "ServerlessConfig": {"MemorySizeInMB": 2048, "MaxConcurrency": 20, "ProvisionedConcurrency": 2},
}
INSTANCES = {"VariantName": "v", "ModelName": "m", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 3}


def test_a_serverless_variant() -> None:
    made = variant_of(SERVERLESS)
    assert (made.memory_mb, made.concurrency_limit, made.provisioned, made.limit) == (2048, 20, 2, 20)
    assert (made.policy.slots, made.policy.max_instances, made.policy.min_ready) == (20, 1, 1)
    assert serverless_config(made) == SERVERLESS["ServerlessConfig"]


def test_fewer_slots_for_each_instance_do_not_lessen_max_concurrency() -> None:
    made = variant_of(SERVERLESS, {"slots": "6", "min_ready": "0"})
    assert (made.policy.slots, made.policy.max_instances, made.limit) == (6, 4, 20)
    assert made.policy.min_ready == 1, "ProvisionedConcurrency means what it means"


def test_a_variant_with_instances_scales_to_zero_unless_strict() -> None:
    made = variant_of({**INSTANCES, "ContainerStartupHealthCheckTimeoutInSeconds": 600})
    assert (made.policy.min_ready, made.policy.max_instances, made.concurrency_limit) == (0, 3, None)
    assert made.policy.activation_limit == 600
    assert variant_of(INSTANCES, always_on=True).policy.min_ready == 3
    scaling = {"Status": "ENABLED", "MinInstanceCount": 1, "MaxInstanceCount": 8}
    made = variant_of({**INSTANCES, "ManagedInstanceScaling": scaling})
    assert (made.policy.min_ready, made.policy.max_instances) == (1, 8)
    assert production_variant_of(made)["InitialInstanceCount"] == 8
    with pytest.raises(InvalidInput, match="names no model"):
        variant_of({"VariantName": "v", "InstanceType": "ml.g5.xlarge"})


def test_policy_by_tags_and_environment() -> None:
    assert policy.from_tags({"standby:keep-ready": "5m", "team": "x", "standby:heartbeat": "10"}) == {"keep_ready": "5m"}
    assert policy.from_environment({"STANDBY_KEEP_ASLEEP": "forever"}) == {"keep_asleep": "forever"}
    assert policy.applied(ScalePolicy(), {"keep_ready": "5m"}).keep_ready == 300.0
    with pytest.raises(InvalidInput, match="keep-ready"):
        policy.from_tags({"standby:keep": "5m"})
    with pytest.raises(InvalidInput, match="soon"):
        policy.from_tags({"standby:keep-ready": "soon"})
    with pytest.raises(InvalidInput, match="max_instances"):
        policy.applied(ScalePolicy(), {"min_ready": "2"})


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        (
            [{**SERVERLESS, "ServerlessConfig": {"MemorySizeInMB": 1025, "MaxConcurrency": 1}}],
            "'1025' at 'production",
        ),
        ([{**SERVERLESS, "InstanceType": "ml.g5.xlarge"}], "give one or the other"),
        ([{"VariantName": "v", "ModelName": "m"}], "neither a ServerlessConfig nor"),
        ([SERVERLESS, SERVERLESS], "must be unique"),
        ([{**SERVERLESS, "InitialVariantWeight": 0.0}], "sum to 0"),
    ],
)
def test_configs_that_cannot_be(variants: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(AwsError) as error:
        check_config({"ProductionVariants": variants}, {}, strict=False)
    assert words in str(error.value.message)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        ({"VpcConfig": {"SecurityGroupIds": ["s"]}}, {}),
        ({"AsyncInferenceConfig": {"OutputConfig": {}}}, {}),
        ({}, {"EnableNetworkIsolation": True}),
        ({}, {"PrimaryContainer": {"ModelDataSource": {"S3DataSource": {}}}}),
        ({"ProductionVariants": [SERVERLESS, {**SERVERLESS, "VariantName": "w"}]}, {}),
    ],
)
def test_what_serverless_excludes_is_refused_in_strict_mode_only(config: dict[str, Any], model: dict[str, Any]) -> None:
    request = {"ProductionVariants": [SERVERLESS], **config}
    check_config(request, {"m": model}, strict=False)
    with pytest.raises(AwsError, match="Serverless endpoints do not support"):
        check_config(request, {"m": model}, strict=True)


def test_quotas() -> None:
    quotas = Quotas(endpoints=2, concurrency=30, memory_mb_per_endpoint=4096, memory_mb=5000)
    more = usage_of([variant_of(SERVERLESS)])
    assert more == Usage(endpoints=1, concurrency=20, memory_mb=2048, largest_mb=2048)
    check_quota(quotas, more, Usage(endpoints=1, concurrency=10, memory_mb=2048, largest_mb=2048))
    for used, words in (
        (Usage(endpoints=2), "is 2 Endpoints, with current utilization of 2 Endpoints and a request delta of 1 Endpoints."),
        (Usage(concurrency=11), "is 30, with current utilization of 11 and a request delta of 20."),
        (Usage(memory_mb=3000), "is 5000 MBs, with current utilization of 3000 MBs and a request delta of 2048 MBs."),
    ):
        with pytest.raises(AwsError) as error:
            check_quota(quotas, used, more)
        assert error.value.code == "ResourceLimitExceeded"
        assert words in str(error.value.message)


def test_statuses_and_reasons() -> None:
    assert endpoint_status(an_endpoint()) == "InService"
    assert endpoint_status(an_endpoint(pending_config="e=1")) == "Updating"
    assert endpoint_status(an_endpoint(pending_config="e=1", status=EndpointStatus.DELETING)) == "Deleting"
    ping = Failure(reason="exit code 1", first_error="out of memory", variant="v")
    told = failure_reason(an_endpoint(status=EndpointStatus.FAILED, failure=ping))
    assert told is not None
    assert told.startswith("The primary container for production variant v did not pass the ping health check.")
    assert "Cause: exit code 1 First error: out of memory" in told
    room = Failure(reason="n1 has 3 GiB", code="no_capacity")
    assert "InsufficientInstanceCapacity" in str(failure_reason(an_endpoint(status=EndpointStatus.FAILED, failure=room)))
    long = an_endpoint(update_failure=Failure(reason="x" * 3000, code=ARTIFACT))
    assert len(str(failure_reason(long))) == 1024
    assert failure_reason(an_endpoint(failure=ping)) is None


def test_what_verdicts_on_models_do_to_an_endpoint() -> None:
    variants = [Variant(name="a", model="m"), Variant(name="b", model="n")]
    good, waits = Verdict(Servable.GOOD), Verdict(Servable.WAITING)
    gone = Verdict(Servable.FAILED, "no such object")
    assert settled(variants, [good, waits], 1.0) is None
    assert settled(variants, [good, good], 1.0) == Settled(None)
    bad = settled(variants, [waits, gone], 1.0)
    assert bad is not None
    assert bad.failure is not None
    assert (bad.failure.variant, bad.failure.reason) == ("b", "no such object")

    creating = an_endpoint(status=EndpointStatus.CREATING)
    after = concluded(creating, variants, Settled(None))
    assert after is not None
    assert after.status is EndpointStatus.IN_SERVICE
    kept_ready = [Variant(model="m", policy=ScalePolicy(min_ready=1))]
    assert concluded(creating, kept_ready, Settled(None)) is None
    after = concluded(creating, variants, bad)
    assert after is not None
    assert (after.status, after.failure is not None) == (EndpointStatus.FAILED, True)

    updating = an_endpoint(status=EndpointStatus.UPDATING, pending_config="e=2")
    assert concluded(updating, variants, Settled(None)) is None, "the controller completes it"
    after = concluded(updating, variants, bad)
    assert after is not None
    assert (after.status, after.pending_config, after.config) == (EndpointStatus.IN_SERVICE, None, "e-1")
    assert after.update_failure == bad.failure
    deleting = an_endpoint(status=EndpointStatus.DELETING, pending_config="e=2")
    assert concluded(deleting, variants, bad) is None


def test_tags() -> None:
    assert tags_of([{"Key": "a", "Value": ""}]) == {"a": ""}
    assert tags_of(None) == {}
    for wrong in ([{"Key": "a", "Value": "1"}, {"Key": "a", "Value": "2"}], [{"Key": "aws:x", "Value": "1"}]):
        with pytest.raises(AwsError):
            tags_of(wrong)


def test_an_endpoint_that_moves_counts_as_the_larger_of_both() -> None:
    """Otherwise many could grow at once, each counted as small as it was when the others were checked."""
    small, large = (
        a_config(name=name, variants=(Variant(model="m", memory_mb=memory, concurrency_limit=slots),))
        for name, memory, slots in (("small", 1024, 1), ("large", 2048, 10))
    )
    configs = {"small": small, "large": large}
    for before, after in (("small", "large"), ("large", "small")):
        moving = an_endpoint(config=before, pending_config=after)
        assert usage_of_endpoint(moving, configs.get) == usage_of(large.variants)
    assert usage_of_endpoint(an_endpoint(config="small"), configs.get) == usage_of(small.variants)
    assert usage_of_endpoint(an_endpoint(config="unknown", pending_config="unknown"), configs.get) == Usage(endpoints=1)
