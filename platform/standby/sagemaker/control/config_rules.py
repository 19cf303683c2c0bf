"""Which endpoint configs there may be: AWS's rules beyond its shapes, and in strict mode its exclusions. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from standby.sagemaker.control.images import container_of
from standby.sagemaker.control.variants import LARGEST_MB, STEP_MB
from standby.sagemaker.errors import validation
from standby.sagemaker.shapes.requests import broken

# What AWS's serverless endpoints exclude, and we do not.
_NOT_SERVERLESS: Final = ("VpcConfig", "DataCaptureConfig", "AsyncInferenceConfig")
_INSTANCES_ONLY: Final = ("InstanceType", "InitialInstanceCount", "ManagedInstanceScaling", "InstancePools")
_NOT_THERE: Final = {
    "ExplainerConfig": "explanations",
    "ShadowProductionVariants": "shadow variants",
}
_Variants = Sequence[Mapping[str, Any]]


def check_config(request: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]], *, strict: bool) -> None:
    """Raise AwsError for a config that cannot be. ``models`` are the CreateModel requests of the models that it names."""
    variants: _Variants = request["ProductionVariants"]
    names = [variant["VariantName"] for variant in variants]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise validation(f"Production variant names must be unique; given more than once: {', '.join(doubles)}")
    for number, variant in enumerate(variants, 1):
        _check_variant(variant, number)
    bare = [variant["VariantName"] for variant in variants if variant.get("ModelName") is None]
    if bare and len(bare) < len(variants):
        raise validation(
            f"Production variants {', '.join(bare)} name no model and the others do: an endpoint has either models or "
            "inference components."
        )
    if sum(float(variant.get("InitialVariantWeight", 1.0)) for variant in variants) <= 0:
        raise validation("The weights of the production variants sum to 0, so none of them would get a request.")
    for member, what in _NOT_THERE.items():
        if request.get(member):
            raise validation(f"{member} is not supported: there are no {what} here.")
    if (request.get("DataCaptureConfig") or {}).get("EnableCapture"):
        raise validation("DataCaptureConfig with EnableCapture is not supported: no request's content is stored here.")
    if strict:
        _check_exclusions(request, variants, models)


def _check_variant(variant: Mapping[str, Any], number: int) -> None:
    name, serverless = variant["VariantName"], variant.get("ServerlessConfig")
    if serverless is None:
        if not any(variant.get(member) is not None for member in _INSTANCES_ONLY):
            raise validation(
                f"Production variant {name} has neither a ServerlessConfig nor an InstanceType with InitialInstanceCount."
            )
        return
    both = [member for member in _INSTANCES_ONLY if variant.get(member) is not None]
    if both:
        raise validation(f"Production variant {name} has a ServerlessConfig and {', '.join(both)}: give one or the other.")
    if variant.get("ModelName") is None:
        raise validation(f"Production variant {name} is serverless and names no model.")
    path = f"productionVariants.{number}.member.serverlessConfig"
    memory, most = serverless["MemorySizeInMB"], serverless["MaxConcurrency"]
    if memory % STEP_MB:
        sizes = ", ".join(str(size) for size in range(STEP_MB, LARGEST_MB + 1, STEP_MB))
        raise broken(f"{path}.memorySizeInMB", memory, f"Member must satisfy enum value set: [{sizes}]")
    check_provisioned(name, serverless.get("ProvisionedConcurrency"), most)


def check_provisioned(variant: str, provisioned: int | None, most: int) -> None:
    """Raise AwsError where more concurrency would be kept ready than there may be."""
    if provisioned is not None and provisioned > most:
        raise validation(
            f"ProvisionedConcurrency {provisioned} of production variant {variant} must be less than or equal to its "
            f"MaxConcurrency {most}."
        )


def _check_exclusions(request: Mapping[str, Any], variants: _Variants, models: Mapping[str, Mapping[str, Any]]) -> None:
    serverless = [variant for variant in variants if variant.get("ServerlessConfig") is not None]
    if not serverless:
        return
    found = [member for member in _NOT_SERVERLESS if request.get(member)]
    if len(variants) > 1:
        found.append("more than one production variant")
    if request.get("EnableNetworkIsolation"):
        found.append("EnableNetworkIsolation")
    for variant in serverless:
        model = models.get(variant["ModelName"], {})
        found += [
            f"{member} of model {variant['ModelName']}"
            for member in ("VpcConfig", "EnableNetworkIsolation")
            if model.get(member)
        ]
        if model and container_of(model).get("ModelDataSource"):
            found.append(f"ModelDataSource of model {variant['ModelName']}")
    if found:
        raise validation(f"Serverless endpoints do not support: {', '.join(found)}.")
