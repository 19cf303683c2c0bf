"""Random and boundary requests for components and their scaling: an answer or a refusal of AWS's, never a mistake of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from standby.domain.access import ALL_SCOPES
from standby.domain.errors import StandbyError
from standby.sagemaker.auth.caller import Caller, user_arn
from standby.sagemaker.control.context import ControlCall
from standby.sagemaker.control.operations import HANDLERS
from standby.sagemaker.errors import AwsError, of_standby
from standby.sagemaker.shapes.answers import answer_json
from standby.sagemaker.shapes.requests import parse_json
from standby.sagemaker.shapes.services import AUTOSCALING, SAGEMAKER
from support.aws_operations import Inventor
from support.control_rig import ONE, ControlRig, control_rig

COMPONENTS = (
    "CreateInferenceComponent",
    "UpdateInferenceComponent",
    "UpdateInferenceComponentRuntimeConfig",
    "DescribeInferenceComponent",
    "ListInferenceComponents",
    "DeleteInferenceComponent",
)
SCALING = (
    "RegisterScalableTarget",
    "PutScalingPolicy",
    "DescribeScalableTargets",
    "DescribeScalingPolicies",
    "DeleteScalingPolicy",
    "DeregisterScalableTarget",
)
EACH = 200
DIMENSIONS = {
    "inference-component/ic": "sagemaker:inference-component:DesiredCopyCount",
    "endpoint/models/variant/AllTraffic": "sagemaker:variant:DesiredProvisionedConcurrency",
}
TRACKING = {
    name: {"TargetValue": 0.5, "PredefinedMetricSpecification": {"PredefinedMetricType": metric}}
    for name, metric in (
        ("inference-component/ic", "SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"),
        ("endpoint/models/variant/AllTraffic", "SageMakerVariantProvisionedConcurrencyUtilization"),
    )
}


def aimed(inventor: Inventor, request: Any) -> Any:
    """Let most requests be about what exists: random names would all end in the same refusal."""
    if not isinstance(request, dict) or inventor.random.random() < 0.2:
        return request
    resource = inventor.random.choice(sorted(DIMENSIONS))
    names = {
        "InferenceComponentName": inventor.random.choice(["ic", "ic", "other"]),
        "EndpointName": "e",
        "VariantName": "AllTraffic",
        "ServiceNamespace": "sagemaker",
        "ResourceId": resource,
        "ScalableDimension": DIMENSIONS[resource],
        "PolicyName": inventor.random.choice(["p", "q"]),
    }
    for member, name in names.items():
        if member in request:
            request[member] = name
    for member in ("Specification", "RuntimeConfig", "MinCapacity", "MaxCapacity", "SuspendedState", "Specifications"):
        if inventor.random.random() < 0.3:
            request.pop(member, None)
    if inventor.random.random() < 0.7:
        request |= {member: {"CopyCount": 0} for member in ("RuntimeConfig", "DesiredRuntimeConfig") if member in request}
        request |= {member: TRACKING[resource] for member in ("TargetTrackingScalingPolicyConfiguration",) if member in request}
        request |= {member: "TargetTrackingScaling" for member in ("PolicyType",) if member in request}
    specification = request.get("Specification")
    if isinstance(specification, dict) and inventor.random.random() < 0.7:
        specification.pop("Container", None)
        specification.pop("BaseInferenceComponentName", None)
        specification.pop("InstanceType", None)
        specification["ModelName"] = "m"
    return request


async def ask(rig: ControlRig, service: str, operation: str, body: bytes) -> tuple[str, int]:
    """Return the code and status of the answer; a mistake of ours is raised."""
    caller = Caller(ONE, "SBKATEST", ALL_SCOPES, user_arn(ONE, "tester"), "us-east-1")
    try:
        request = parse_json(service, operation, body)
        answer = await HANDLERS[service, operation](ControlCall(caller, rig.context, "r"), request)
        answer_json(service, operation, answer)
    except AwsError as error:
        return error.code, error.status
    except StandbyError as error:
        told = of_standby(error)
        if told is None:
            raise
        return told.code, told.status
    return "ok", 200


async def test_random_requests_end_in_answers_or_refusals(tmp_path: Path) -> None:
    outcomes: dict[str, set[str]] = {}
    async with control_rig(tmp_path, settle_s=0.0) as rig:
        await rig.serving("models", model="m")
        variant = {"VariantName": "AllTraffic", "InitialInstanceCount": 1}
        await rig.call("CreateEndpointConfig", EndpointConfigName="base", ProductionVariants=[variant])
        await rig.call("CreateEndpoint", EndpointName="e", EndpointConfigName="base")
        for seed in range(EACH):
            inventor = Inventor(seed, harm=0.05 * (seed % 4))
            for service, operations in ((SAGEMAKER, COMPONENTS), (AUTOSCALING, SCALING)):
                for operation in operations:
                    request = aimed(inventor, inventor.request(service, operation))
                    body = json.dumps(request).encode("utf-8", "replace")
                    code, status = await ask(rig, service, operation, body)
                    assert status < 500, (operation, body, code)
                    outcomes.setdefault(operation, set()).add(code)
    assert [operation for operation, seen in outcomes.items() if "ok" not in seen] == [], outcomes
