"""A production variant of AWS's as a variant of ours, and back. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from standby.domain.endpoint import ScalePolicy, Variant
from standby.domain.errors import InvalidInput
from standby.sagemaker.control import policy

# The serverless memory sizes of AWS's; an own endpoint may have others, which its members cannot tell.
STEP_MB: Final = 1024
LARGEST_MB: Final = 6144
MOST_CONCURRENCY: Final = 200
MOST_INSTANCES: Final = 200


def variant_of(given: Mapping[str, Any], overrides: policy.Overrides | None = None, *, always_on: bool = False) -> Variant:
    """Return the variant. ``overrides`` are fields of the scale policy; ``always_on`` keeps instances as AWS would.

    MemorySizeInMB is what is reserved, MaxConcurrency the exact limit over all gateways, ProvisionedConcurrency keeps one
    instance ready. Instances that AWS would run all the time are here the most that there may be. Raises InvalidInput.
    """
    name, model = str(given["VariantName"]), given.get("ModelName")
    if model is None:
        raise InvalidInput(
            f"production variant {name!r} names no model", remedy="name one, or deploy models to it as inference components"
        )
    serverless: Mapping[str, Any] | None = given.get("ServerlessConfig")
    base = _instances(given, always_on=always_on) if serverless is None else _serverless(serverless)
    start_limit = given.get("ContainerStartupHealthCheckTimeoutInSeconds")
    if start_limit is not None:
        base = base.model_copy(update={"activation_limit": float(start_limit)})
    made = policy.applied(base, overrides or {})
    limit = None if serverless is None else int(serverless["MaxConcurrency"])
    if limit is not None and made.slots * made.max_instances < limit:
        # Fewer slots for each instance must not make MaxConcurrency mean less than it says.
        made = made.model_copy(update={"max_instances": min(MOST_INSTANCES, math.ceil(limit / made.slots))})
    return Variant(
        name=name,
        model=str(model),
        weight=float(given.get("InitialVariantWeight", 1.0)),
        memory_mb=None if serverless is None else int(serverless["MemorySizeInMB"]),
        concurrency_limit=limit,
        provisioned=None if serverless is None else serverless.get("ProvisionedConcurrency"),
        policy=made,
    )


def production_variant_of(variant: Variant) -> dict[str, Any]:
    """Return the production variant that would make ``variant``: for configs that were not made by AWS's clients."""
    told: dict[str, Any] = {
        "VariantName": variant.name,
        "ModelName": variant.model,
        "InitialVariantWeight": variant.weight,
    }
    serverless = serverless_config(variant)
    if serverless is None:
        told["InitialInstanceCount"] = variant.policy.max_instances
    else:
        told["ServerlessConfig"] = serverless
    return told


def serverless_config(variant: Variant) -> dict[str, int] | None:
    """Return the variant's ServerlessConfig; None where it has no concurrency limit."""
    if variant.concurrency_limit is None:
        return None
    memory = STEP_MB if variant.memory_mb is None else math.ceil(variant.memory_mb / STEP_MB) * STEP_MB
    told = {
        "MemorySizeInMB": min(LARGEST_MB, max(STEP_MB, memory)),
        "MaxConcurrency": min(MOST_CONCURRENCY, variant.concurrency_limit),
    }
    if variant.provisioned is not None:
        told["ProvisionedConcurrency"] = variant.provisioned
    return told


def _serverless(given: Mapping[str, Any]) -> ScalePolicy:
    return ScalePolicy(
        slots=int(given["MaxConcurrency"]),
        max_instances=1,
        min_ready=1 if given.get("ProvisionedConcurrency") else 0,
    )


def _instances(given: Mapping[str, Any], *, always_on: bool) -> ScalePolicy:
    count = min(MOST_INSTANCES, max(1, int(given.get("InitialInstanceCount", 1))))
    least, most = (count if always_on else 0), count
    managed: Mapping[str, Any] = given.get("ManagedInstanceScaling") or {}
    if managed.get("Status") == "ENABLED":
        most = min(MOST_INSTANCES, max(count, int(managed.get("MaxInstanceCount", count))))
        least = min(most, int(managed.get("MinInstanceCount", least)))
    return ScalePolicy(max_instances=most, min_ready=least)
