"""Random requests of two tenants to the real operations: never a 5xx, never a hang, never a word of the other tenant.

STANDBY_FUZZ_INPUTS sets how many; what only the parser sees is fuzzed with far more in the unit tests.
"""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

from standby.domain.access import ALL_SCOPES
from standby.gateway.http import UploadRoom, read_or_gone
from standby.sagemaker.auth.caller import Caller, user_arn
from standby.sagemaker.control.operations import HANDLERS, operations
from standby.sagemaker.dispatch import ControlPlane
from standby.sagemaker.shapes.services import operation
from support.asgi import Answer, ask
from support.aws_operations import Inventor
from support.aws_plane import TARGETS
from support.control_rig import ONE, TWO, ControlRig, control_rig

INPUTS = int(os.environ.get("STANDBY_FUZZ_INPUTS", "1500"))
SERVED = [(service, name) for service, name in HANDLERS if service in TARGETS]
NAMES = ["m1", "m2", "m3", "c1", "c2", "c3", "e1", "e2", "e3", "base", "ic1", "ic2", "ic3", "AllTraffic", "v2"]
SECRET = {ONE: "kept-by-the-first", TWO: "kept-by-the-second"}
OTHER = {ONE: TWO, TWO: ONE}
# What an inference component and its scaling rest on is asked for first: by chance alone all of it is hardly ever there.
NEEDED = [
    ("sagemaker", "CreateInferenceComponent"),
    ("application-autoscaling", "RegisterScalableTarget"),
    ("application-autoscaling", "PutScalingPolicy"),
]
NEEDING = {name for _, name in SERVED if "Scal" in name or ("InferenceComponent" in name and not name.startswith("Create"))}


def believing(
    _method: str,
    _raw_path: bytes,
    _raw_query: bytes,
    headers: Sequence[tuple[bytes, bytes]],
    _body: bytes,
    *,
    now: float,
    service: str | None = "sagemaker",
) -> Caller:
    """Believe the caller's word about the tenant."""
    tenant = dict(headers)[b"x-tenant"].decode()
    return Caller(tenant, "SBKATEST", ALL_SCOPES, user_arn(tenant, "tester"), "us-east-1")


async def seed(rig: ControlRig, tenant: str) -> None:
    """Make two of everything, with a word in them that no other tenant may read."""
    tags = [{"Key": "secret", "Value": SECRET[tenant]}]
    for number in "12":
        await rig.model(f"m{number}", f"s3://{SECRET[tenant]}/m{number}.tar.gz", tenant, Tags=tags)
        await rig.config(f"c{number}", f"m{number}", tenant, Tags=tags)
        await rig.endpoint(f"e{number}", f"c{number}", tenant, Tags=tags)
    variant = {"VariantName": "AllTraffic", "InstanceType": "ml.g5.xlarge", "InitialInstanceCount": 1}
    await rig.call("CreateEndpointConfig", tenant, EndpointConfigName="base", ProductionVariants=[variant], Tags=tags)
    await rig.endpoint("base", "base", tenant, Tags=tags)


def sensible(rng: random.Random, tenant: str, name: str) -> dict[str, Any]:
    """Return a request that stands a chance."""
    number = rng.choice("123")
    model, config, endpoint = f"m{number}", f"c{number}", f"e{number}"
    kind, named = rng.choice([("model", model), ("endpoint-config", config), ("endpoint", endpoint)])
    arn = f"arn:aws:sagemaker:us-east-1:{tenant}:{kind}/{named}"
    container = {"Image": "djl:lmi", "ModelDataUrl": f"s3://{SECRET[tenant]}/m", "Environment": {"STANDBY_ENGINE": "fake"}}
    serverless = {"MemorySizeInMB": 1024, "MaxConcurrency": 2}
    variant = {"VariantName": "AllTraffic", "ModelName": model, "ServerlessConfig": serverless}
    weight = {"VariantName": "AllTraffic", "DesiredWeight": 2}
    tags = [{"Key": "secret", "Value": SECRET[tenant]}]
    requests: dict[str, dict[str, Any]] = {
        "CreateModel": {"ModelName": model, "PrimaryContainer": container, "Tags": tags},
        "CreateEndpointConfig": {"EndpointConfigName": config, "ProductionVariants": [variant], "Tags": tags},
        "CreateEndpoint": {"EndpointName": endpoint, "EndpointConfigName": config, "Tags": tags},
        "UpdateEndpoint": {"EndpointName": endpoint, "EndpointConfigName": f"c{rng.choice('123')}"},
        "UpdateEndpointWeightsAndCapacities": {"EndpointName": endpoint, "DesiredWeightsAndCapacities": [weight]},
        "AddTags": {"ResourceArn": arn, "Tags": tags},
        "DeleteTags": {"ResourceArn": arn, "TagKeys": ["secret"]},
        "ListTags": {"ResourceArn": arn},
        **{f"{verb}Model": {"ModelName": model} for verb in ("Describe", "Delete")},
        **{f"{verb}EndpointConfig": {"EndpointConfigName": config} for verb in ("Describe", "Delete")},
        **{f"{verb}Endpoint": {"EndpointName": endpoint} for verb in ("Describe", "Delete")},
    }
    # One component and its model only: what depends on it is to find it there.
    return requests.get(name) or components("1", tags).get(name) or scaling("1").get(name, {})


def components(number: str, tags: list[dict[str, str]]) -> dict[str, dict[str, Any]]:
    """Return requests about inference components; their models go and come."""
    named = {"InferenceComponentName": f"ic{number}"}
    specification = {"ModelName": f"m{number}", "ComputeResourceRequirements": {"MinMemoryRequiredInMb": 1024}}
    copies = {"CopyCount": 0}
    made = {"EndpointName": "base", "VariantName": "AllTraffic", "Specification": specification, "Tags": tags}
    return {
        "CreateInferenceComponent": {**named, **made, "RuntimeConfig": copies},
        "UpdateInferenceComponent": {**named, "Specification": specification},
        "UpdateInferenceComponentRuntimeConfig": {**named, "DesiredRuntimeConfig": copies},
        **{f"{verb}InferenceComponent": named for verb in ("Describe", "Delete")},
    }


def scaling(number: str) -> dict[str, dict[str, Any]]:
    """Return requests about what scales inference components."""
    dimension = "sagemaker:inference-component:DesiredCopyCount"
    namespace = {"ServiceNamespace": "sagemaker"}
    target = {**namespace, "ResourceId": f"inference-component/ic{number}", "ScalableDimension": dimension}
    metric = {"PredefinedMetricType": "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"}
    tracking = {"TargetValue": 2.0, "PredefinedMetricSpecification": metric}
    policy = {"PolicyType": "TargetTrackingScaling", "TargetTrackingScalingPolicyConfiguration": tracking}
    return {
        "RegisterScalableTarget": {**target, "MinCapacity": 0, "MaxCapacity": 2},
        "DeregisterScalableTarget": target,
        "PutScalingPolicy": {**target, "PolicyName": "p", **policy},
        "DeleteScalingPolicy": {**target, "PolicyName": "p"},
        **dict.fromkeys(("DescribeScalableTargets", "DescribeScalingPolicies"), namespace),
    }


async def fire(app: ControlPlane, tenant: str, service: str, name: str, body: bytes) -> Answer:
    headers = [("x-tenant", tenant), ("X-Amz-Target", f"{TARGETS[service]}.{name}")]
    async with asyncio.timeout(90):
        return await ask(app, headers=headers, body=body)


def check(answer: Answer, tenant: str, service: str, name: str, body: bytes) -> None:
    """Check form, shape and silence about the other tenant."""
    told = f"{name} {body[:2000]!r}: {answer}"
    assert answer.status in {200, 400}, told
    assert SECRET[OTHER[tenant]].encode() not in answer.body, told
    if answer.status == 400:
        assert json.loads(answer.body)["__type"], told
        return
    shape = operation(service, name).output_shape
    if shape is None:
        assert answer.body == b"", told
        return
    read = {"body": answer.body, "headers": answer.headers, "status_code": 200}
    parsed = create_parser("json").parse(read, shape)
    del parsed["ResponseMetadata"]
    report = ParamValidator().validate(parsed, shape)
    assert not report.has_errors(), f"{report.generate_report()} in {told}"


async def tried(app: ControlPlane, tenant: str, service: str, name: str, request: dict[str, Any]) -> int:
    body = json.dumps(request).encode()
    answer = await fire(app, tenant, service, name, body)
    check(answer, tenant, service, name, body)
    return answer.status


@pytest.mark.timeout(1800)
async def test_real_operations_survive_any_request(tmp_path: Path) -> None:
    rng = random.Random(11)
    seen: Counter[tuple[str, int]] = Counter()
    async with control_rig(tmp_path, settle_s=0.0) as rig:
        app = ControlPlane(believing, operations(rig.context), partial(read_or_gone, UploadRoom()))
        for tenant in (ONE, TWO):
            await seed(rig, tenant)
        for number in range(INPUTS):
            tenant = rng.choice([ONE, TWO])
            service, name = rng.choice(SERVED)
            inventor = Inventor(number, harm=rng.choice([0.0, 0.0, 0.01, 0.1]), names=NAMES, accounts=(ONE, TWO))
            request = sensible(rng, tenant, name)
            match rng.randrange(4):
                case 0:
                    request = inventor.request(service, name)
                case 1 | 2:
                    request = inventor.vary(operation(service, name).input_shape, request)
                case _:
                    for needs in NEEDED if name in NEEDING else ():
                        await tried(app, tenant, *needs, sensible(rng, tenant, needs[1]))
            seen[name, await tried(app, tenant, service, name, request)] += 1
    for _, name in SERVED:
        assert min(seen[name, 200], seen[name, 400]) > 0, f"{name} was not really tried: {seen}"


async def test_two_tenants_at_once_and_the_same_name_at_once(tmp_path: Path) -> None:
    """Of many that make the same name at once exactly one succeeds, for each tenant by itself."""
    async with control_rig(tmp_path, settle_s=0.0) as rig:
        app = ControlPlane(believing, operations(rig.context), partial(read_or_gone, UploadRoom()))
        container = {"Image": "standby", "ModelDataUrl": "s3://models/m.tar.gz", "Environment": {"STANDBY_ENGINE": "fake"}}
        body = json.dumps({"ModelName": "same", "PrimaryContainer": container}).encode()
        answers: list[Any] = await asyncio.gather(
            *(fire(app, tenant, "sagemaker", "CreateModel", body) for tenant in (ONE, TWO) for _ in range(8))
        )
        for part in (answers[:8], answers[8:]):
            assert sorted(answer.status for answer in part) == [200] + [400] * 7
            texts = [json.loads(answer.body)["message"] for answer in part if answer.status == 400]
            assert all(text.startswith("Cannot create already existing model ") for text in texts)
